"""The cheapest way to reach every node from a root: Chu-Liu and Edmonds, on a dense table of prices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def cheapest_tree(price: _Floats, root: int) -> _Ints:
    """Parents in the cheapest tree whose edges lead away from ``root``; the root's parent is -1.

    Args:
        price: ``price[u, v]`` of the edge from u to v, all finite but the diagonal; shape (n, n).

    Source: J. Edmonds, Optimum branchings (1967). Every node takes its cheapest edge; the cycles that this makes are
    contracted to one node each, to which an edge costs what it costs more than the one that it replaces.
    """
    n = len(price)
    cost = price.copy()
    np.fill_diagonal(cost, np.inf)
    parent: _Ints = cost.argmin(axis=0)
    parent[root] = -1
    label, cycles = _cycles(parent)
    if not cycles:
        return parent
    inner = cost[parent, np.arange(n)]  # what a node's own choice costs
    inner[root] = 0.0
    on_cycle = np.zeros(n, dtype=np.bool_)
    for cycle in cycles:
        on_cycle[cycle] = True
    reduced = cost - np.where(on_cycle, inner, 0.0)
    size = int(label.max()) + 1
    small = np.full((size, size), np.inf)
    order = np.argsort(label, kind="stable")
    first = np.searchsorted(label[order], np.arange(size))
    rows = np.minimum.reduceat(reduced[order], first, axis=0)
    small = np.minimum.reduceat(rows[:, order], first, axis=1)
    outer: _Ints = cheapest_tree(small, int(label[root]))
    result: _Ints = parent.copy()
    for group in range(size):
        if outer[group] < 0:
            continue
        members, sources = np.flatnonzero(label == group), np.flatnonzero(label == outer[group])
        table = reduced[np.ix_(sources, members)]
        u, v = divmod(int(table.argmin()), len(members))
        result[members[v]] = sources[u]
    return result


def _cycles(parent: _Ints) -> tuple[_Ints, list[_Ints]]:
    """Numbers of the nodes once each cycle is one node, and the cycles."""
    n = len(parent)
    state = np.zeros(n, dtype=np.int64)  # 0: new; else the walk that came by
    cycles: list[_Ints] = []
    label = np.full(n, -1, dtype=np.int64)
    for start in range(n):
        at = start
        while at >= 0 and state[at] == 0:
            state[at] = start + 1
            at = int(parent[at])
        if at >= 0 and state[at] == start + 1:
            cycle, node = [at], int(parent[at])
            while node != at:
                cycle.append(node)
                node = int(parent[node])
            label[cycle] = len(cycles)
            cycles.append(np.array(sorted(cycle)))
    alone = label < 0
    label[alone] = len(cycles) + np.arange(int(alone.sum()))
    return label, cycles
