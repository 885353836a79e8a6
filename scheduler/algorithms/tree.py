"""tree: a double binary tree. Half of the block goes over each of two trees, and who is inside one is a leaf of the
other.

Logarithmic depth at nearly the bandwidth of a ring, since the engine passes pieces on as they come. gather and scatter
use a binomial tree (binomial.py). The parameter ``order`` puts the ranks of a host next to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.binomial import write_gather, write_scatter
from hccl_py.scheduler.algorithms.common import by_rank, host_order, rank_order
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import Operand
from hccl_py.scheduler.writer import Writer


class _Place(NamedTuple):
    """A rank's place in one tree."""

    parent: int | None
    children: tuple[int, ...]
    leaves: frozenset[int]  # those of the children that have no children


def _parent(v: int, n: int) -> int | None:
    """Parent of position v in an in-order binary tree over n positions, of which all odd ones are leaves."""
    if v == 0:
        return None
    low = v & -v
    up = (v ^ low) | (low << 1)
    return up if up < n else v ^ low


@lru_cache(maxsize=8)  # every rank asks for the same
def _places(ranks: tuple[int, ...]) -> list[dict[int, _Place]]:
    """Both trees over ``ranks``: the second is the first mirrored (even number of ranks) or shifted by one (odd)."""
    n = len(ranks)
    shifted = [ranks[n - 1 - v] for v in range(n)] if n % 2 == 0 else [ranks[(v + 1) % n] for v in range(n)]
    trees = []
    for at in (list(ranks), shifted):
        parents = [_parent(v, n) for v in range(n)]
        below: dict[int | None, list[int]] = {}
        for v, parent in enumerate(parents):
            below.setdefault(parent, []).append(v)
        tree = {}
        for v in range(n):
            children = below.get(v, [])
            up = parents[v]
            leaves = frozenset(at[c] for c in children if c not in below)
            tree[at[v]] = _Place(None if up is None else at[up], tuple(at[c] for c in children), leaves)
        trees.append(tree)
    return trees


def _write(w: Writer) -> None:
    if w.collective is Collective.GATHER:
        write_gather(w)
    elif w.collective is Collective.SCATTER:
        write_scatter(w)
    elif w.collective is Collective.ALL_REDUCE:
        _all_reduce(w, rank_order(w.params, w.world))
    else:
        ranks = [rank for rank in rank_order(w.params, w.world) if rank != w.root]
        (_broadcast if w.collective is Collective.BROADCAST else _reduce)(w, ranks)


def _sources(w: Writer, place: _Place, t: int) -> list[Operand]:
    below = [(c, w.peer(c, raw=c in place.leaves, channel=t)) for c in place.children]
    return by_rank([(w.rank, w.input(k=t)), *below])


def _all_reduce(w: Writer, ranks: Sequence[int]) -> None:
    for t, tree in enumerate(_places(tuple(ranks))):
        place = tree[w.rank]
        down = [w.peer(c, channel=t) for c in place.children]
        if place.parent is None:
            w.fold(_sources(w, place, t), [w.output(k=t), *down])
        else:
            w.fold(_sources(w, place, t), [w.peer(place.parent, channel=t)])
            w.recv(w.peer(place.parent, raw=False, channel=t), w.output(k=t), *down)


def _broadcast(w: Writer, ranks: Sequence[int]) -> None:
    """The root stands above both trees, which are over the other ranks."""
    for t, tree in enumerate(_places(tuple(ranks))):
        if w.rank == w.root:
            top = next(rank for rank, place in tree.items() if place.parent is None)
            w.send(w.input(k=t), w.output(k=t), w.peer(top, channel=t))
        else:
            place = tree[w.rank]
            parent = w.root if place.parent is None else place.parent
            w.recv(w.peer(parent, channel=t), w.output(k=t), *(w.peer(c, channel=t) for c in place.children))


def _reduce(w: Writer, ranks: Sequence[int]) -> None:
    for t, tree in enumerate(_places(tuple(ranks))):
        if w.rank == w.root:
            top = next(rank for rank, place in tree.items() if place.parent is None)
            place = _Place(None, (top,), frozenset({top} if not tree[top].children else ()))
            w.fold(_sources(w, place, t), [w.output(k=t)])
        else:
            place = tree[w.rank]
            parent = w.root if place.parent is None else place.parent
            w.fold(_sources(w, place, t), [w.peer(parent, channel=t)])


def _shape(collective: Collective, _: int, __: Mapping[str, ParamValue]) -> Shape:
    if collective in (Collective.GATHER, Collective.SCATTER):
        return Shape()
    return Shape(slots=2, channels=2)


def _variants(collective: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    return ({},) if collective in (Collective.GATHER, Collective.SCATTER) else host_order(groups)


TREE = Algorithm(
    name="tree",
    summary="two binary trees, half of the bytes on each; gather and scatter: a binomial tree",
    collectives=frozenset(
        {
            Collective.ALL_REDUCE,
            Collective.REDUCE,
            Collective.BROADCAST,
            Collective.GATHER,
            Collective.SCATTER,
        }
    ),
    write=_write,
    shape=_shape,
    variants=_variants,
)
