"""Which plans may lend, which messages may land, and where neither is allowed."""

from __future__ import annotations

import pytest

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.lending import landings, lends
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.program import Lends, Where
from hccl_py.scheduler.writer import Writer


def _plan(name: str, collective: Collective, world: int, **params: int) -> Plan:
    algorithm = next(a for a in builtin_algorithms() if a.name == name)
    return algorithm.build(collective, world, 0, params)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_the_shares_of_an_all_reduce_land(world: int) -> None:
    """Two rounds: contributions are lent, results land where each rank wants its part of OUTPUT."""
    plan = _plan("direct", Collective.ALL_REDUCE, world, rounds=2)
    assert plan.lends is Lends.ALWAYS
    found = landings(plan.certificate.graph)
    assert len(found) == world * (world - 1)
    for number, slot in found.items():
        assert slot == plan.certificate.graph.owner[plan.certificate.graph.messages[number].sender]
    for rank in range(world):
        (fold,) = [step for step in plan.program(rank).steps if len(step.sources) > 1]
        peers = [target for target in fold.targets if target.where is Where.PEER]
        assert len(peers) == world - 1
        assert all(target.raw and target.slot == rank for target in peers)
        sends = [step for step in plan.program(rank).steps if step.word == "send"]
        assert not any(target.raw for step in sends for target in step.targets)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_an_exchange_in_place_cannot_lend(collective: Collective) -> None:
    """Both ranks would wait until the other has taken what it is about to overwrite."""
    plan = _plan("direct", collective, 2, rounds=1)
    assert plan.lends is Lends.APART


def test_a_barrier_never_lends() -> None:
    """There is nothing to lend, and its proof counts differently."""
    assert _plan("direct", Collective.BARRIER, 4).lends is Lends.NEVER


def test_a_ring_does_not_land() -> None:
    """Its results arrive where partial sums were sent from, to another rank than the one that sends the result."""
    plan = _plan("ring", Collective.ALL_REDUCE, 4)
    assert plan.lends is Lends.ALWAYS
    assert landings(plan.certificate.graph) == {}


def test_a_gather_lands_but_a_fold_does_not() -> None:
    """A message lands only where it is received as it is."""
    assert len(landings(_plan("direct", Collective.ALL_GATHER, 4).certificate.graph)) == 12
    assert landings(_plan("direct", Collective.REDUCE_SCATTER, 4).certificate.graph) == {}


def test_what_is_stored_on_a_channel_never_lends() -> None:
    """Rank 0 sends a slot, then writes there what rank 1 sends once it has *later* taken that slot."""
    programs = []
    for rank in range(2):
        w = Writer(Collective.ALL_REDUCE, 2, 0, rank, 1, {})
        if rank == 0:
            w.copy(w.input(), w.output())
            w.send(w.output(), w.peer(1, raw=True))
            w.recv(w.peer(1, raw=False), w.output())
        else:
            w.fold([w.peer(0), w.input()], [w.output()])
            w.send(w.output(), w.peer(0))
        programs.append(w.program())
    plan = Plan("test", (), tuple(programs))
    graph = plan.certificate.graph
    assert plan.lends is Lends.ALWAYS  # rank 1 takes before it sends
    assert landings(graph) == {}  # what rank 0 sends is taken by another step than the one that sends the result


def test_an_annotated_program_survives_its_bytes() -> None:
    """The engine gets what was found out."""
    for collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL):
        plan = _plan("direct", collective, 3, **({"rounds": 2} if collective is Collective.ALL_REDUCE else {}))
        program = plan.program(1)
        assert type(program).from_bytes(program.to_bytes()) == program
        assert lends(plan.certificate.graph) is program.lends
