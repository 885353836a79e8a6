"""The cases of the plan matrix: every algorithm x collective x world, with roots, shapes of hosts and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.plan import Plan

WORLDS = (*range(1, 10), 16)


def shapes(world: int) -> list[Groups]:
    """Hosts with ranks one after the other and interleaved, of equal and of different size, also with one rank each."""
    found: dict[Groups, None] = {(tuple(range(world)),): None}
    if world > 1:
        found[tuple((rank,) for rank in range(world))] = None
        found[(tuple(range(world // 2)), tuple(range(world // 2, world)))] = None
        found[(tuple(range(0, world, 2)), tuple(range(1, world, 2)))] = None
        found[((0,), tuple(range(1, world)))] = None
    if world > 4:
        found[tuple(tuple(range(first, world, 3)) for first in range(3))] = None
        found[((world - 1, 0), (1,), tuple(range(2, world - 1)))] = None
    return list(found)


def cases() -> list[tuple[Algorithm, Collective, int]]:
    """Every algorithm x collective that it does x world."""
    return [(a, c, n) for a in builtin_algorithms() for c in Collective if a.supports(c) for n in WORLDS]


def plans(algorithm: Algorithm, collective: Collective, world: int) -> Iterator[Plan]:
    """All roots that differ, all parameter sets that the shapes give."""
    roots = sorted({0, world // 2, world - 1}) if collective.rooted else [0]
    sets = chain.from_iterable(algorithm.variants(collective, groups) for groups in shapes(world))
    for params in {tuple(sorted(params.items())): params for params in sets}.values():
        for root in roots:
            yield algorithm.build(collective, world, root, params)
