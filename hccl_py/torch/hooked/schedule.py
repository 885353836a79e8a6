"""Schedule: the scheduler of buckets that somebody else cuts, known by the order and the sizes in which they come."""

from __future__ import annotations

import time

from hccl_py.control import ControlLoop
from hccl_py.core.types import Collective, DType
from hccl_py.scheduler.buckets import Bucket, BucketPlan, Span
from hccl_py.scheduler.decision import Tuning
from hccl_py.scheduler.measurement import BucketRun
from hccl_py.torch.process_group import HcclProcessGroup

_now_s = time.perf_counter
_STEADY = 2  # backward passes in a row with the same buckets, then it begins


class Schedule:
    """Of one module, on one rank. A bucket is to the control loop what a gradient is elsewhere.

    Args:
        group: over whose ranks.
        collective: by which buckets are sent.
    """

    def __init__(self, group: HcclProcessGroup, collective: Collective) -> None:
        self._group, self._collective = group, collective
        self._loop: ControlLoop | None = None
        self._shape: list[tuple[int, DType]] = []  # of the buckets of the last pass
        self._same = 0
        self._units: list[tuple[int, DType]] = []  # of this pass, so far
        self._ready_s: list[float] = []
        self._begin_s = 0.0
        self.tuning = Tuning()

    @property
    def loop(self) -> ControlLoop | None:
        """What decides; None: not yet."""
        return self._loop

    def ready(self, numel: int, dtype: DType) -> None:
        """The next bucket is complete on this rank: so many elements of one block of the collective."""
        if not self._units:
            self._begin_s = _now_s()
        self._units.append((numel, dtype))
        self._ready_s.append(_now_s() - self._begin_s)

    def over(self, waited_s: float, ended_s: list[float]) -> None:
        """A backward pass is over on all ranks. A collective.

        Args:
            waited_s: how long this rank waited at its end.
            ended_s: when each bucket was through, on the clock of ``time.perf_counter``.
        """
        units, ready_s = self._units, self._ready_s
        self._units, self._ready_s = [], []
        if units != self._shape:
            self.close()
            self._shape, self._same = units, 0
        self._same += 1
        if self._same < _STEADY or self._group.size() == 1:
            return
        if self._loop is None:
            plan = BucketPlan(tuple(Bucket(dtype, (Span(i, 0, n),)) for i, (n, dtype) in enumerate(units)))
            numel, dtypes = zip(*units, strict=True)
            self._loop = ControlLoop(
                self._group._open(), numel, dtypes, plan, free_buckets=False, collective=self._collective
            )
        runs = [
            BucketRun(numel * dtype.itemsize, begun_s, at_s - self._begin_s)
            for (numel, dtype), begun_s, at_s in zip(units, ready_s, ended_s, strict=True)
        ]
        decision = self._loop.step(ready_s, backward_s=ready_s[-1], exposed_s=waited_s, buckets=lambda: runs)
        if decision is not None:
            self.tuning = decision.tuning

    def abandon(self) -> None:
        """Forget a pass that an error has ended."""
        self._units, self._ready_s = [], []

    def close(self) -> None:
        """End what is under way. Idempotent; all ranks do so between the same two passes."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self.tuning = Tuning()
