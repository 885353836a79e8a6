"""The lab itself: packets go, rates hold, cuts cut, counters count, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab
from lab_transfer import transfer_s
from lab_wire import check_wire, hierarchical_bytes, ring_bytes

from hccl_py.core.errors import ConfigError
from hccl_py.lab import kernel
from hccl_py.lab.kernel import Counters
from hccl_py.lab.network import STATE, sweep

_CRASH = """
import os, signal, sys
from pathlib import Path
from hccl_py.lab.network import LabNetwork
LabNetwork.of_file(sys.argv[1], Path(sys.argv[2])).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""
CLUSTER = Path(__file__).parents[2] / "cluster_configs" / "lab_star.yaml"


@pytest.fixture(scope="module")
def small(labs_are_possible: None) -> Iterator[Lab]:
    """Two nodes at 100 Mbit/s."""
    with Lab("small", 2, "100Mbit/s") as made:
        yield made


def _transfer_s(lab: Lab, nbytes: int, timeout_s: float = 20.0) -> float:
    """Send ``nbytes`` from node 0 to node 1; the seconds it took. Raises CalledProcessError if that fails."""
    return transfer_s(lab.prefix(0), lab.prefix(1), lab.address(1), nbytes, timeout_s)


def test_bytes_are_counted_and_the_rate_holds(small: Lab) -> None:
    nbytes = 5_000_000
    before = [small.counters(node) for node in range(2)]
    took_s = _transfer_s(small, nbytes)
    sent, received = (small.counters(node) - old for node, old in enumerate(before))
    assert nbytes <= sent.sent_bytes <= 1.1 * nbytes
    assert nbytes <= received.received_bytes <= 1.1 * nbytes
    assert sent.received_bytes < 0.1 * nbytes  # only acknowledgements
    assert took_s > 0.9 * nbytes * 8 / 100e6, "faster than the link"


def test_a_rate_changes_at_once(small: Lab) -> None:
    small.rate(1, "20Mbit/s")
    try:
        assert _transfer_s(small, 2_000_000) > 0.9 * 2_000_000 * 8 / 20e6
    finally:
        small.rate(1, "100Mbit/s")


def test_cut_and_heal(small: Lab) -> None:
    small.cut(1)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        _transfer_s(small, 1, timeout_s=1.0)
    assert "timed out" in raised.value.stderr or "No route to host" in raised.value.stderr
    small.heal(1)
    assert _transfer_s(small, 1) < 20


def test_a_node_has_its_own_host_name_and_network(small: Lab) -> None:
    names, networks = set(), set()
    for node in range(2):
        program = "import os, socket; print(socket.gethostname(), os.readlink('/proc/self/ns/net'))"
        command = [*small.prefix(node), sys.executable, "-c", program]
        name, network = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        names.add(name)
        networks.add(network)
    assert names == {small.host(0), small.host(1)}
    assert len(networks | {os.readlink("/proc/self/ns/net")}) == 3


def test_down_ends_the_processes_and_leaves_nothing(labs_are_possible: None) -> None:
    with Lab("gone", 1) as made:
        program = "import signal; print('up', flush=True); signal.pause()"
        process = subprocess.Popen([*made.prefix(0), sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        assert made.processes(0) == [process.pid]
    assert process.wait(timeout=10) == -9
    process.stdout.close()
    assert not [name for name in kernel.namespaces() if "gone-" in name]


def test_what_a_killed_run_left_is_swept(labs_are_possible: None, small: Lab) -> None:
    name = f"crash{os.getpid()}"
    crash = subprocess.run([sys.executable, "-c", _CRASH, name, str(CLUSTER)], timeout=60)
    assert crash.returncode == -9
    left = [found for found in kernel.namespaces() if f"-{name}-" in found]
    assert len(left) == 5 and (STATE / name).exists()
    assert name in sweep()
    assert not set(left) & set(kernel.namespaces()) and not (STATE / name).exists()
    assert small.counters(0), "a living lab was swept"


def test_obstacles_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert kernel.obstacle() == "network namespaces need root"
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 0)
        patch.setenv("PATH", str(tmp_path))
        assert kernel.obstacle() == "needs iproute2: there is no ip"
        for name in ("ip", "tc", "unshare"):
            (tmp_path / name).write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n", encoding="utf-8")
            (tmp_path / name).chmod(0o755)
        assert "gives no network namespaces" in (kernel.obstacle() or "") and "not permitted" in (
            kernel.obstacle() or ""
        )


@pytest.mark.parametrize("arguments", [("a b", 1), ("a", 2, ["1Gbit/s"]), ("a", 2, "fast")])
def test_labs_that_cannot_be_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((ValueError, ConfigError)):
        Lab(*arguments)  # type: ignore[arg-type]


def test_wire_check() -> None:
    """It takes what headers add, and rejects a ring's traffic, a lost direction, and too little."""
    size = 4 << 20
    assert (hierarchical_bytes(2, size), ring_bytes(4, size)) == (size, 1.5 * size)
    good = Counters(int(1.05 * size), int(0.99 * size))
    check_wire([good, good], hierarchical_bytes(2, size))
    for bad in (Counters(int(1.5 * size), size), Counters(size, 0), Counters(size // 2, size)):
        with pytest.raises(AssertionError, match="host 1"):
            check_wire([good, bad], hierarchical_bytes(2, size))
