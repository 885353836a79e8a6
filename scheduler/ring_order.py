"""Ring order: the round trip through all ranks whose busiest link is the least busy; a bottleneck travelling salesman.

Around a ring every rank sends the same bytes to the next one. So the time of a long message is that of the link over
which the most of these ways lead, counted by its bandwidth: that is what is minimised, then the sum of latencies. Up to
`_EXACT` ranks all orders are tried. Above, it begins with the ranks of each host side by side, and moves runs of ranks
elsewhere, turned round or not (Or-opt and 2-opt), as long as that helps: a good order, not always the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from hccl_py.core.types import Collective
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.routes import Floats, Routes
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_EXACT = 7  # ranks: 720 orders
_MAX_RANKS = 64
_RUN = 3  # ranks that are moved at once
_LESS = 1 - 1e-9
_Cost = tuple[float, float]  # seconds per byte of the busiest link, sum of latencies


def ring_order(topology: Topology, placement: Placement, ranks: Sequence[int] | None = None) -> tuple[int, ...]:
    """The order, beginning with the first of ``ranks`` (default: all, hosts one after the other)."""
    members = tuple(ranks or (rank for group in placement.groups(topology) for rank in group))
    if not 3 <= len(members) <= _MAX_RANKS:
        return members
    routes = Routes(topology, Placement(tuple(placement.device(rank) for rank in members)))
    found = (_exact if len(members) <= _EXACT else _improved)(routes)
    return tuple(members[at] for at in found)


def ring_sets(
    _: Collective, topology: Topology, placement: Placement, root: int = 0, channels: int = 2
) -> tuple[dict[str, ParamValue], ...]:
    """The parameter set of `ring` for this graph, where the order is not that of the hosts anyway."""
    order = ring_order(topology, placement)
    groups = placement.groups(topology)
    return () if order == tuple(rank for group in groups for rank in group) else ({"order": order},)


def ring_cost(routes: Routes, order: Sequence[int]) -> _Cost:
    """Of a round trip: seconds per byte of the busiest link if each rank sends a byte to the next, sum of latencies."""
    at: list[int] = list(order)
    after = [*at[1:], at[0]]
    loads: Floats = routes.uses[np.array(at) * routes.size + np.array(after)].sum(axis=0)
    return float((loads * routes.spacing_s).max()), float(routes.latency_s[at, after].sum())


def _exact(routes: Routes) -> tuple[int, ...]:
    orders = ((0, *rest) for rest in permutations(range(1, routes.size)))
    best, best_cost = tuple(range(routes.size)), ring_cost(routes, range(routes.size))
    for order in orders:
        cost = ring_cost(routes, order)
        if _better(cost, best_cost):
            best, best_cost = order, cost
    return best


def _improved(routes: Routes) -> tuple[int, ...]:
    best, best_cost = tuple(range(routes.size)), ring_cost(routes, range(routes.size))
    least = _least_s(routes)
    while best_cost[0] > least / _LESS:
        moves = ((ring_cost(routes, order), order) for order in _moves(best))
        better = next(((cost, order) for cost, order in moves if _better(cost, best_cost)), None)
        if better is None:
            break
        best_cost, best = better
    at = best.index(0)
    return best[at:] + best[:at]


def _moves(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All orders with one stretch turned round, or one run of ranks elsewhere."""
    size = len(order)
    for begin in range(size):
        for end in range(begin + 2, size + 1):
            yield order[:begin] + order[begin:end][::-1] + order[end:]
    for length in range(1, _RUN + 1):
        for begin in range(size - length + 1):
            run, rest = order[begin : begin + length], order[:begin] + order[begin + length :]
            for at in range(len(rest) + 1):
                yield rest[:at] + run + rest[at:]


def _least_s(routes: Routes) -> float:
    """No order is below: every rank has a way out to some other and a way in."""
    table = np.full((routes.size, routes.size), np.inf)
    slowest = (routes.uses * routes.spacing_s).max(axis=1).reshape(routes.size, routes.size)
    np.copyto(table, slowest, where=~np.eye(routes.size, dtype=np.bool_))
    return float(max(table.min(axis=0).max(), table.min(axis=1).max()))


def _better(cost: _Cost, than: _Cost) -> bool:
    return cost[0] < than[0] * _LESS or (cost[0] <= than[0] / _LESS and cost[1] < than[1] * _LESS)
