"""Takes the samples of one library on one case: barrier, a batch of calls, the clock. Also checks the result."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from hccl_py.bench.cases import CASES, Buffers
from hccl_py.bench.control import Control
from hccl_py.bench.oracle import Oracle
from hccl_py.bench.peers import Bound, Library, LocalLibrary
from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.types import DType, ReduceOp


class Meter(Protocol):
    """What the measuring loop asks of a library that is bound to its buffers; collective over the ranks."""

    def check(self) -> int:
        """Fill the buffers, run once, return how many elements of this rank are wrong."""
        ...

    def once_s(self) -> float:
        """Return the time of one call, in seconds."""
        ...

    def turn(self, samples: int, calls: int, warmup: int) -> list[float]:
        """Return ``samples`` times of a call in seconds, each the mean of ``calls``, after ``warmup`` calls."""
        ...


@dataclass(frozen=True)
class Task:
    """One case at one size in one form: plain data, so that it can be told to another process."""

    case: str
    dtype: int
    op: int
    root: int
    count: int
    n: int
    in_place: bool

    @classmethod
    def of(cls, oracle: Oracle, in_place: bool) -> Task:
        """Return the task that ``oracle`` can check."""
        return cls(oracle.case.name, int(oracle.dtype), int(oracle.op), oracle.root, oracle.count, oracle.n, in_place)

    def oracle(self) -> Oracle:
        """Return what checks it."""
        return Oracle(CASES[self.case], DType(self.dtype), ReduceOp(self.op), self.root, self.count, self.n)


@runtime_checkable
class MetersItself(Protocol):
    """A library that is not called from this process: it takes its samples itself."""

    def meter(self, task: Task, watchdog: Watchdog) -> Meter:
        """Bind it to buffers of its own. Raises UnsupportedError."""
        ...


class MeteredLibrary(MetersItself, Library, Protocol):
    """The same, with all that a library has."""


AnyLibrary: TypeAlias = LocalLibrary | MeteredLibrary


class LocalMeter:
    """A library in this process."""

    def __init__(
        self, control: Control, watchdog: Watchdog, oracle: Oracle, bound: Bound, buffers: Buffers, doing: str
    ) -> None:
        self._control, self._watchdog, self._oracle, self._doing = control, watchdog, oracle, doing
        self._bound = bound
        self._buffers = buffers if bound.buffers is None else bound.buffers

    def check(self) -> int:
        """See :class:`Meter`."""
        self._watchdog.feed(f"checking {self._doing}")
        self._oracle.fill(self._buffers, self._control.rank)
        self._control.barrier()
        self._bound.run()
        return self._oracle.count_wrong(self._bound.received, self._control.rank)

    def once_s(self) -> float:
        """See :class:`Meter`."""
        self._control.barrier()
        start_s = time.perf_counter()
        self._bound.run()
        return time.perf_counter() - start_s

    def turn(self, samples: int, calls: int, warmup: int) -> list[float]:
        """See :class:`Meter`. The garbage collector rests meanwhile."""
        run, barrier, clock = self._bound.run, self._control.barrier, time.perf_counter
        times_s = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(warmup if calls > 1 else min(warmup, 1)):
                run()
            for _ in range(samples):
                self._watchdog.feed(self._doing)
                barrier()
                if calls > 1:
                    run()  # the ranks leave the barrier one by one: one call, not timed, brings them into step
                start_s = clock()
                for _ in range(calls):
                    run()
                times_s.append((clock() - start_s) / calls)
        finally:
            if collecting:
                gc.enable()
        return times_s
