"""Reducer: gathers gradients in buckets while backward makes them, and starts each bucket's all_reduce in order.

The states of a step, as in torch's reducer: a forward pass arms it (:meth:`Reducer.prepare`); the first gradient begins
the reduction; the last one starts the last bucket and queues the end, which runs when backward is over. A second
backward before that goes on with the same reduction. Backward passes that no forward pass has armed stay local.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import Tuning
from hccl_py.scheduler.timeline import Timeline
from hccl_py.torch.ddp.arena import Arena
from hccl_py.torch.ddp.compressor import Compressor
from hccl_py.torch.ddp.graph import leaves_below
from hccl_py.torch.ddp.hooks import CommHook, GradBucket, HookWork
from hccl_py.torch.ddp.layout import Bucket, Layout, orders
from hccl_py.torch.ddp.parameters import Parameters
from hccl_py.torch.process_group import HcclProcessGroup
from hccl_py.torch.sums import Started, start_narrow_sum, start_sum

_AVG = int(ReduceOp.AVG)
_now_s = time.perf_counter


class Reducer:
    """The gradients of one module on this rank.

    Args:
        parameters: whose gradients are averaged.
        group: over whose ranks.
        plan: the first partition, the same on all ranks.
        find_unused: some parameters may get no gradient in some steps; not together with ``static``.
        static: every step uses the same parameters equally often.
        divide_views: divide gradients that lie in the bucket already, instead of multiplying by 1/n (torch does so with
            ``gradient_as_bucket_view``; where n is no power of two the last bit differs).
        compressor: averages buckets with fewer bytes; None: sums of what was divided before.
    """

    def __init__(
        self,
        parameters: Parameters,
        group: HcclProcessGroup,
        plan: BucketPlan,
        *,
        find_unused: bool,
        static: bool,
        divide_views: bool,
        compressor: Compressor | None = None,
    ) -> None:
        self.parameters = parameters
        self._group = group
        self._find_unused, self._static, self._divide_views = find_unused, static, divide_views
        count = len(parameters)
        self._compressor = compressor
        if compressor is not None:
            compressor.check(plan)
        self._layout = Layout(plan, parameters, self._arena)
        self._tuning, self._narrow = Tuning(), ()  # type: Tuning, tuple[bool, ...]
        self._hook: tuple[CommHook, Any] | None = None
        self._divisor = float(group.size())
        self._armed = False  # a forward pass has asked for a reduction that is not over
        self._begun = False  # a gradient of it is there
        self._queued = False  # its end is
        self._next = 0  # the bucket to start next
        self._works: list[Started | None] = []
        self._used = bytearray(count)  # by index: has it had a gradient since the last reduction?
        self._used_anywhere = bytes([1]) * count
        self._used_work: tuple[Any, Tensor] | None = None
        self._ready = bytearray(count)
        self._unused: Sequence[int] = ()
        self._firings = [0] * count  # of a static graph: how often a parameter gets gradients in a backward
        self._awaited = [1] * count
        self._known = not static  # a static graph is known from its first step on
        self._armed_s = 0.0
        self.ready_s = [0.0] * count
        # Of the last reduction, in seconds since the end of the forward pass: start and end of each bucket's
        # all_reduce, and the end of backward; then, how long it waited there.
        self.started_s: list[float] = []
        self.ended_s: list[float] = []
        self.exposed_s = 0.0
        self.backward_s = 0.0
        self.reductions = 0
        self.after: Callable[[], Callable[[], None] | None] | None = None  # a weak method to call after each

    # Between steps.

    @property
    def plan(self) -> BucketPlan:
        """The partition in use."""
        return self._layout.plan

    @property
    def layout(self) -> Layout:
        """The partition in memory."""
        return self._layout

    def adopt(self, plan: BucketPlan, tuning: Tuning | None = None, codecs: Sequence[str] = ()) -> None:
        """Use another partition from now on. All ranks must do so between the same two steps.

        What ``.grad`` of the parameters hold stays; tensors that were taken from ``.grad`` before do not follow.

        Args:
            plan: the partition.
            tuning: None: the usual one.
            codecs: of each bucket: "exact" or (float32) "bf16"; empty: all exact.

        Raises:
            ConfigError: a reduction is under way, or the plan is not one for these parameters.
        """
        if self._begun:
            raise ConfigError("a bucket plan can be adopted between steps only, and a reduction is under way")
        orders(plan, self.parameters)
        if self._compressor is not None:
            self._compressor.check(plan)
        self._tuning = Tuning() if tuning is None else tuning
        self._narrow = tuple(codec == "bf16" for codec in codecs)
        if plan == self.plan:
            return
        old, tensors = self._layout, self.parameters.tensors
        grads = {i: p.grad for i, p in enumerate(tensors) if p.grad is not None and _same(p.grad, old.views[i])}
        if not grads:
            old.forget()  # nothing in it is needed: the new arenas take its place
        self._layout = new = Layout(plan, self.parameters, self._arena)
        for index, grad in grads.items():
            view = new.views[index]
            if not _same(grad, view):
                view.copy_(grad)
                tensors[index].grad = view

    def _arena(self, dtype: DType, order: tuple[int, ...]) -> Arena:
        old = getattr(self, "_layout", None)
        if old is not None and dtype in old.arenas and old.arenas[dtype].order == order:
            arena: Arena = old.arenas[dtype]
            return arena
        if old is not None:
            old.arenas.pop(dtype, None)
        return Arena(self._group._open(), dtype, order, self.parameters)

    def set_hook(self, state: Any, hook: CommHook) -> None:
        """Call ``hook(state, bucket)`` in place of every all_reduce; it divides, too."""
        if self._hook is not None or self._compressor is not None:
            raise ConfigError("a communication hook, or compression, was asked for before; there can be one")
        if self._begun:
            raise ConfigError("a communication hook can be registered between steps only")
        self._hook = (hook, state)

    @property
    def has_hook(self) -> bool:
        """True if a communication hook takes the place of all_reduces."""
        return self._hook is not None

    def set_divisor(self, divisor: float) -> None:
        """Divide the sums of the step that is armed by this instead of the number of ranks."""
        self._divisor = divisor

    def timeline(self) -> Timeline:
        """When this rank's last backward had each gradient, from the end of the forward pass on."""
        return Timeline(tuple(self.ready_s), self.parameters.numel, self.parameters.dtype, self.backward_s)

    # A step.

    def prepare(self, outputs: Sequence[Tensor]) -> None:
        """Arm: the next backward averages. ``outputs``: what the forward pass returned.

        Raises:
            ConfigError: the reduction before is not over, as some parameters got no gradient.
        """
        if self._begun:
            missing = [name for name, ready in zip(self.parameters.names, self._ready, strict=True) if not ready]
            raise ConfigError(
                f"the last backward made no gradient for {len(missing)} parameters ({', '.join(missing[:5])}"
                f"{', ...' if len(missing) > 5 else ''}), so their average is still awaited: pass "
                "find_unused_parameters=True if some are not used in every step, and let all outputs take part in the "
                "loss; or an error has interrupted the last backward"
            )
        self._armed, self._queued, self._next = True, False, 0
        self._divisor = float(self._group.size())
        self._works, self.started_s, self.ended_s = [], [], []
        self._ready = bytearray(len(self.parameters))
        for bucket in self._layout.buckets:
            bucket.left = len(bucket.parameters)
        if self._find_unused or not self._known:
            if self._find_unused:
                used = leaves_below(outputs) if outputs else None
                self._unused = [i for i, p in enumerate(self.parameters.tensors) if used and id(p) not in used]
            for output in outputs:
                if output.grad_fn is not None:
                    output.register_hook(self._output_has_gradient)  # type: ignore[no-untyped-call]
        if self._static:
            self._awaited = list(self._firings)
        self._armed_s = _now_s()

    def _output_has_gradient(self, grad: Tensor) -> None:
        """Backward begins: what it leaves without a gradient when it ends gets none."""
        if self._armed and not self._queued:
            self._queue(self._end_with_all)

    def gradient(self, index: int) -> None:
        """Called by autograd: ``.grad`` of parameter ``index`` is complete."""
        self._used[index] = 1
        if not self._armed:
            return
        if not self._known:
            self._firings[index] += 1
            self.ready_s[index] = _now_s() - self._armed_s
            if not self._queued:
                self._queue(self._end_with_all)
            return
        if not self._begun:
            self._begin()
        if self._static:
            self._awaited[index] -= 1
            if self._awaited[index] > 0:
                return
        if self._ready[index]:
            raise ConfigError(
                f"parameter {self.parameters.names[index]!r} got a second gradient in one step: it is used outside of "
                "the forward pass, or by several re-entrant checkpoints; static_graph=True allows the latter"
            )
        self.ready_s[index] = _now_s() - self._armed_s
        self._take(index, True)

    def _begin(self) -> None:
        self._begun = True
        for index in self._unused:
            self.ready_s[index] = 0.0
            self._take(index, False)

    def _take(self, index: int, has_gradient: bool) -> None:
        """Put a gradient in its place, divided; start what is complete by it."""
        parameter, view = self.parameters.tensors[index], self._layout.views[index]
        grad, divisor = parameter.grad, self._divisor
        if self._hook is not None or self._compressor is not None:
            divisor = 1.0  # they divide
        if grad is None:
            view.zero_()
        elif not grad.is_sparse and _same(grad, view):
            if divisor != 1.0:
                if self._divide_views:
                    view.div_(divisor)
                else:
                    view.mul_(1.0 / divisor)
        else:
            grad = grad.detach()
            if grad.is_sparse:
                grad = grad.to_dense()
            if divisor != 1.0:
                torch.mul(grad, 1.0 / divisor, out=view)
            else:
                view.copy_(grad)
            if has_gradient:
                parameter.grad = view
        self._ready[index] = 1
        for bucket in self._layout.buckets_of[index]:
            bucket.left -= 1
        buckets = self._layout.buckets
        while self._next < len(buckets) and not buckets[self._next].left:  # one order, the same on every rank
            self._start(buckets[self._next])
            self._next += 1
            if self._next == len(buckets):
                self._started_all()

    def _start(self, bucket: Bucket) -> None:
        self.started_s.append(_now_s() - self._armed_s)
        if self._hook is None:
            self._works.append(self._averaging(bucket, bucket.flat))
        else:
            hook, state = self._hook
            self._works.append(HookWork(hook(state, GradBucket(bucket, self._layout, self.parameters)), bucket.flat))

    def _averaging(self, bucket: Bucket, flat: Tensor) -> Started | None:
        """Start the average of ``flat``, this rank's part of a bucket; None: it is there."""
        chunk_bytes = self._tuning.chunk_bytes
        if self._compressor is None:
            if self._narrow and self._narrow[bucket.index]:
                return start_narrow_sum(self._group, flat, chunk_bytes=chunk_bytes)
            return start_sum(self._group, flat, bucket.dtype, chunk_bytes=chunk_bytes)
        averaged = self._compressor.average(bucket, self._layout, flat)
        return averaged if averaged is not None else start_sum(self._group, flat, bucket.dtype, _AVG, chunk_bytes)

    def _started_all(self) -> None:
        if self._reports_use():
            used = torch.tensor(list(self._used), dtype=torch.int32)
            self._used_work = (start_sum(self._group, used, DType.INT32), used)
        if not self._queued:
            self._queue(self._end)

    def take_part(self) -> None:
        """The collectives of one step, with zeros and for the others: this rank's data has run out."""
        works: list[Started | None] = []
        for bucket in self._layout.buckets:
            zeros = torch.zeros_like(bucket.flat)
            if self._hook is None:
                works.append(self._averaging(bucket, zeros))
            else:
                hook, state = self._hook
                shadow = GradBucket(bucket, self._layout, self.parameters)
                shadow.set_buffer(zeros)
                works.append(HookWork(hook(state, shadow), zeros))
        if self._reports_use():
            works.append(start_sum(self._group, torch.zeros(len(self.parameters), dtype=torch.int32), DType.INT32))
        for work in works:
            if work is not None:
                work.wait()
        self._step_compressor()

    def _step_compressor(self) -> None:
        """A step is over on all ranks."""
        if self._compressor is None:
            return
        self._compressor.step += 1
        if self._divisor != self._group.size():  # it has divided by the number of ranks
            for arena in self._layout.arenas.values():
                arena.flat.mul_(self._group.size() / self._divisor)

    def _reports_use(self) -> bool:
        """True if this step ends with an all_reduce of who used which parameters."""
        return self._find_unused or not self._known

    # The end of backward.

    def _queue(self, end: Any) -> None:
        self._queued = True
        Variable._execution_engine.queue_callback(end)

    def _end_with_all(self) -> None:
        """Backward is over; what has no gradient yet gets none."""
        if not self._armed:
            return
        self._begin_late()
        for index, ready in enumerate(self._ready):
            if not ready:
                self._take(index, bool(self._used[index]))
        if not self._known:
            self._known = True
            self._unused = [index for index, count in enumerate(self._firings) if not count]
        self._end()

    def _begin_late(self) -> None:
        """A step of which nothing has been sent while it ran."""
        if not self._begun and self._known:
            self._begin()
        self._begun = True

    def _end(self) -> None:
        begin_s = _now_s()
        self.backward_s = begin_s - self._armed_s
        for work in self._works:
            if work is not None:
                work.wait()
            ended_s = getattr(work, "ended_s", 0.0) or _now_s()
            self.ended_s.append(ended_s - self._armed_s)
        if self._used_work is not None:
            work, used = self._used_work
            if work is not None:
                work.wait()
            self._used_anywhere, self._used_work = bytes(count > 0 for count in used.tolist()), None
        if self._find_unused or self._static:
            for index, parameter in enumerate(self.parameters.tensors):
                if self._used_anywhere[index]:
                    view = self._layout.views[index]
                    if parameter.grad is None or not _same(parameter.grad, view):
                        parameter.grad = view
        self._step_compressor()
        self._works = []
        self._used = bytearray(len(self.parameters))
        self._armed = self._begun = False
        self.reductions += 1
        self.exposed_s = _now_s() - begin_s
        then = self.after() if self.after is not None else None
        if then is not None:
            then()


def _same(grad: Tensor, view: Tensor) -> bool:
    """True if ``grad`` is the place in the arena."""
    return not grad.is_sparse and grad.data_ptr() == view.data_ptr() and grad.dtype == view.dtype
