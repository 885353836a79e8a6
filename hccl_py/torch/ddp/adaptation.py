"""Adaptation: tells the control loop what each reduction took, and keeps what it wants next."""

from __future__ import annotations

from hccl_py.control import ControlLoop
from hccl_py.scheduler.budgets import Budgets
from hccl_py.scheduler.decision import Decision
from hccl_py.scheduler.measurement import BucketRun
from hccl_py.torch.ddp.reducer import Reducer
from hccl_py.torch.process_group import HcclProcessGroup


class Adaptation:
    """One wrapper's scheduler on this rank.

    Args:
        free_buckets: False: only plans change, and how a bucket travels.
        codecs: what the scheduler may choose for buckets of float32.
    """

    def __init__(
        self, reducer: Reducer, group: HcclProcessGroup, *, free_buckets: bool, codecs: tuple[str, ...] = ("exact",)
    ) -> None:
        self._reducer = reducer
        parameters = reducer.parameters
        self._loop = ControlLoop(
            group._open(), parameters.numel, parameters.dtype, reducer.plan, free_buckets=free_buckets,
            budgets=Budgets(codecs=codecs),
        )  # fmt: skip
        self._wanted: Decision | None = None

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
            self._wanted = decision

    def _runs(self) -> list[BucketRun]:
        reducer = self._reducer
        times = zip(reducer.layout.buckets, reducer.started_s, reducer.ended_s, strict=True)
        return [BucketRun(bucket.num_bytes, started_s, ended_s) for bucket, started_s, ended_s in times]

    def adopt(self) -> None:
        """Use the partition that is wanted, if there is one. Between steps, no collective."""
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            assert wanted.buckets is not None
            self._reducer.adopt(wanted.buckets, wanted.tuning, [choice.codec for choice in wanted.choices])

    def close(self) -> None:
        """Finish what is under way. Idempotent."""
        self._loop.close()
