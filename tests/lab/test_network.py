"""`hccl-py lab`: hosts of a cluster file come up, ranks run on them by every launcher, links change, nothing stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError
from hccl_py.lab import kernel
from hccl_py.lab.network import STATE, LabNetwork
from hccl_py.lab.ranks import LAUNCHERS

CONFIGS = Path(__file__).parents[2] / "cluster_configs"
UNEVEN = CONFIGS / "four_hosts_uneven.yaml"
NAME = f"t{os.getpid()}"
WHO = """
import os, socket, sys
words = [os.environ["RANK"], socket.gethostname(), os.environ.get("HCCL_PY_TOPOLOGY", "blind")]
os.write(1, (" ".join(words) + chr(10)).encode())
"""
SUM = """
import hccl_py, numpy as np
with hccl_py.init() as comm:
    mine = np.full(1000, comm.rank + 1.0)
    comm.all_reduce(mine)
    print(f"sum {mine[0]:g}")
"""


def hccl(*arguments: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hccl_py.cli.main", "lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=child_environ())


def ok(*arguments: str) -> str:
    done = hccl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def uneven(labs_are_possible: None) -> Iterator[LabNetwork]:
    ok("up", str(UNEVEN), "--name", NAME)
    yield LabNetwork.found(NAME)
    ok("down", "--name", NAME)


def test_up_says_what_it_made(uneven: LabNetwork) -> None:
    assert f"{NAME}: {UNEVEN}, 0 processes" in ok("show")
    again = hccl("up", str(CONFIGS / "lab_star.yaml"), "--name", NAME + "b")
    try:
        assert "h2/eth0 - star: 500 / 500 Mbit/s" in again.stdout
    finally:
        ok("down", "--name", NAME + "b")
    assert not [name for name in kernel.namespaces() if NAME + "b" in name]
    assert not (STATE / (NAME + "b")).exists()


def test_ranks_are_on_their_hosts(uneven: LabNetwork) -> None:
    said = ok("run", "--name", NAME, "--", sys.executable, "-c", WHO).split("\n")
    assert sorted(said[:-1]) == [
        f"{rank} {host} {uneven.cluster}" for rank, host in enumerate(["h0", "h1", "h2", "h3", "h0", "h1"])
    ]
    blind = ok("run", "--name", NAME, "--blind", "--", sys.executable, "-c", WHO)
    assert blind.count(" blind") == 6


def test_a_sum_over_the_lab_by_mpirun(uneven: LabNetwork) -> None:
    said = ok("run", "--name", NAME, "--by", "mpirun", "--", sys.executable, "-c", SUM)
    assert said.count("sum 21\n") == 6


def test_torchrun_needs_even_hosts_in_order(uneven: LabNetwork) -> None:
    refused = hccl("run", "--name", NAME, "--by", "torchrun", "--", sys.executable, "-c", SUM)
    assert refused.returncode == 2 and "--by env" in refused.stderr
    commands = LAUNCHERS["torchrun"](LabNetwork.of_file(NAME, CONFIGS / "lab_star.yaml"), ["x"], {})
    assert [words[words.index("--node-rank") + 1] for words, _ in commands] == ["0", "1", "2", "3"]


def test_the_worst_status_counts_and_the_others_are_ended(uneven: LabNetwork) -> None:
    fails = "import os, signal, sys; sys.exit(7) if os.environ['RANK'] == '2' else signal.pause()"
    assert hccl("run", "--name", NAME, "--", sys.executable, "-c", fails).returncode == 7
    assert uneven.processes() == []
    waits = hccl("run", "--name", NAME, "--timeout", "1", "--", sys.executable, "-c", "import signal; signal.pause()")
    assert waits.returncode == 124 and "time is over" in waits.stderr
    assert uneven.processes() == []


def ping(lab: LabNetwork, there: str) -> int:
    """Exit status of one attempt to open a connection from h0 to a port where nobody listens: 0 if it was answered."""
    program = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 9), timeout=1.0)\n"
        "except ConnectionRefusedError: sys.exit(0)\n"
        "except OSError: sys.exit(1)\n"
    )
    command = [*lab.prefix("h0"), sys.executable, "-c", program, there]
    return subprocess.run(command, timeout=30).returncode


def test_links_change_are_cut_and_healed(uneven: LabNetwork) -> None:
    ok("set-link", "h3", "bridge", "50Mbit/s", "--name", NAME)
    shown = kernel.run("tc", "-n", uneven.namespace("h3"), "qdisc", "show", "dev", "eth0")
    assert re.search(r"rate 50Mbit", shown)
    ok("set-link", "h3", "bridge", "100Gbit/s", "--name", NAME)
    assert "tbf" not in kernel.run("tc", "-n", uneven.namespace("h3"), "qdisc", "show", "dev", "eth0")
    assert ping(uneven, "h2") == 0
    ok("cut", "h2", "bridge", "--name", NAME)
    assert ping(uneven, "h2") == 1
    assert ping(uneven, "h1") == 0
    ok("heal", "h2", "bridge", "--name", NAME)
    assert ping(uneven, "h2") == 0
    assert "no link between 'h0' and 'h1'" in hccl("cut", "h0", "h1", "--name", NAME).stderr


def test_what_a_crash_left_is_replaced(labs_are_possible: None) -> None:
    name = NAME + "c"
    made = LabNetwork.of_file(name, CONFIGS / "lab_two_sites.yaml")
    kernel.add_namespace(made.namespace("west0"))  # half of it, as after a crash
    try:
        made.up()
        assert LabNetwork.found(name).blueprint == made.blueprint
        assert {made.namespace(host) for host in made.blueprint.hosts} <= set(kernel.namespaces())
    finally:
        made.down()
    assert not [found for found in kernel.namespaces() if found.startswith(f"hccl-{name}-")]


@pytest.mark.parametrize("name", ["", "a-b", "x" * 21])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="letters and digits"):
        LabNetwork.of_file(name, UNEVEN)


def test_a_lab_that_is_not_up(labs_are_possible: None) -> None:
    missing = hccl("run", "--name", "nosuchlab", "--", "true")
    assert missing.returncode == 2 and "there is no lab 'nosuchlab'" in missing.stderr
    ok("down", "--name", "nosuchlab")
