"""Rehearse: the plans that the cost model finds best for large blocks, simulated before one of them is chosen.

The model (cost.py) lets messages queue for links one after the other. Where several links are nearly full, as inside
and between hosts of GPUs at once, plans differ by how their stages overlap, which only the simulator shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log

from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.simulate import simulate

# of a block; between them the share of the model's time is interpolated
_SIZES_BYTES = (4 << 20, 64 << 20, 256 << 20, 1 << 30)
_WITHIN = 1.5  # of the best predicted time
_MOST = 4  # plans


@dataclass(frozen=True)
class Candidate:
    """A plan that may serve, and its predicted times at the probed sizes."""

    plan: Plan
    curve_s: tuple[float, ...]


def simulated(found: Sequence[Candidate], model: CostModel, sizes_bytes: Sequence[int]) -> list[Candidate]:
    """The candidates with simulated times for the sizes from 4 MiB on; infinite where one was too slow by the model."""
    places = [min(range(len(sizes_bytes)), key=lambda i: abs(log(sizes_bytes[i] / size))) for size in _SIZES_BYTES]
    begin = places[0]
    if len(found) < 2 or sizes_bytes[begin] < _SIZES_BYTES[0] / 2:
        return list(found)
    promising: set[int] = set()
    for place in places:
        ranked = sorted(range(len(found)), key=lambda i: found[i].curve_s[place])
        limit_s = found[ranked[0]].curve_s[place] * _WITHIN
        promising |= {i for i in ranked[:_MOST] if found[i].curve_s[place] <= limit_s}
    rehearsed = []
    for number, candidate in enumerate(found):
        curve = list(candidate.curve_s)
        if number in promising:
            shares = [_simulated_s(candidate.plan, model, sizes_bytes[at]) / curve[at] for at in places]
            for at in range(begin, len(curve)):
                curve[at] *= _between(sizes_bytes[at], [sizes_bytes[place] for place in places], shares)
        else:
            curve[begin:] = [inf] * (len(curve) - begin)
        rehearsed.append(Candidate(candidate.plan, tuple(curve)))
    return rehearsed


def _simulated_s(plan: Plan, model: CostModel, size_bytes: int) -> float:
    return simulate(plan, model.topology, model.placement, size_bytes, engine=model.engine).seconds


def _between(size: int, sizes: Sequence[int], values: Sequence[float]) -> float:
    """Interpolated over the logarithm of the size."""
    for (a, low), (b, high) in pairwise(zip(sizes, values, strict=True)):
        if size <= b:
            return low + (high - low) * log(max(size, a) / a) / log(b / a)
    return values[-1]
