from __future__ import annotations

import os
import sys

import pytest

from hccl_py.core.errors import CollectiveTimeoutError
from hccl_py.launch import Job, run


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_status_and_output_of_a_job_that_ends() -> None:
    job = run([sys.executable, "-c", "import sys; print('one'); sys.stderr.write('two\\n'); sys.exit(3)"], timeout_s=30)
    assert job.status == 3 and set(job.output.split()) == {"one", "two"}


def test_open_mpi_gets_its_variables_and_ours_win() -> None:
    code = "import os; print(os.environ['OMPI_ALLOW_RUN_AS_ROOT'], os.environ['OMPI_MCA_mpi_yield_when_idle'])"
    job = run([sys.executable, "-c", code], timeout_s=30, environ={"OMPI_MCA_mpi_yield_when_idle": "0"})
    assert job.output.split() == ["1", "0"]


# a launcher whose child has left its session and its process group, as torchrun's and mpirun's have
FAMILY = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"], start_new_session=True)
print(child.pid, flush=True)
threading.Event().wait()
"""


def test_job_that_hangs_is_killed_with_all_that_it_started() -> None:
    with (
        pytest.raises(CollectiveTimeoutError, match="did not end in 2 s"),
        Job([sys.executable, "-c", FAMILY], timeout_s=2) as job,
    ):
        for line in job.lines():
            child = int(line)
    assert gone(child)
    assert job.status not in (0, None)


def test_leaving_the_block_early_ends_the_job() -> None:
    with Job([sys.executable, "-c", FAMILY], timeout_s=60) as job:
        child = int(next(iter(job.lines())))
    assert gone(child)
