"""Arrangement: how gradients travel, and what it is predicted to cost; the policy compares arrangements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import PlanChoice, Tuning
from hccl_py.scheduler.partition import LinkCost, ends_s, partition
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.timeline import Timeline
from hccl_py.topology.graph import Topology

CAST_Bps = 2e9  # bytes of float32 that a core turns into bfloat16 and back
_CLEARLY = 0.05  # a known arrangement is given up for a new one that is predicted to end so much earlier
_MIB = 1 << 20
# What is tried where the model has nothing to say: buckets of at most so much, in the order of the gradients; pieces of
# a bucket; connections to a peer.
CAPS_BYTES, CHUNKS_BYTES, CHANNELS = (_MIB, 5 * _MIB, 25 * _MIB), (_MIB, 4 * _MIB), (1,)


@dataclass(frozen=True)
class Arrangement:
    """Buckets, the graph for which plans are chosen, what is tuned, and how each bucket is encoded.

    Attributes:
        codecs: of each bucket; empty: all exact.
    """

    buckets: BucketPlan
    topology: Topology
    tuning: Tuning = field(default_factory=Tuning)
    codecs: tuple[str, ...] = ()

    def codec(self, bucket: int) -> str:
        """Of a bucket."""
        return self.codecs[bucket] if self.codecs else "exact"


class Arranger:
    """Prices arrangements and finds the best one. Pure.

    Args:
        free_plans, free_buckets: False: the policy has no say in them.
        most_bucket_bytes: of a bucket.
        codecs: what buckets of float32 may be encoded with.
        most_channels: connections to a peer.
    """

    def __init__(
        self,
        pricing: Pricing,
        *,
        free_plans: bool,
        free_buckets: bool,
        most_bucket_bytes: int,
        codecs: tuple[str, ...] = ("exact",),
        most_channels: int = 1,
    ) -> None:
        self._pricing, self._free_plans, self._free_buckets = pricing, free_plans, free_buckets
        self._most_bucket_bytes, self._narrows = most_bucket_bytes, "bf16" in codecs
        self._most_channels = most_channels

    def seconds(self, one: Arrangement, topology: Topology, scale: float = 1.0) -> npt.NDArray[np.float64]:
        """Of each bucket's all_reduce."""
        cost = self._cost(one, topology, scale)
        sizes = np.array([bucket.num_bytes for bucket in one.buckets.buckets], np.float64)
        narrow = np.array([one.codec(k) == "bf16" for k in range(len(sizes))])
        return np.where(narrow, _narrow_s(cost, sizes), cost.of(sizes))

    def end_s(self, one: Arrangement, topology: Topology, timeline: Timeline, scale: float = 1.0) -> float:
        """When the last bucket is through, from the beginning of backward."""
        return ends_s(one.buckets, timeline, self.seconds(one, topology, scale))[-1]

    def best(
        self,
        current: Arrangement,
        topology: Topology,
        timeline: Timeline,
        scale: float = 1.0,
        known: Arrangement | None = None,
    ) -> Arrangement:
        """What ends earliest; of what ends at nearly the same time what is known, of equal ones what changes least."""
        graphs = [current.topology]
        if self._free_plans and topology != current.topology:
            graphs.append(topology)
        found = [current]
        for graph in graphs:
            whole = replace(current, topology=graph)
            found.append(whole)
            if self._free_buckets:
                cost = self._cost(whole, topology, scale)
                for tried in [cost, _narrowed(cost)] if self._narrows else [cost]:
                    cut = partition(timeline, tried, most_bytes=self._most_bucket_bytes)
                    found.append(replace(whole, buckets=cut, codecs=()))
        if self._narrows:
            found += [self._narrow(one, topology, timeline, scale) for one in found]
        best = min(found, key=lambda one: self.end_s(one, topology, timeline, scale))
        if known is not None:
            known_s, best_s = (self.end_s(one, topology, timeline, scale) for one in (known, best))
            if known_s <= (1 + _CLEARLY) * best_s:
                return known
        return best

    def _narrow(self, one: Arrangement, topology: Topology, timeline: Timeline, scale: float) -> Arrangement:
        """Encode buckets where that makes the end earlier; those that are hidden anyway stay exact."""
        cost = self._cost(one, topology, scale)
        sizes = np.array([bucket.num_bytes for bucket in one.buckets.buckets], np.float64)
        exact_s, narrow_s = cost.of(sizes), _narrow_s(cost, sizes)
        wide = np.array([bucket.dtype is not DType.FLOAT32 for bucket in one.buckets.buckets])
        wide |= narrow_s > 0.9 * exact_s
        end = ends_s(one.buckets, timeline, np.where(wide, exact_s, narrow_s))[-1]
        for k in np.flatnonzero(~wide):
            wide[k] = True
            if ends_s(one.buckets, timeline, np.where(wide, exact_s, narrow_s))[-1] > end * (1 + 1e-9):
                wide[k] = False
        return replace(one, codecs=() if wide.all() else tuple("exact" if w else "bf16" for w in wide))

    def arms(self, current: Arrangement, timeline: Timeline) -> Iterator[tuple[str, Arrangement]]:
        """What differs from ``current`` in one thing that only trying can tell, each with a sentence about it."""
        if self._free_buckets and not current.codecs:
            for most in CAPS_BYTES:
                cut = BucketPlan.fixed(timeline.numel, timeline.dtype, most, timeline.order())
                if cut != current.buckets:
                    yield f"tries buckets of {most // _MIB} MiB", replace(current, buckets=cut)
        largest = max(bucket.num_bytes for bucket in current.buckets.buckets)
        for chunk in (0, *CHUNKS_BYTES):
            if chunk < largest and chunk != current.tuning.chunk_bytes:
                what = f"pieces of {chunk // _MIB} MiB" if chunk else "whole buckets"
                yield f"tries {what}", replace(current, tuning=replace(current.tuning, chunk_bytes=chunk))
        for count in (0, *CHANNELS) if self._free_plans else ():
            if count < self._most_channels and count != current.tuning.channels:
                what = f"{count} connections" if count > 1 else "one connection" if count else "all connections"
                yield f"tries {what} to a peer", replace(current, tuning=replace(current.tuning, channels=count))

    def choices(self, one: Arrangement) -> tuple[PlanChoice, ...]:
        """How each bucket travels."""
        table = self._pricing.table(one.topology, one.tuning.channels)
        found = []
        for k, bucket in enumerate(one.buckets.buckets):
            codec = one.codec(k)
            plan = table.choose(bucket.num_bytes // (2 if codec == "bf16" else 1)).plan
            found.append(PlanChoice(plan.algorithm, plan.programs[0].channels, codec))
        return tuple(found)

    def _cost(self, one: Arrangement, topology: Topology, scale: float) -> LinkCost:
        cost = self._pricing.cost(self._pricing.table(one.topology, one.tuning.channels), topology)
        return LinkCost(cost.sizes_bytes, tuple(seconds * scale for seconds in cost.seconds))


def _narrow_s(cost: LinkCost, sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Seconds for so many bytes of float32 that travel as bfloat16."""
    return cost.of(sizes / 2) + sizes / CAST_Bps


def _narrowed(cost: LinkCost) -> LinkCost:
    """What is cheaper at each size."""
    sizes = np.array(cost.sizes_bytes)
    return LinkCost(cost.sizes_bytes, tuple(np.minimum(cost.of(sizes), _narrow_s(cost, sizes)).tolist()))
