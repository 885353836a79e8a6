"""The process group on CUDA tensors, over real GPUs: each test is a run of tests/gpu/workers/group.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "workers" / "group.py"


def gpus() -> int:
    torch = pytest.importorskip("torch")
    return int(torch.cuda.device_count())


def run(ranks: int, task: str, timeout_s: float = 100) -> str:
    if not gpus():
        pytest.skip("no CUDA GPU on this machine")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(WORKER), task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("task", ["collectives", "messages", "streams_and_graphs", "beside", "training", "late"])
def test_two_ranks(task: str) -> None:
    run(2, task)


@pytest.mark.parametrize("ranks", [2, 4])
def test_random_calls_match_float64(ranks: int) -> None:
    calls = (200 if ranks == 2 else 40) if gpus() >= 2 else 40  # ranks that share a GPU wait for their time slices
    assert f"{calls} random calls are right" in run(ranks, str(calls))


def test_a_dead_peer_is_named() -> None:
    """torchrun itself fails, as a rank was killed; what counts is what the other said."""
    if not gpus():
        pytest.skip("no CUDA GPU on this machine")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(WORKER), "lost"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "rank 0 heard after" in done.stdout, done.stderr[-4000:]
