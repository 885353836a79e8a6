"""Adaptation: tells the control loop what each reduction took, and keeps the partition that it wants next."""

from __future__ import annotations

from hccl_py.control import ControlLoop
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.measurement import BucketRun
from hccl_py.torch.ddp.reducer import Reducer
from hccl_py.torch.process_group import HcclProcessGroup


class Adaptation:
    """One wrapper's scheduler on this rank.

    Args:
        free_buckets: False: only plans change.
    """

    def __init__(self, reducer: Reducer, group: HcclProcessGroup, *, free_buckets: bool) -> None:
        self._reducer = reducer
        parameters = reducer.parameters
        self._loop = ControlLoop(
            group._open(), parameters.numel, parameters.dtype, reducer.plan, free_buckets=free_buckets
        )
        self._wanted: BucketPlan | None = None

    def reduced(self) -> None:
        """Call on all ranks when a reduction is over. A collective."""
        reducer = self._reducer
        decision = self._loop.step(
            reducer.ready_s,
            backward_s=reducer.backward_s,
            exposed_s=reducer.exposed_s,
            buckets=self._runs,
        )
        if decision is not None and decision.buckets is not None:
            self._wanted = decision.buckets

    def _runs(self) -> list[BucketRun]:
        reducer = self._reducer
        times = zip(reducer.layout.buckets, reducer.started_s, reducer.ended_s, strict=True)
        return [BucketRun(bucket.num_bytes, started_s, ended_s) for bucket, started_s, ended_s in times]

    def adopt(self) -> None:
        """Use the partition that is wanted, if there is one. Between steps, no collective."""
        if self._wanted is not None:
            plan, self._wanted = self._wanted, None
            self._reducer.adopt(plan)

    def close(self) -> None:
        """Finish what is under way. Idempotent."""
        self._loop.close()
