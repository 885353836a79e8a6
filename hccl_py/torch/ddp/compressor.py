"""Compressor: averages the buckets of one wrapper with fewer bytes; errors are kept by parameter, not by bucket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hccl_py.communicator import Communicator
from hccl_py.compression.blocks import BLOCK, BlockCodec
from hccl_py.compression.codec import Codec
from hccl_py.compression.policy import LEAST_COUNT, Switching
from hccl_py.compression.span import Span
from hccl_py.core.errors import ConfigError
from hccl_py.gradients import GradientReducer
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.torch.ddp.layout import Bucket, Layout
from hccl_py.torch.ddp.parameters import Parameters
from hccl_py.torch.process_group import HcclProcessGroup

_PADDING = 1 << 40  # number of the parameter that lies between others
_now_s = time.perf_counter


class Averaged:
    """A bucket that is done; ``ended_s``: when."""

    def __init__(self) -> None:
        self.ended_s = _now_s()

    def done(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Nothing is left to do."""


class Compressor:
    """Compresses gradients of ``parameters`` over ``group``.

    Args:
        compression, options: see :class:`~hccl_py.gradients.GradientReducer`.

    Raises:
        ConfigError: there is no such codec, or option.
    """

    def __init__(
        self,
        group: HcclProcessGroup,
        parameters: Parameters,
        compression: Codec | Switching | str,
        options: Mapping[str, Any],
    ) -> None:
        known = {"ramp", "guard", "seed", "most_error"}
        if set(options) - known:
            raise ConfigError(
                f"compression_options: {', '.join(sorted(set(options) - known))}; there are {', '.join(sorted(known))}"
            )
        self._parameters = parameters
        self._reducer = GradientReducer(Communicator(group._open()), compression, **options)
        self._spans: dict[tuple[BucketPlan, int], tuple[Span, ...]] = {}
        self.step = 0

    @property
    def reducer(self) -> GradientReducer:
        """What does the work."""
        return self._reducer

    @property
    def cuts(self) -> bool:
        """True if buckets may cut parameters: blocks of 256 are the same wherever, what is largest in a part is not."""
        return all(codec.exact or isinstance(codec, BlockCodec) for codec in self._reducer.codecs)

    def check(self, plan: BucketPlan) -> None:
        """Raise ConfigError if the cuts of ``plan`` would change what codecs make of a parameter."""
        for bucket in plan.buckets:
            for span in bucket.spans:
                whole = span.count == self._parameters.numel[span.parameter]
                if span.offset % BLOCK or not (whole or self.cuts):
                    name = self._parameters.names[span.parameter]
                    wanted = f"at multiples of {BLOCK} elements" if self.cuts else "nowhere"
                    raise ConfigError(f"bucket plan: with this compression {name!r} may be cut {wanted}")

    def average(self, bucket: Bucket, layout: Layout, flat: Tensor) -> Averaged | None:
        """Average ``flat``, a bucket's elements, over the ranks; None: it is to be sent exactly, as an average."""
        codec = self._reducer.codec(flat.numel() * 4, self.step)
        if self._reducer.is_plain(codec):
            return None
        self._reducer.reduce(flat.detach(), self._spans_of(bucket, layout), self.step)
        return Averaged()

    def _spans_of(self, bucket: Bucket, layout: Layout) -> tuple[Span, ...]:
        key = (layout.plan, bucket.index)
        if key not in self._spans:
            if any(plan != layout.plan for plan, _ in self._spans):
                self._spans.clear()
            self._spans[key] = self._lay_out(bucket, layout)
        return self._spans[key]

    def _lay_out(self, bucket: Bucket, layout: Layout) -> tuple[Span, ...]:
        arena = layout.arenas[bucket.dtype]
        first = at = int(bucket.flat.storage_offset() - arena.flat.storage_offset())
        found: list[Span] = []
        for planned in layout.plan.buckets[bucket.index].spans:
            begin = arena.begins[planned.parameter] + planned.offset
            if begin > at:
                found.append(Span(_PADDING + planned.parameter, begin - at))
            found.append(self._span(planned.parameter, planned.offset, planned.count))
            at = begin + planned.count
        rest = first + bucket.flat.numel() - at
        return tuple([*found, Span(_PADDING - 1, rest)] if rest else found)

    def _span(self, parameter: int, offset: int, count: int) -> Span:
        tensor, numel = self._parameters.tensors[parameter], self._parameters.numel[parameter]
        if tensor.dim() < 2 or tensor.is_complex():
            return Span(parameter, count, offset)
        if count < numel:
            return Span(parameter, count, offset, part=numel >= LEAST_COUNT)
        transposed = tensor.dim() == 2 and not tensor.is_contiguous()
        return Span(parameter, count, offset, rows=tensor.shape[1 if transposed else 0])

    def state_dict(self) -> dict[str, Any]:
        """Of this rank, between steps."""
        return {"next_step": self.step, **self._reducer.state_dict()}

    def load(self, state: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        """Take up the state of this rank, or (a list) those of all ranks of a world of any size."""
        states = state if isinstance(state, list) else [state]
        for each in states:
            if "next_step" not in each:
                raise ConfigError(f'state of compression: "next_step" is wanted, it has {list(each)}')
        if isinstance(state, list):
            self._reducer.load_states(state)
        else:
            self._reducer.load_state_dict(state)
        self.step = int(states[0]["next_step"])
