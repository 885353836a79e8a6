"""hccl-py bench as a user starts it: under mpirun and torchrun, next to gloo and Open MPI."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from hccl_py.bench.cases import CASES
from hccl_py.core.env import child_environ
from hccl_py.launch import find_program, mpirun, run, torchrun

HCCL_PY = str(Path(sysconfig.get_path("scripts")) / "hccl-py")
ROW = re.compile(r"^ +(\w+) +(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+) +(\S.*)$", re.MULTILINE)

needs_open_mpi = pytest.mark.skipif(
    "Open MPI" not in run([find_program("mpirun") or "true", "--version"], 30).output, reason="mpirun is not Open MPI's"
)


@needs_open_mpi
@pytest.mark.timeout(400)
def test_all_reduce_next_to_gloo_and_open_mpi(tmp_path: Path) -> None:
    """The command of the README, with fewer samples."""
    out = tmp_path / "out.json"
    command = [HCCL_PY, "bench", "all_reduce", "-b", "8", "-e", "2M", "-f", "4", "--compare", "gloo,openmpi"]
    job = run(mpirun(4, [*command, "--json", str(out), "-n", "4", "-w", "1"]), 380)
    assert job.status == 0, job.output
    assert "# Out of bounds values : 0 OK" in job.output
    sizes = [8 * 4**step for step in range(10)]
    rows = ROW.findall(job.output)
    assert [(row[0], int(row[1])) for row in rows] == [(n, s) for s in sizes for n in ("hccl_py", "gloo", "openmpi")]
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["ranks"] == 4 and len(record["rows"]) == len(rows)
    assert set(record["versions"]) >= {"python", "numpy", "hccl_py", "gloo", "openmpi"}
    for row in record["rows"]:
        for form in ("out_of_place", "in_place"):
            assert len(row[form]["samples_s"]) == 4 and row[form]["wrong"] == 0
            assert row[form]["busbw_Bps"] == pytest.approx(1.5 * row["size_bytes"] / row[form]["time_s"])


@needs_open_mpi
@pytest.mark.timeout(200)
def test_every_collective_is_right_on_three_ranks() -> None:
    command = [HCCL_PY, "bench", "all", "-b", "3000", "-e", "3000", "-n", "2", "-w", "1", "-m", "1", "-r", "all"]
    job = run(mpirun(3, [*command, "--compare", "openmpi"]), 180)
    assert job.status == 0, job.output
    assert "# Out of bounds values : 0 OK" in job.output
    for name in CASES:
        assert f"\n# {name} " in job.output
    roots = {(row[0], row[5]) for row in ROW.findall(job.output)}
    assert roots == {(name, root) for name in ("hccl_py", "openmpi") for root in ("-1", "0", "1", "2")}


@pytest.mark.timeout(200)
def test_every_type_and_operator_is_right_on_two_ranks() -> None:
    command = [HCCL_PY, "bench", "all_reduce", "-b", "1000", "-e", "1000", "-n", "1", "-w", "0", "-m", "1", "-d", "all"]
    job = run(mpirun(2, [*command, "-o", "all"]), 180)
    assert job.status == 0, job.output
    assert "# Out of bounds values : 0 OK" in job.output
    assert len({row[3:5] for row in ROW.findall(job.output)}) == 6 * 5 + 9 * 7


@needs_open_mpi
@pytest.mark.skipif(not Path(f"{sys.prefix}-mpich").is_dir(), reason="make install makes the environment of MPICH")
@pytest.mark.timeout(200)
def test_mpich_takes_its_turns_in_an_environment_of_its_own(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "png")}
    command = [HCCL_PY, "bench", "all", "-b", "64", "-e", "256", "-f", "4", "-n", "2", "-w", "1", "-m", "1"]
    outputs = ["--json", str(files["json"]), "--csv", str(files["csv"]), "--plot", str(files["png"])]
    job = run(mpirun(2, [*command, "--compare", "openmpi,mpich", *outputs]), 180)
    assert job.status == 0, job.output
    assert "# Out of bounds values : 0 OK" in job.output and "the best of them at each size" in job.output
    record = json.loads(files["json"].read_text(encoding="utf-8"))
    assert "mpich" in record["versions"]["mpich"].lower() and "open mpi" in record["versions"]["openmpi"].lower()
    measured = {(row["collective"], row["library"]) for row in record["rows"]}
    assert measured == {(name, library) for name in CASES for library in ("hccl_py", "openmpi", "mpich")}
    assert {one["baseline"] for one in record["ratios"]} == {"openmpi", "mpich"}
    lines = files["csv"].read_text(encoding="utf-8").splitlines()
    cells = [row[form] for row in record["rows"] for form in ("out_of_place", "in_place")]
    assert len(lines) == 1 + sum("absent" not in cell for cell in cells)
    assert files["png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(200)
def test_under_torchrun_next_to_gloo() -> None:
    command = ["--no-python", HCCL_PY, "bench", "all_gather", "-b", "8K", "-e", "8K", "-n", "2", "--compare", "gloo"]
    job = run(torchrun(2, command), 180)
    assert job.status == 0, job.output
    assert [row[0] for row in ROW.findall(job.output)] == ["hccl_py", "gloo"]


@needs_open_mpi
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "bfloat16", "--compare", "openmpi"], "openmpi has no element type bfloat16"),
        (["--compare", "mpich", "--env", "mpich=/nowhere"], "no /nowhere/bin/mpirun"),
        (["--compare", "nccl"], "no such baseline"),
        (["-r", "2"], "the root must be a rank from 0 to 1"),
    ],
)
def test_what_cannot_be_measured_ends_the_job_with_the_reason(arguments: list[str], message: str) -> None:
    job = run(mpirun(2, [HCCL_PY, "bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1", *arguments]), 90)
    assert job.status == 2 and message in job.output


@pytest.mark.timeout(100)
def test_ranks_that_are_alone_are_refused() -> None:
    """As under the mpirun of another MPI: the launcher says four, the library says one."""
    environ = child_environ(PMI_SIZE="4", PMI_RANK="0")
    job = run([sys.executable, "-m", "hccl_py.cli.main", "bench", "all_reduce", "-b", "8", "-e", "8"], 90, environ)
    assert job.status == 2 and re.search(r"mpich started 4 ranks.*world of 1", job.output)


HANGS = """
import threading
from mpi4py import MPI
from hccl_py.bench.watchdog import Watchdog
rank = MPI.COMM_WORLD.rank
with Watchdog(rank, timeout_s=3, grace_s=3) as watchdog:
    MPI.COMM_WORLD.Barrier()
    watchdog.feed("the barrier that one rank does not enter")
    def absent():
        threading.Event().wait()
    def present():
        MPI.COMM_WORLD.Barrier()
    absent() if rank == 1 else present()
"""


@pytest.mark.timeout(100)
def test_watchdog_prints_the_stacks_of_all_ranks() -> None:
    job = run(mpirun(3, [sys.executable, "-c", HANGS]), 90)
    assert job.status not in (0, None)
    for rank in range(3):
        assert re.search(rf"\[rank {rank}\] no progress for \d+ s while the barrier that one rank", job.output)
        assert re.search(rf"\[rank {rank}\] .* in {'absent' if rank == 1 else 'present'}", job.output)
