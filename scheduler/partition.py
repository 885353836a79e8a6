"""The bucket partition whose last bucket is through earliest.

Buckets go out one after the other: bucket k ends at ``max(end of k-1, its last gradient is ready) + cost(its bytes)``.
With gradients in the order in which they are ready, the best end for the first j of them is the best over all last
buckets (i, j]: ``end[j] = min_i max(end[i], ready[j]) + cost(bytes[i:j])``; an earlier ``end[i]`` is never worse, so
this is optimal. Source: S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
Algorithms", INFOCOM 2019 (the merge condition there is this recurrence for an affine cost).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import UNIT, Bucket, BucketPlan, Span
from hccl_py.scheduler.timeline import Timeline

MOST_BUCKET_BYTES = 32 << 20
_MOST_ATOMS = 512  # more gradients than this are first joined with their neighbours


@dataclass(frozen=True)
class LinkCost:
    """Seconds of one all_reduce by its bytes: a line through points, beyond the last one with its last slope.

    Args:
        sizes_bytes: ascending.
        seconds: as many, above zero and not descending.
    """

    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes, times = self.sizes_bytes, self.seconds
        if len(sizes) != len(times) or len(sizes) < 2 or any(b <= a for a, b in pairwise(sizes)):
            raise ConfigError("a link cost needs two sizes or more, ascending, and a time for each")
        if times[0] < 0 or any(b < a for a, b in pairwise(times)):
            raise ConfigError("a link cost: times must not be below zero, nor descend")

    @classmethod
    def affine(cls, latency_s: float, bandwidth_Bps: float) -> LinkCost:
        """``latency_s + bytes / bandwidth_Bps``."""
        return cls((0.0, 1e9), (latency_s, latency_s + 1e9 / bandwidth_Bps))

    def of(self, num_bytes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Seconds for each of these sizes."""
        sizes = np.asarray(num_bytes, dtype=np.float64)
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes_bytes[-1] - self.sizes_bytes[-2])
        inside = np.interp(sizes, self.sizes_bytes, self.seconds)
        return np.asarray(inside + np.maximum(sizes - self.sizes_bytes[-1], 0.0) * slope)


@dataclass(frozen=True)
class _Atom:
    """What is never split further: spans that are ready at the same time, or nearly."""

    ready_s: float
    num_bytes: int
    spans: tuple[Span, ...]


def partition(timeline: Timeline, cost: LinkCost, *, most_bytes: int = MOST_BUCKET_BYTES) -> BucketPlan:
    """The plan whose last bucket ends earliest; of equal ones, one with large buckets.

    Gradients of different types don't share a bucket; each type is cut on its own and the buckets are sent in the
    order in which they are ready. Above 512 pieces of a type neighbours are joined first, and it is nearly optimal.

    Args:
        timeline: of all ranks together (:meth:`Timeline.of_ranks`).
        cost: of one all_reduce.
        most_bytes: of a bucket; a larger gradient is split.

    Raises:
        ConfigError: ``most_bytes`` is less than 8.
    """
    if most_bytes < 8:
        raise ConfigError(f"buckets of at most {most_bytes} bytes: 8 or more were expected")
    found: list[tuple[float, Bucket]] = []
    order = timeline.order()
    for dtype in dict.fromkeys(timeline.dtype[i] for i in order):
        atoms = _joined(_atoms(timeline, [i for i in order if timeline.dtype[i] is dtype], most_bytes), most_bytes)
        found += [
            (atoms[end - 1].ready_s, _bucket(dtype, atoms[begin:end])) for begin, end in _cuts(atoms, cost, most_bytes)
        ]
    found.sort(key=lambda one: one[0])
    return BucketPlan(tuple(bucket for _, bucket in found))


def finish_s(plan: BucketPlan, timeline: Timeline, cost: LinkCost) -> tuple[float, ...]:
    """When each bucket is through, in seconds from the beginning of backward."""
    return ends_s(plan, timeline, cost.of([bucket.num_bytes for bucket in plan.buckets]))


def ends_s(plan: BucketPlan, timeline: Timeline, seconds: Iterable[float]) -> tuple[float, ...]:
    """As :func:`finish_s`, where each bucket takes so many seconds."""
    ends, end = [], 0.0
    for bucket, took_s in zip(plan.buckets, seconds, strict=True):
        ready = max(timeline.ready_s[span.parameter] for span in bucket.spans)
        end = max(end, ready) + float(took_s)
        ends.append(end)
    return tuple(ends)


def _atoms(timeline: Timeline, order: Sequence[int], most_bytes: int) -> list[_Atom]:
    atoms = []
    for i in order:
        itemsize, numel = timeline.dtype[i].itemsize, timeline.numel[i]
        most = most_bytes // itemsize
        unit = UNIT if most >= UNIT else 1
        units = -(-numel // unit)
        pieces = -(-units // (most // unit))
        cuts = [min(units * k // pieces * unit, numel) for k in range(pieces + 1)]
        for begin, end in pairwise(cuts):
            atoms.append(_Atom(timeline.ready_s[i], (end - begin) * itemsize, (Span(i, begin, end - begin),)))
    return atoms


def _joined(atoms: list[_Atom], most_bytes: int) -> list[_Atom]:
    """At most about `_MOST_ATOMS` of them: neighbours that are small and ready at nearly the same time are one."""
    if len(atoms) <= _MOST_ATOMS:
        return atoms
    bytes_each = min(2 * sum(atom.num_bytes for atom in atoms) // _MOST_ATOMS + 1, most_bytes)
    span_s = 2 * (atoms[-1].ready_s - atoms[0].ready_s) / _MOST_ATOMS
    joined: list[_Atom] = []
    since_s, total, spans = 0.0, 0, []  # type: float, int, list[Span]
    for atom, following in zip(atoms, [*atoms[1:], None], strict=True):
        since_s = atom.ready_s if not spans else since_s
        spans += atom.spans
        total += atom.num_bytes
        if following is None or total + following.num_bytes > bytes_each or following.ready_s - since_s > span_s:
            joined.append(_Atom(atom.ready_s, total, tuple(spans)))
            total, spans = 0, []
    return joined


def _cuts(atoms: Sequence[_Atom], cost: LinkCost, most_bytes: int) -> list[tuple[int, int]]:
    """``(begin, end)`` of each bucket."""
    count = len(atoms)
    upto = np.concatenate(([0.0], np.cumsum([float(atom.num_bytes) for atom in atoms])))
    ends, last = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for j in range(1, count + 1):
        low = min(int(np.searchsorted(upto, upto[j] - most_bytes)), j - 1)
        tries = np.maximum(ends[low:j], atoms[j - 1].ready_s) + cost.of(upto[j] - upto[low:j])
        best = int(np.argmin(tries))
        ends[j], last[j] = tries[best], low + best
    cuts, j = [], count
    while j > 0:
        cuts.append((int(last[j]), j))
        j = int(last[j])
    return cuts[::-1]


def _bucket(dtype: DType, atoms: Sequence[_Atom]) -> Bucket:
    spans: list[Span] = []
    for span in (span for atom in atoms for span in atom.spans):
        before = spans[-1] if spans else None
        if before is not None and before.parameter == span.parameter and before.offset + before.count == span.offset:
            spans[-1] = Span(span.parameter, before.offset, before.count + span.count)
        else:
            spans.append(span)
    return Bucket(dtype, tuple(spans))
