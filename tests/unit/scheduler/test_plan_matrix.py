"""The plan matrix: every built-in plan is verified, and computes what numpy does, in place and out of place."""

from __future__ import annotations

import numpy as np
import pytest
from scheduler_matrix import WORLDS, cases, plans
from scheduler_reference import check, expected, make_counts, read_one_round

from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.algorithms import builtin_algorithms


@pytest.mark.parametrize(
    ("algorithm", "collective", "world"), cases(), ids=lambda x: getattr(x, "name", str(x)).lower()
)
def test_plan_computes_its_collective(algorithm: Algorithm, collective: Collective, world: int) -> None:
    number = 0
    for number, plan in enumerate(plans(algorithm, collective, world), 1):
        assert (plan.collective, plan.world) == (collective, world)
        if world > 9 and number > 3:
            continue  # the verifier has seen it; running it takes longer
        count = (plan.slots_per_block * 2 + 1, 1, plan.slots_per_block + 3)[number % 3]
        check(
            plan.programs,
            count=count,
            in_place=number % 2 == 0,
            average=collective.reduces and number % 3 == 0,
            seed=number,
        )
        if world < 5:
            check(plan.programs, count=count, in_place=number % 2 == 1, segment=5, seed=number)
        if plan.uneven:
            check(plan.programs, count=3, in_place=False, sizes=(3, 0, 5, 1), seed=number)
        if plan.one_round:
            _check_slots(plan.programs, count=5)
    assert number > 0


def _check_slots(programs: tuple, count: int) -> None:
    first = programs[0]
    if first.collective is Collective.BARRIER:
        return
    in_counts, _ = make_counts(first.collective, first.world, first.root, count, None)
    inputs = [np.arange(sum(n), dtype=float) + 10 * rank for rank, n in enumerate(in_counts)]
    right = expected(first.collective, first.root, inputs, in_counts)
    for found, wanted in zip(read_one_round(programs, inputs, count), right, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("collective", Collective, ids=lambda c: c.name.lower())
def test_every_collective_has_direct_and_another_algorithm(collective: Collective) -> None:
    able = [a.name for a in builtin_algorithms() if a.supports(collective)]
    assert "direct" in able and len(able) >= 2


@pytest.mark.parametrize("collective", [c for c in Collective if c.reduces], ids=lambda c: c.name.lower())
def test_order_is_canonical_exactly_where_ranks_are_added_in_order(collective: Collective) -> None:
    for algorithm in builtin_algorithms():
        if not algorithm.supports(collective):
            continue
        for world in (2, 3, 5, 8):
            for plan in plans(algorithm, collective, world):
                if algorithm.name == "direct" or (world == 2 and algorithm.name != "rails"):  # rails: own part first
                    assert plan.order is Order.CANONICAL, plan.name
                elif algorithm.name in ("ring", "halving_doubling"):
                    assert plan.order is Order.FREE, plan.name


def test_names_are_those_of_the_issue() -> None:
    names = tuple(a.name for a in builtin_algorithms())
    assert names == ("direct", "ring", "tree", "halving_doubling", "hierarchical", "forest", "rails")
    assert set(WORLDS) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}


def test_plans_exist_for_sixty_four_ranks() -> None:
    for algorithm in builtin_algorithms():
        plan = algorithm.build(Collective.ALL_REDUCE, 64, 0, algorithm.variants(Collective.ALL_REDUCE, _eights(64))[-1])
        assert plan.world == 64


def _eights(world: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, first + 8)) for first in range(0, world, 8))
