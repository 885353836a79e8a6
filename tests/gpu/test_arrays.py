"""Communicator on CuPy arrays, over real GPUs: each test is a run of tests/gpu/workers/arrays.py under mpirun."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "workers" / "arrays.py"


def run(ranks: int, task: str) -> None:
    cupy = pytest.importorskip("cupy", reason="no CuPy here")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no CUDA GPU on this machine")
    command = [sys.executable, str(WORKER), task]
    if shutil.which("mpirun"):
        command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", str(ranks), *command]
    else:
        command[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    said = done.stdout.count(f"{task} is right")
    assert done.returncode == 0 and said == ranks, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("task", ["collectives", "streams", "messages", "random", "kinds", "graph"])
def test_two_ranks(task: str) -> None:
    run(2, task)


def test_three_ranks() -> None:
    run(3, "collectives")
