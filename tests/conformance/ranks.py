"""Ranks: the members of one group as threads of this process. They run closures together, and a hang is a failure."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from hccl_py import _native
from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.engine import Engine

TRANSPORTS = ("loopback", "shm", "tcp")
HANG_S = 60.0  # no test needs as long, on the slowest machine

T = TypeVar("T")
Task = Callable[[Communicator], T]


class Hang(AssertionError):
    """Some ranks did not come back."""


class Ranks:
    """A connected group of ``size`` ranks over one transport; a context manager.

    Args:
        transport: ``"loopback"``, ``"shm"`` or ``"tcp"``.
        settings: fields of :class:`Env`, or a function of the rank that returns them.
    """

    def __init__(
        self, transport: str, size: int, settings: dict[str, Any] | Callable[[int], dict[str, Any]] | None = None
    ) -> None:
        self.transport = transport
        self.size = size
        self.comms: list[Communicator] = []
        meeting = ThreadBootstrap.Meeting(size, HANG_S)
        hub = _native.Hub(size) if transport == "loopback" else None
        made: dict[int, Communicator] = {}

        def connect(rank: int) -> None:
            own = settings(rank) if callable(settings) else (settings or {})
            transports = () if transport == "loopback" else (transport,)
            env = Env(**{"transports": transports or ("shm",), "timeout_s": HANG_S, **own})
            made[rank] = Communicator(Engine(ThreadBootstrap(meeting, rank), env=env, hub=hub))

        self._inbox: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(size)]
        self._threads = [
            threading.Thread(target=self._serve, args=(inbox,), name=f"rank {rank}", daemon=True)
            for rank, inbox in enumerate(self._inbox)
        ]
        for thread in self._threads:
            thread.start()
        try:
            _first_failure(self._all(connect, HANG_S))
        except BaseException:
            self._dismiss()
            raise
        self.comms = [made[rank] for rank in range(size)]

    def run(self, task: Task[T], timeout_s: float = HANG_S) -> list[T]:
        """``task`` on all ranks; what each returned. Raises what the first rank raised, Hang if one does not return."""
        outcomes = self.outcomes(task, timeout_s)
        _first_failure(outcomes)
        return outcomes

    def outcomes(self, task: Task[Any], timeout_s: float = HANG_S) -> list[Any]:
        """As :meth:`run`, but what a rank raised stands where its result would be."""
        return self._all(lambda rank: task(self.comms[rank]), timeout_s)

    def _all(self, task: Callable[[int], Any], timeout_s: float) -> list[Any]:
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

        def attempt(rank: int) -> None:
            try:
                done.put((rank, task(rank)))
            except BaseException as error:
                done.put((rank, error))

        for rank, inbox in enumerate(self._inbox):
            inbox.put(lambda rank=rank: attempt(rank))  # type: ignore[misc]
        outcomes: dict[int, Any] = {}
        until = time.monotonic() + timeout_s
        while len(outcomes) < self.size:
            try:
                rank, outcome = done.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise Hang(self._where(outcomes, timeout_s)) from None
            outcomes[rank] = outcome
        return [outcomes[rank] for rank in range(self.size)]

    def _where(self, outcomes: dict[int, Any], timeout_s: float) -> str:
        frames = sys._current_frames()
        lines = [f"after {timeout_s:g} s, over {self.transport}:"]
        for rank, thread in enumerate(self._threads):
            if rank in outcomes:
                lines.append(f"rank {rank} returned {outcomes[rank]!r}")
            elif thread.ident in frames:
                lines.append(f"rank {rank} is at\n" + "".join(traceback.format_stack(frames[thread.ident])[-4:]))
        for comm in self.comms:
            comm.engine.abort("a rank hangs")
        return "\n".join(lines)

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (task := inbox.get()) is not None:
            task()

    def close(self) -> None:
        """End the group and its threads. Idempotent."""
        for comm in self.comms:
            comm.close()
        self._dismiss()

    def _dismiss(self) -> None:
        for inbox in self._inbox:
            inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first_failure(outcomes: list[Any]) -> None:
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            outcome.add_note(f"raised on rank {rank}") if hasattr(outcome, "add_note") else None
            raise outcome
