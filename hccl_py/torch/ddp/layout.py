"""Layout: a bucket plan in memory. Where each gradient lies, and which ranges travel together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import Bucket as Planned
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.torch.ddp.arena import Arena
from hccl_py.torch.ddp.parameters import Parameters

MakeArena = Callable[[DType, tuple[int, ...]], Arena]


@dataclass
class Bucket:
    """A range of an arena that travels as one.

    Attributes:
        index: its place in the order of sending.
        flat: the elements.
        parameters: indices of those with elements here.
        left: how many of them have no gradient yet in this backward.
    """

    index: int
    dtype: DType
    flat: Tensor
    parameters: tuple[int, ...]
    left: int = field(default=0)

    @property
    def num_bytes(self) -> int:
        """Of its elements."""
        return self.flat.numel() * self.dtype.itemsize


class Layout:
    """The buckets of ``plan``.

    Args:
        make: gives the arena for a type and an order: a new one, or one that exists.

    Raises:
        ConfigError: the plan is not for these parameters, or the spans of a gradient are not sent one after the other.
    """

    def __init__(self, plan: BucketPlan, parameters: Parameters, make: MakeArena) -> None:
        self.plan = plan
        self.arenas = {dtype: make(dtype, order) for dtype, order in orders(plan, parameters).items()}
        self.views: list[Tensor] = [self.arenas[parameters.dtype[i]].views[i] for i in range(len(parameters))]
        ends = dict.fromkeys(self.arenas, 0)
        self.buckets: list[Bucket] = []
        for index, planned in enumerate(plan.buckets):
            arena = self.arenas[planned.dtype]
            begin, last = ends[planned.dtype], planned.spans[-1]
            end = arena.begins[last.parameter] + last.offset + last.count
            ends[planned.dtype] = end
            members = tuple(dict.fromkeys(span.parameter for span in planned.spans))
            self.buckets.append(Bucket(index, planned.dtype, arena.flat[begin:end], members))
        self.buckets_of: list[list[Bucket]] = [[] for _ in range(len(parameters))]
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                self.buckets_of[parameter].append(bucket)

    def forget(self) -> None:
        """Let go of all but the arenas: another layout comes, and may use them."""
        self.views, self.buckets, self.buckets_of = [], [], []

    def pieces(self, bucket: Bucket) -> list[tuple[int, Tensor]]:
        """What of each gradient is in ``bucket``: whole gradients in their shape, parts as vectors."""
        planned: Planned = self.plan.buckets[bucket.index]
        found = []
        for span in planned.spans:
            view = self.views[span.parameter]
            if span.count == view.numel() * (2 if view.is_complex() else 1):
                found.append((span.parameter, view))
            else:
                arena = self.arenas[bucket.dtype]
                begin = arena.begins[span.parameter] + span.offset
                found.append((span.parameter, arena.flat[begin : begin + span.count]))
        return found


def orders(plan: BucketPlan, parameters: Parameters) -> dict[DType, tuple[int, ...]]:
    """By type, the parameters in the order in which they are sent.

    Raises:
        ConfigError: see :class:`Layout`.
    """
    if not plan.covers(parameters.numel, parameters.dtype):
        raise ConfigError(f"the bucket plan is not one for the {len(parameters)} parameters of this module")
    found: dict[DType, list[int]] = {}
    sent: dict[int, int] = {}
    for bucket in plan.buckets:
        order = found.setdefault(bucket.dtype, [])
        for span in bucket.spans:
            if span.offset != sent.get(span.parameter, 0) or (span.offset and order[-1] != span.parameter):
                raise ConfigError(
                    f"bucket plan: the spans of {parameters.names[span.parameter]!r} are not sent one after the other"
                )
            if not span.offset:
                order.append(span.parameter)
            sent[span.parameter] = span.offset + span.count
    return {dtype: tuple(order) for dtype, order in found.items()}
