"""The simulator against times that can be worked out by hand, and its limits."""

from __future__ import annotations

import pytest

from hccl_py.core.errors import InternalError, PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.halving_doubling import HALVING_DOUBLING
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.cost import EngineCosts
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.simulate import Simulation, bus_factor, simulate, simulate_programs
from hccl_py.scheduler.simulate_classes import RankClasses
from hccl_py.scheduler.writer import Writer
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement

MIB = 1024 * 1024
SEGMENT = 64 * 1024
PURE = EngineCosts(step_s=0, message_s=0, network_message_s=0, touch_Bps=1e18, segment_bytes=SEGMENT)
RATE, LATENCY = 100e6, 5e-6  # of each of the two links between a pair


def star(rates_Bps: list[float]) -> tuple[Topology, Placement]:
    nodes = [Node("switch", NodeKind.SWITCH)]
    links = []
    for i, rate in enumerate(rates_Bps):
        name = f"h{i}/cpu0"
        nodes += [Node(f"h{i}", NodeKind.HOST), Node(name, NodeKind.DEVICE, device=DeviceKind.CPU)]
        links += [Link(a, b, LinkKind.ETHERNET, rate, LATENCY) for a, b in ((name, "switch"), ("switch", name))]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(f"h{i}/cpu0" for i in range(len(rates_Bps))))


def run(plan: Plan, rates_Bps: list[float], size_bytes: int, **options: int) -> Simulation:
    return simulate(plan, *star(rates_Bps), size_bytes, engine=PURE, **options)


def test_a_ring_is_one_message_after_the_other() -> None:
    for world in (2, 4, 7):
        found = run(RING.build(Collective.ALL_REDUCE, world), [RATE] * world, world * SEGMENT)
        assert found.seconds == pytest.approx(2 * (world - 1) * (2 * LATENCY + SEGMENT / RATE), rel=1e-6)


def test_halving_doubling() -> None:
    found = run(HALVING_DOUBLING.build(Collective.ALL_GATHER, 4), [RATE] * 4, SEGMENT)
    # two rounds, of one and of two blocks, which are two segments: the second round need not wait for the whole
    assert found.seconds == pytest.approx(2 * 2 * LATENCY + 3 * SEGMENT / RATE, rel=1e-6)


def test_flows_from_one_rank_share_its_link() -> None:
    found = run(DIRECT.build(Collective.BROADCAST, 5), [RATE] * 5, MIB)
    assert found.seconds == pytest.approx(4 * MIB / RATE + 2 * LATENCY, rel=1e-6)


def test_what_a_slow_receiver_does_not_take_goes_to_the_others() -> None:
    found = run(DIRECT.build(Collective.BROADCAST, 3), [RATE, RATE / 10, RATE], MIB)
    assert found.seconds == pytest.approx(10 * MIB / RATE + 2 * LATENCY, rel=1e-6)
    sent = sorted(found.times.sent_s)
    assert sent[0] == pytest.approx(MIB / (0.9 * RATE), rel=1e-6)


def test_a_chain_streams_by_segments() -> None:
    world, size = 5, 4 * MIB
    found = run(RING.build(Collective.BROADCAST, world), [RATE] * world, size)
    head_s = SEGMENT / RATE + 2 * LATENCY
    assert found.seconds == pytest.approx((world - 2) * head_s + size / RATE + 2 * LATENCY, rel=1e-6)


def test_a_chain_does_not_run_ahead_of_a_slow_link() -> None:
    found = run(RING.build(Collective.BROADCAST, 4), [RATE, RATE / 4, RATE, RATE], 4 * MIB)
    # rank 1 receives and sends at a quarter: one slow segment to begin with, one fast one for rank 3
    assert found.seconds == pytest.approx(4 * (4 * MIB + SEGMENT) / RATE + SEGMENT / RATE, rel=0.001)
    assert found.times.start_s.max() < 0.1 * found.seconds  # it did stream


def test_a_narrow_end_holds_back_what_a_relay_without_memory_receives() -> None:
    """Reduce along a chain: the inner rank keeps nothing, so its receiving waits for its sending."""
    plan = RING.build(Collective.REDUCE, 3, root=0)
    found = run(plan, [RATE / 4, RATE, RATE], 8 * MIB, channel_bytes=MIB)
    inner = run(plan, [RATE / 4, RATE, RATE], 8 * MIB, channel_bytes=64 * MIB)
    first = found.graph.rank.tolist().index(2)
    assert found.times.sent_s[first] > 3 * inner.times.sent_s[first]
    assert found.seconds == pytest.approx(inner.seconds, rel=0.01)


def test_no_link_carries_more_than_it_can() -> None:
    for algorithm in (RING, TREE, DIRECT):
        found = run(algorithm.build(Collective.ALL_REDUCE, 6), [RATE, RATE / 2, RATE, RATE / 5, RATE, RATE], 3 * MIB)
        used = {link: found.utilisation(link) for link in found.link_bytes}
        assert 0 < max(used.values()) <= 1 + 1e-9
        # reduced from and spread to every rank: no link into or out of one is left out
        assert len(used) == 12


def test_messages_cost_what_the_engine_says() -> None:
    plan = RING.build(Collective.ALL_REDUCE, 4)
    slow = EngineCosts(step_s=1e-3, message_s=0, network_message_s=2e-3, segment_bytes=SEGMENT)
    found = simulate(plan, *star([RATE] * 4), 4, engine=slow)
    assert found.seconds == pytest.approx(6 * 2 * 3e-3, rel=0.01)


def test_one_rank_alone_copies() -> None:
    found = simulate(RING.build(Collective.ALL_REDUCE, 1), *star([RATE]), 24 * 10**6)
    assert found.seconds == pytest.approx(2 * 24e6 / EngineCosts().touch_Bps, rel=0.01)


def test_barriers_take_latency_only() -> None:
    found = run(HALVING_DOUBLING.build(Collective.BARRIER, 8), [RATE] * 8, 0)
    assert found.seconds == pytest.approx(3 * 2 * LATENCY, rel=0.01)


def test_at_most_64_steps_are_open() -> None:
    """Both send all first: the window is full before the first receive; only what channels hold moves."""
    programs = []
    for rank in (0, 1):
        w = Writer(Collective.ALL_REDUCE, 2, 0, rank, 100)
        for k in range(100):
            w.send(w.input(k=k), w.peer(1 - rank))
        for k in range(100):
            w.recv(w.peer(1 - rank, raw=False), w.output(k=k))
        programs.append(w.program())
    topology, placement = star([RATE] * 2)
    classes = RankClasses.apart(2, programs.__getitem__)
    with pytest.raises(InternalError, match=r"stands still at .*: \d+ of 200 messages have not started"):
        simulate_programs(programs.__getitem__, classes, topology, placement, 200 * MIB, engine=PURE)
    simulate_programs(  # the channels take it all
        programs.__getitem__, classes, topology, placement, 200 * MIB, engine=PURE, channel_bytes=2 * MIB
    )


def test_messages_that_do_not_match() -> None:
    w = [Writer(Collective.ALL_REDUCE, 2, 0, rank, 1) for rank in (0, 1)]
    w[0].send(w[0].input(), w[0].peer(1))
    w[1].copy(w[1].input(), w[1].output())
    w[1].send(w[1].output(), w[1].peer(0))
    programs = [one.program() for one in w]
    topology, placement = star([RATE] * 2)
    with pytest.raises(PlanError, match="rank 1 sends 1 messages on channel 0 to rank 0, which receives 0"):
        simulate_programs(
            programs.__getitem__, RankClasses.apart(2, programs.__getitem__), topology, placement, 64, engine=PURE
        )


def test_events_taken_together_change_little() -> None:
    plan, (topology, placement) = TREE.build(Collective.ALL_REDUCE, 8), star([RATE, RATE * 0.9] * 4)
    classes = RankClasses.apart(8, plan.program)
    exact, coarse = (
        simulate_programs(plan.program, classes, topology, placement, 4 * MIB, engine=PURE, merge_s=merge_s)
        for merge_s in (0.0, 50e-6)
    )
    assert coarse.times.events < exact.times.events
    assert coarse.seconds == pytest.approx(exact.seconds, rel=0.02)


def test_bus_factors() -> None:
    assert bus_factor(Collective.ALL_REDUCE, 4) == 1.5
    assert bus_factor(Collective.ALL_GATHER, 4) == 0.75
    assert bus_factor(Collective.BROADCAST, 4) == 1.0
