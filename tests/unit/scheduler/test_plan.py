"""Plan: verified whatever way it is made; canonical bytes and digest; its text."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.hierarchical import HIERARCHICAL
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.plan import Plan

GROUPS = ((0, 2), (1, 3, 4))


def broken(plan: Plan) -> tuple:
    """Programs of which one lacks its last step."""
    first, *rest = plan.programs
    return (replace(first, steps=first.steps[:-1]), *rest)


def test_there_is_no_way_around_the_verifier() -> None:
    plan = RING.build(Collective.ALL_REDUCE, 3)
    wrong = broken(plan)
    with pytest.raises(PlanError, match="plan 'ring' for ALL_REDUCE: rank "):
        Plan("ring", (), wrong)
    with pytest.raises(PlanError):
        replace(plan, programs=wrong)
    with pytest.raises(AttributeError):
        plan.programs = wrong  # type: ignore[misc]
    with pytest.raises(PlanError, match="needs at least one rank"):
        Plan("ring", (), ())
    _, arguments = plan.__reduce__()
    assert arguments == (plan.algorithm, plan.params, plan.programs)  # pickles go through the constructor


def test_copies_are_equal() -> None:
    plan = HIERARCHICAL.build(Collective.ALL_REDUCE, 5, params={"groups": GROUPS})
    for other in (
        copy.copy(plan),
        copy.deepcopy(plan),
        pickle.loads(pickle.dumps(plan)),
        Plan.from_bytes(plan.to_bytes()),
    ):
        assert other == plan
        assert other.digest == plan.digest
        assert other.params == (("groups", GROUPS),)


def test_bytes_of_a_wrong_plan_are_refused() -> None:
    plan = DIRECT.build(Collective.ALL_GATHER, 3)
    data = plan.to_bytes()
    with pytest.raises(PlanError, match="are no plan"):
        Plan.from_bytes(b"hccl" + data)
    with pytest.raises(PlanError, match="cut off"):
        Plan.from_bytes(data[:-1])
    with pytest.raises(PlanError, match="head of a plan"):
        Plan.from_bytes(data[:15])
    step = plan.programs[0].to_bytes().index(b"\x01\x00\x00\x00", 64)
    wrong = bytearray(data)
    wrong[data.index(plan.programs[0].to_bytes()) + step] ^= 1
    with pytest.raises(PlanError):
        Plan.from_bytes(bytes(wrong))


def test_claims_of_the_programs_do_not_count() -> None:
    plan = RING.build(Collective.ALL_REDUCE, 3)
    claimed = tuple(replace(p, order=Order.CANONICAL, digest=7) for p in plan.programs)
    other = Plan("ring", (), claimed)
    assert other.order is Order.FREE
    assert other == plan


def test_a_program_carries_order_and_digest() -> None:
    plan = DIRECT.build(Collective.ALL_REDUCE, 3)
    program = plan.program(1)
    assert program.order is Order.CANONICAL and program.rank == 1
    assert program.digest.to_bytes(8, "little") == plan.digest[:8]
    with pytest.raises(PlanError, match="ranks 0 to 2, there is no rank 3"):
        plan.program(3)


def test_the_digest_tells_plans_apart() -> None:
    plans = [
        algorithm.build(Collective.ALL_REDUCE, world, params=params)
        for algorithm in builtin_algorithms()
        for world in (2, 3, 4)
        for params in algorithm.variants(Collective.ALL_REDUCE, (tuple(range(world)),))
    ]
    assert {plan.algorithm for plan in plans} >= {"direct", "ring", "tree", "halving_doubling"}
    plans += [DIRECT.build(Collective.BROADCAST, 3, root) for root in range(3)]
    assert len({plan.digest for plan in plans}) == len(plans)


# A change here means that old and new versions of the package do not understand each other: change kProgramVersion if
# the engine runs old plans differently, and only then update the digests.
GOLDEN = {
    "direct": "f37c60d946e3cefc050d35e45d1fe6c7",
    "ring": "24178e4bd7e2bd4d69b1cfc42b43780d",
    "tree": "eb1aa77734eec1720c64975a6f34794f",
    "halving_doubling": "b9c8ba72d67362f8350c3fff596ae5d4",
    "hierarchical": "44bba33c8c190af56a54b3ffe0d6fd51",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_digest_is_stable(name: str) -> None:
    algorithm = next(a for a in builtin_algorithms() if a.name == name)
    params = {"groups": GROUPS} if name == "hierarchical" else {}
    assert algorithm.build(Collective.ALL_REDUCE, 5, params=params).digest.hex()[:32] == GOLDEN[name]


def test_explain_says_what_matters() -> None:
    text = RING.build(Collective.ALL_REDUCE, 4).explain()
    assert "ring: all_reduce over 4 ranks" in text
    assert "free (partial sums are rounded on the way" in text
    assert "rounds    6 one after the other" in text
    assert "messages  24 in all, at most 6 sent by a rank" in text
    assert "at most 1.5 (3/2) of a block; received at most 1.5 (3/2)" in text
    assert "0  send INPUT[3] -> rank 0" in text

    text = DIRECT.build(Collective.REDUCE, 3, root=2).explain()
    assert "reduce over 3 ranks, root 2" in text
    assert "canonical (left fold by rank" in text
    assert "one-round over shared memory" in text
    assert "recv_reduce rank 0 + rank 1 + INPUT[0] -> OUTPUT[0]" in text

    text = TREE.build(Collective.GATHER, 4).explain()
    assert "equal blocks only" in text and "canonical (nothing is added up)" in text

    text = RING.build(Collective.ALL_REDUCE, 16).explain()
    assert "...  and " in text


def test_names_are_short() -> None:
    assert HIERARCHICAL.build(Collective.ALL_REDUCE, 5, params={"groups": GROUPS}).name == "hierarchical groups=2+3"
    order = tuple(reversed(range(10)))
    assert RING.build(Collective.ALL_GATHER, 10, params={"order": order}).name == "ring order=9/8/7/6/5/4/3/2/.."
    assert DIRECT.build(Collective.REDUCE, 2, params={"rounds": 2}).name == "direct rounds=2"


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: RING.build(Collective.GATHER, 4), "'ring' does not do gather; it does all_gather, all_reduce"),
        (lambda: RING.build(Collective.BROADCAST, 4, 4), "root 4 in a world of 4 ranks"),
        (lambda: RING.build(Collective.ALL_REDUCE, 0), "root 0 in a world of 0 ranks"),
        (lambda: RING.build(Collective.ALL_REDUCE, 3, params={"order": (0, 1)}), "not a permutation of ranks 0 to 2"),
        (
            lambda: DIRECT.build(Collective.GATHER, 3, params={"rounds": 2}),
            "direct gather in 2 rounds: there is 1 for all",
        ),
        (lambda: DIRECT.build(Collective.ALL_REDUCE, 3, params={"rounds": 3}), "in 3 rounds"),
        (lambda: HIERARCHICAL.build(Collective.ALL_REDUCE, 3, params={"groups": ((0,), (1,))}), "do not hold each of"),
        (lambda: HIERARCHICAL.build(Collective.ALL_REDUCE, 2, params={"groups": ((0, 1), ())}), "do not hold each of"),
    ],
)
def test_wrong_requests_are_refused(build, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=why):
        build()
