"""Span: a run of elements of one parameter. What is compressed is a list of them, one after the other in an array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hccl_py.compression.blocks import BLOCK
from hccl_py.core.errors import ConfigError


@dataclass(frozen=True)
class Span:
    """``count`` elements of parameter number ``parameter`` from ``offset`` on.

    ``rows``: of the parameter, if the span is all of it and it is a matrix; 0: not one. ``part``: it is a part of
    a large one.
    """

    parameter: int
    count: int
    offset: int = 0
    rows: int = 0
    part: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.offset < 0 or self.offset % BLOCK:
            raise ConfigError(f"{self}: counts are not negative, and offsets are multiples of {BLOCK}")
        if self.rows < 0 or (self.rows and self.count % self.rows):
            raise ConfigError(f"{self}: {self.count} elements are no matrix of {self.rows} rows")

    @property
    def dims(self) -> int:
        """2 for what belongs to a matrix, else 1."""
        return 2 if self.rows > 1 or self.part else 1


Spans = tuple[Span, ...]


def check_spans(spans: Sequence[Span], count: int) -> Spans:
    """The spans as a tuple. Raises ConfigError unless they fill ``count`` elements and do not overlap."""
    total = sum(span.count for span in spans)
    if total != count:
        raise ConfigError(f"the spans have {total} elements; the array has {count}")
    ends: dict[int, int] = {}
    for span in sorted(spans, key=lambda span: (span.parameter, span.offset)):
        if span.count and ends.get(span.parameter, 0) > span.offset:
            raise ConfigError(f"{span} overlaps another span of its parameter")
        ends[span.parameter] = max(ends.get(span.parameter, 0), span.offset + span.count)
    return tuple(spans)


def placed(spans: Spans) -> Iterator[tuple[slice, Span]]:
    """Where each span lies in an array that holds them one after the other, and the span."""
    at = 0
    for span in spans:
        yield slice(at, at + span.count), span
        at += span.count
