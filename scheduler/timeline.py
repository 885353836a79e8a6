"""Timeline: when backward has made each parameter's gradient; the scheduler cuts buckets by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType


@dataclass(frozen=True)
class Timeline:
    """One entry for each parameter that gets a gradient, in the order of the model's parameters.

    Attributes:
        ready_s: seconds from the beginning of backward until the gradient is complete.
        numel: elements of the gradient (of a complex one: two for each).
        dtype: element type of the gradient.
        backward_s: seconds that backward takes, communication not counted; at least the latest ``ready_s``.

    Raises:
        ConfigError: tuples of different lengths, no parameter, a time below zero or not finite, or no elements.
    """

    ready_s: tuple[float, ...]
    numel: tuple[int, ...]
    dtype: tuple[DType, ...]
    backward_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.ready_s or not len(self.ready_s) == len(self.numel) == len(self.dtype):
            counts = f"{len(self.ready_s)} times, {len(self.numel)} sizes, {len(self.dtype)} types"
            raise ConfigError(f"timeline: {counts}; one of each for every parameter was expected, and one at least")
        for i, (ready_s, numel) in enumerate(zip(self.ready_s, self.numel, strict=True)):
            if not 0 <= ready_s < float("inf") or numel < 1:
                raise ConfigError(f"timeline: parameter {i} is ready after {ready_s} s and has {numel} elements")
        object.__setattr__(self, "backward_s", max(self.backward_s, max(self.ready_s)))

    def __len__(self) -> int:
        return len(self.ready_s)

    @property
    def num_bytes(self) -> tuple[int, ...]:
        """Bytes of each parameter's gradient."""
        return tuple(n * dtype.itemsize for n, dtype in zip(self.numel, self.dtype, strict=True))

    def order(self) -> tuple[int, ...]:
        """Parameters by the time when they are ready; those that are ready at once, last parameter first."""
        return tuple(sorted(range(len(self)), key=lambda i: (self.ready_s[i], -i)))

    @classmethod
    def of_ranks(cls, timelines: Sequence[Timeline]) -> Timeline:
        """The timeline of all ranks together: a gradient is ready when the last rank has it.

        Raises:
            ConfigError: the ranks have different parameters.
        """
        first = timelines[0]
        for rank, other in enumerate(timelines):
            if (other.numel, other.dtype) != (first.numel, first.dtype):
                raise ConfigError(f"timeline: ranks 0 and {rank} have gradients of different sizes or types")
        ready_s = tuple(max(times) for times in zip(*(t.ready_s for t in timelines), strict=True))
        return cls(ready_s, first.numel, first.dtype, max(t.backward_s for t in timelines))
