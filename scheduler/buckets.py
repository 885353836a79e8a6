"""BucketPlan: which gradients travel together, in which order; a value that ranks compare by its digest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType

UNIT = 256  # elements; where parameters are cut at multiples of it, compression does not see the cuts


@dataclass(frozen=True, order=True)
class Span:
    """``count`` elements from ``offset`` on, of the flattened gradient of one parameter."""

    parameter: int
    offset: int
    count: int

    def __post_init__(self) -> None:
        if self.parameter < 0 or self.offset < 0 or self.count < 1:
            raise ConfigError(f"span {self.parameter}[{self.offset}:+{self.count}]: not within a parameter, or empty")


@dataclass(frozen=True)
class Bucket:
    """Spans of one element type, one after the other in one all_reduce."""

    dtype: DType
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise ConfigError("a bucket needs a span")

    @property
    def numel(self) -> int:
        """Elements."""
        return sum(span.count for span in self.spans)

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class BucketPlan:
    """Buckets in the order in which they are sent. Every element of every parameter is in exactly one span.

    Raises:
        ConfigError: no bucket; spans of a parameter that overlap or leave a gap; a parameter in buckets of two types.
    """

    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ConfigError("a bucket plan needs a bucket")
        dtypes: dict[int, DType] = {}
        spans: dict[int, list[Span]] = {}
        for bucket in self.buckets:
            for span in bucket.spans:
                spans.setdefault(span.parameter, []).append(span)
                if dtypes.setdefault(span.parameter, bucket.dtype) is not bucket.dtype:
                    raise ConfigError(f"parameter {span.parameter} is in buckets of two element types")
        for parameter, own in spans.items():
            expected = 0
            for span in sorted(own):
                if span.offset != expected:
                    raise ConfigError(f"parameter {parameter}: spans overlap or leave a gap at element {expected}")
                expected += span.count
        if sorted(spans) != list(range(len(spans))):
            missing = min(set(range(len(spans))) - set(spans))
            raise ConfigError(f"parameter {missing} is in no bucket")

    def __len__(self) -> int:
        return len(self.buckets)

    def covers(self, numel: Sequence[int], dtype: Sequence[DType]) -> bool:
        """True if this plan is one for parameters of these sizes and types."""
        total = [0] * len(numel)
        for bucket in self.buckets:
            for span in bucket.spans:
                if span.parameter >= len(numel) or dtype[span.parameter] is not bucket.dtype:
                    return False
                total[span.parameter] += span.count
        return total == list(numel)

    def to_bytes(self) -> bytes:
        """The canonical form: equal plans, and only they, have equal bytes."""
        parts = [b"hccl_py buckets 1", struct.pack("<Q", len(self.buckets))]
        for bucket in self.buckets:
            parts.append(struct.pack("<QQ", int(bucket.dtype), len(bucket.spans)))
            parts += [struct.pack("<QQQ", span.parameter, span.offset, span.count) for span in bucket.spans]
        return b"".join(parts)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical form, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def fixed(
        cls, numel: Sequence[int], dtype: Sequence[DType], most_bytes: int, order: Sequence[int], whole: bool = False
    ) -> BucketPlan:
        """Buckets of at most ``most_bytes``, filled in the given order of parameters; a larger parameter is split.

        It is split at multiples of 256 elements, where that is possible; with ``whole`` it is a bucket of its own.

        One bucket is open for each element type. They are sent in the order in which they are complete.
        """
        if most_bytes < 8:
            raise ConfigError(f"buckets of at most {most_bytes} bytes: 8 or more were expected")
        done: list[Bucket] = []
        open_: dict[DType, list[Span]] = {}
        for parameter in order:
            kind = dtype[parameter]
            most = most_bytes // kind.itemsize
            most -= most % UNIT if most > UNIT else 0
            for offset in range(0, numel[parameter], numel[parameter] if whole else most):
                count = numel[parameter] if whole else min(most, numel[parameter] - offset)
                spans = open_.setdefault(kind, [])
                if spans and sum(span.count for span in spans) + count > most:
                    done.append(Bucket(kind, tuple(spans)))
                    spans.clear()
                spans.append(Span(parameter, offset, count))
        done += [Bucket(kind, tuple(spans)) for kind, spans in open_.items() if spans]
        return cls(tuple(done))
