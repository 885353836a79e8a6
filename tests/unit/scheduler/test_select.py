"""Plan tables: cover all sizes, obey the user, and choose by predicted time."""

from __future__ import annotations

import pytest

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.cost import CostModel, EngineCosts
from hccl_py.scheduler.select import MAX_BYTES, PlanEntry, PlanTable, build_table
from hccl_py.topology.shapes import many_hosts, single_host, two_hosts

C = Collective
MiB = 1 << 20
SHAPES = {"one": single_host(1), "host": single_host(4), "hosts": two_hosts(2), "uneven": many_hosts((1, 3))}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("collective", Collective, ids=lambda c: c.name.lower())
def test_tables_cover_all_sizes(collective: Collective, shape: str) -> None:
    topology, placement = SHAPES[shape]
    table = build_table(collective, topology, placement, root=placement.size - 1)
    assert table.entries[0].from_bytes == 0 and table.entries[-1].upto_bytes == MAX_BYTES
    for size in (0, 1, 4095, 4096, MiB, MAX_BYTES):
        entry = table.choose(size)
        assert entry.from_bytes <= size <= entry.upto_bytes
        assert entry.plan.collective is collective
    assert len({e.plan.digest for e in table.entries}) == len({id(e.plan) for e in table.entries})
    neighbours = zip(table.entries, table.entries[1:], strict=False)
    assert all(a.plan is not b.plan for a, b in neighbours)  # equal neighbours are merged
    again = build_table(collective, topology, placement, root=placement.size - 1)
    assert [(e.upto_bytes, e.plan.digest, e.why) for e in again.entries] == [
        (e.upto_bytes, e.plan.digest, e.why) for e in table.entries
    ]


def entry(begin: int, end: int, plan=None) -> PlanEntry:  # type: ignore[no-untyped-def]
    return PlanEntry(begin, end, plan or DIRECT.build(C.ALL_REDUCE, 2), 1, 1.0, "")


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ((), "needs a row"),
        ((entry(1, MAX_BYTES),), "a row from 0 on was expected"),
        ((entry(0, 8), entry(8, MAX_BYTES)), "a row from 9 on was expected"),
        ((entry(0, 8), entry(10, MAX_BYTES)), "a row from 9 on was expected"),
        ((entry(0, 8),), "sizes from 9 bytes on have no plan"),
        ((entry(0, -1), entry(0, MAX_BYTES)), "was expected"),
        ((entry(0, 8), entry(9, MAX_BYTES, RING.build(C.BROADCAST, 2))), "another collective"),
        ((entry(0, 8), entry(9, MAX_BYTES, RING.build(C.ALL_REDUCE, 3))), "another collective, world or root"),
    ],
)
def test_tables_with_gaps_or_overlaps_are_refused(entries: tuple[PlanEntry, ...], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        PlanTable(entries)


def test_the_fastest_plan_is_chosen() -> None:
    topology, placement = two_hosts(4)
    table = build_table(C.ALL_REDUCE, topology, placement)
    assert table.choose(16).plan.algorithm == "direct"
    large = table.choose(64 * MiB)
    assert large.plan.algorithm == "hierarchical"
    assert large.plan.params == (("groups", placement.groups(topology)),)
    model = CostModel(topology, placement)
    for other in (DIRECT.build(C.ALL_REDUCE, 8, params={"rounds": 2}), RING.build(C.ALL_REDUCE, 8)):
        assert model.seconds(other, 64 * MiB) > model.seconds(large.plan, 64 * MiB)
    assert "fastest of 6; next " in large.why


def test_a_forced_algorithm_serves_all_sizes_or_fails() -> None:
    topology, placement = two_hosts(2)
    for name in ("direct", "ring", "tree", "halving_doubling", "hierarchical"):
        table = build_table(C.ALL_REDUCE, topology, placement, forced=name)
        assert {e.plan.algorithm for e in table.entries} == {name}
        assert all(e.why.startswith(f"forced: {name}") for e in table.entries)
    assert build_table(C.ALL_REDUCE, *single_host(3), forced="hierarchical").entries[0].plan.algorithm == "hierarchical"
    with pytest.raises(PlanError, match="'ring' does not do gather"):
        build_table(C.GATHER, topology, placement, forced="ring")
    with pytest.raises(PlanError, match="no algorithm 'rings'; there are direct, ring, tree"):
        build_table(C.GATHER, topology, placement, forced="rings")


def test_deterministic_admits_canonical_plans_only() -> None:
    for topology, placement in (single_host(4), two_hosts(4)):
        table = build_table(C.ALL_REDUCE, topology, placement, deterministic=True)
        assert {e.plan.order for e in table.entries} == {Order.CANONICAL}
        with pytest.raises(PlanError, match="ring is free, deterministic mode admits canonical plans only"):
            build_table(C.ALL_REDUCE, topology, placement, deterministic=True, forced="ring")
    assert build_table(C.ALL_GATHER, *single_host(4), deterministic=True, forced="ring").entries


@pytest.mark.parametrize(
    "collective", [C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL, C.GATHER, C.SCATTER], ids=lambda c: c.name.lower()
)
def test_uneven_tables_have_only_plans_for_uneven_blocks(collective: Collective) -> None:
    table = build_table(collective, *two_hosts(4), uneven=True)
    assert all(e.plan.uneven for e in table.entries)
    with pytest.raises(PlanError, match="tree needs equal blocks"):
        build_table(C.GATHER, *two_hosts(2), uneven=True, forced="tree")


def test_the_limit_of_shared_slots_cuts_the_table() -> None:
    shape, dear_messages = single_host(8), EngineCosts(message_s=1e-3, one_round_limit_bytes=2000)
    for limit in (None, 1000):
        table = build_table(C.ALL_REDUCE, *shape, engine=dear_messages, one_round_limit_bytes=limit)
        assert table.entries[0].upto_bytes == (limit or 2000)
        assert table.entries[0].plan.one_round and not table.entries[1].plan.one_round
    # INPUT of reduce_scatter has eight blocks
    assert build_table(C.REDUCE_SCATTER, *shape, engine=dear_messages).entries[0].upto_bytes == 250
    with_slots, without = (build_table(C.ALL_REDUCE, *shape, one_round_limit_bytes=limit) for limit in (4096, 0))
    assert with_slots.choose(16).predicted_s < without.choose(16).predicted_s


def test_other_algorithms_can_be_given() -> None:
    table = build_table(C.ALL_REDUCE, *two_hosts(2), algorithms=(RING,))
    assert {e.plan.algorithm for e in table.entries} == {"ring"}
    assert table.entries[0].why == "the only one"
    with pytest.raises(PlanError, match="no algorithm 'direct'; there are ring"):
        build_table(C.ALL_REDUCE, *two_hosts(2), algorithms=(RING,), forced="direct")
    with pytest.raises(PlanError, match="no plan for gather over 4 ranks"):
        build_table(C.GATHER, *two_hosts(2), algorithms=(RING,))


def test_a_table_is_printable() -> None:
    text = str(build_table(C.ALL_REDUCE, *two_hosts(4)))
    lines = text.splitlines()
    assert lines[0].split() == ["bytes", "a", "block", "plan", "order", "predicted", "why"]
    assert lines[1].startswith("up to ") and lines[-1].startswith("above ")
    assert "hierarchical groups=4+4" in lines[-1] and "free" in lines[-1]
    assert str(build_table(C.BARRIER, *single_host(2))).splitlines()[1].startswith("any ")
