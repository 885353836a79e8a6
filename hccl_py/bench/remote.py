"""A library that lives in another environment: its ranks are processes of their own, asleep until it is their turn.

Each rank of the benchmark has one partner, and a socket to it. A line of JSON asks, a line of JSON answers; in between
the partner is blocked in its read, so that it takes nothing from those who are being measured.

Started as ``python -m hccl_py.bench.remote NAME TOKEN PORT...`` by that environment's own mpirun.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hccl_py.bench.control import Control
from hccl_py.bench.meter import LocalMeter, Task
from hccl_py.bench.peers import LocalLibrary, Mpi, Request, UnsupportedError
from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.env import Env, child_environ
from hccl_py.core.errors import ConfigError, HcclError
from hccl_py.launch import Job

START_S = 60.0  # until the partners have come
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_", "MPIR_", "HYDRA_", "HYDI_", "SLURM_", "TORCHELASTIC_")
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Line:
    """Messages through a socket, a line of JSON each."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = peer
        self._file = peer.makefile("rw", encoding="utf-8")

    def send(self, message: Any) -> None:
        """Send ``message``, plain data."""
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()

    def receive(self) -> Any:
        """Return the next message; None if the other side has gone."""
        text = self._file.readline()
        return json.loads(text) if text else None

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()


class Remote:
    """A library whose ranks run in the environment ``folder``; it makes meters instead of calls.

    Raises:
        ConfigError: there is no such environment, or its ranks did not come.
    """

    def __init__(self, name: str, control: Control, timeout_s: float, folder: Path) -> None:
        self.name = name
        self._job: Job | None = None
        mpirun, python = folder / "bin" / "mpirun", folder / "bin" / "python"
        for program in (mpirun, python):
            if not os.access(program, os.X_OK):
                raise ConfigError(
                    f"--compare {name}: no {program}; make install makes it, --env {name}=FOLDER names another"
                )
        with socket.create_server(("127.0.0.1", 0)) as door:
            told = control.gather((door.getsockname()[1], secrets.token_hex(16)))
            token = told[0][1]
            failed = ""
            if control.rank == 0:
                ports = [str(port) for port, _ in told]
                job = [str(mpirun), "-n", str(control.size), str(python), "-m", __name__, name, token, *ports]
                self._job = Job(job, timeout_s=1e6, environ=_environ())
                self._job.__enter__()
            try:
                self._line = _accept(door, token, min(timeout_s, START_S))
            except OSError as error:
                failed = f"its rank {control.rank} did not come: {error}"
        failures = [text for text in control.gather(failed) if text]
        if failures:
            said = "" if self._job is None else self._end_job()
            raise ConfigError(f"--compare {name}: {'; '.join(failures)}\n{said}")
        self.version = str(self._ask("version"))

    def meter(self, task: Task, watchdog: Watchdog) -> RemoteMeter:
        """Let the partner bind its library to buffers of its own. Raises UnsupportedError."""
        absent = self._ask("prepare", **asdict(task))
        if absent:
            raise UnsupportedError(str(absent))
        return RemoteMeter(self._ask, watchdog)

    def close(self) -> None:
        """Send the partner home."""
        with contextlib.suppress(OSError):  # the job may end as soon as one of its ranks does
            self._line.send({"do": "close"})
            self._line.receive()
            self._line.close()
        if self._job is not None:
            self._end_job()

    def _end_job(self) -> str:
        assert self._job is not None
        self._job.__exit__(None, None, None)
        return self._job.output

    def _ask(self, what: str, **details: Any) -> Any:
        self._line.send({"do": what, **details})
        answer = self._line.receive()
        if answer is None or "error" in answer:
            why = "it has gone" if answer is None else answer["error"]
            raise ConfigError(f"--compare {self.name}: the process in the other environment failed: {why}")
        return answer["result"]


class RemoteMeter:
    """A :class:`~hccl_py.bench.meter.Meter` whose work is done by the partner."""

    def __init__(self, ask: Callable[..., Any], watchdog: Watchdog) -> None:
        self._ask, self._watchdog = ask, watchdog

    def check(self) -> int:
        """See Meter."""
        return int(self._ask("check"))

    def once_s(self) -> float:
        """See Meter."""
        return float(self._ask("once"))

    def turn(self, samples: int, calls: int, warmup: int) -> list[float]:
        """See Meter."""
        times_s: list[float] = self._ask("turn", samples=samples, calls=calls, warmup=warmup)
        self._watchdog.feed("the next library")
        return times_s


class Partner:
    """The other end: does what it is asked with one library, until it is told to close or the asker is gone."""

    def __init__(self, library: LocalLibrary, control: Control, line: Line, watchdog: Watchdog) -> None:
        self._library, self._control, self._line, self._watchdog = library, control, line, watchdog
        self._meter: LocalMeter | None = None

    def serve(self, idle_s: float) -> None:
        """Answer until the end; feeds the watchdog every ``idle_s`` seconds while there is nothing to do."""
        while True:
            while not select.select([self._line.socket], [], [], idle_s)[0]:
                self._watchdog.feed("waiting to be asked")
            message = self._line.receive()
            if message is None:
                os._exit(1)  # the asker is gone: the others of this job may be in a collective
            self._watchdog.feed(f"{self._library.name} {message['do']}")
            if message["do"] == "close":
                self._meter = None
                self._line.send({"result": None})
                return
            try:
                self._line.send({"result": self._do(message)})
            except HcclError as error:
                self._line.send({"error": str(error)})

    def _do(self, message: dict[str, Any]) -> Any:
        what = message.pop("do")
        if what == "version":
            return self._library.version
        if what == "prepare":
            return self._prepare(Task(**message))
        meter = self._meter
        if meter is None:
            raise ConfigError(f"asked to {what} before anything was prepared")
        if what == "turn":
            return meter.turn(message["samples"], message["calls"], message["warmup"])
        return meter.check() if what == "check" else meter.once_s()

    def _prepare(self, task: Task) -> str:
        """Return why it cannot be done, "" if it can."""
        self._meter = None
        oracle = task.oracle()
        buffers = oracle.allocate(self._control.rank, task.in_place)
        try:
            bound = self._library.prepare(
                Request(oracle.case, oracle.dtype, oracle.op, oracle.root, buffers, task.in_place)
            )
        except UnsupportedError as error:
            return str(error)
        doing = f"{self._library.name} {task.case} {task.count} elements"
        self._meter = LocalMeter(self._control, self._watchdog, oracle, bound, buffers, doing)
        return ""


def _accept(door: socket.socket, token: str, timeout_s: float) -> Line:
    """Return the line to the first caller who shows ``token``. Raises OSError after ``timeout_s``."""
    door.settimeout(timeout_s)
    while True:
        peer, _ = door.accept()
        peer.settimeout(timeout_s)
        line = Line(peer)
        try:
            shown = line.receive()
        except (OSError, ValueError):
            shown = None
        if isinstance(shown, str) and hmac.compare_digest(shown, token):
            peer.settimeout(None)
            return line
        line.close()


def _environ() -> dict[str, str]:
    """Return this environment without what a launcher put in it: the partner's launcher has its own."""
    return {
        name: value
        for name, value in child_environ().items()
        if not name.startswith(LAUNCHER_PREFIXES) and name not in LAUNCHER_NAMES
    }


def main(arguments: list[str]) -> None:
    """Be the partner of one rank."""
    from hccl_py.bootstrap import detect

    name, token, *ports = arguments
    control = Control(detect(Env.from_environ()))
    line = Line(socket.create_connection(("127.0.0.1", int(ports[control.rank])), timeout=60))
    line.socket.settimeout(None)
    line.send(token)
    with Watchdog(control.rank, timeout_s=120) as watchdog:
        library = Mpi(name, control)
        Partner(library, control, line, watchdog).serve(idle_s=10)
        control.barrier()
        library.close()


if __name__ == "__main__":
    main(sys.argv[1:])
