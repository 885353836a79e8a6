"""Classes of ranks that behave alike: which there are, and that simulating one of each gives the same."""

from __future__ import annotations

import pytest

from hccl_py.core.types import Collective
from hccl_py.scheduler import simulate_run
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.cost import EngineCosts
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.simulate import Simulation, simulate_programs
from hccl_py.scheduler.simulate_classes import RankClasses, peers_of
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement

MIB = 1024 * 1024
PURE = EngineCosts(0.0, 0.0, 0.0, 1e18, 64 * 1024)


def hosts(num: int, per_host: int, slow_host: int | None = None) -> tuple[Topology, Placement]:
    """Hosts with a switch inside and one NIC, on one switch."""
    nodes, links, ranks = [Node("net", NodeKind.SWITCH)], [], []
    for h in range(num):
        nodes += [Node(f"h{h}", NodeKind.HOST), Node(f"h{h}/nic0", NodeKind.NIC)]
        rate = 1e9 if h != slow_host else 0.25e9
        pairs = [(f"h{h}/nic0", "net", rate, 5e-6), (f"h{h}", f"h{h}/nic0", 10e9, 1e-6)]
        for i in range(per_host):
            nodes.append(Node(f"h{h}/cpu{i}", NodeKind.DEVICE, device=DeviceKind.CPU))
            ranks.append(f"h{h}/cpu{i}")
            pairs.append((ranks[-1], f"h{h}", 10e9, 1e-6))
        links += [Link(*ends, LinkKind.ETHERNET, rate, s) for a, b, rate, s in pairs for ends in ((a, b), (b, a))]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(ranks))


def ring_classes(plan: Plan, topology: Topology, placement: Placement) -> RankClasses:
    n = plan.world
    return RankClasses.alike([0] * n, [((r + 1) % n, (r - 1) % n) for r in range(n)], topology, placement)


def run(plan: Plan, classes: RankClasses, graph: tuple[Topology, Placement], size_bytes: int = 16 * MIB) -> Simulation:
    return simulate_programs(plan.program, classes, *graph, size_bytes, engine=PURE)


@pytest.mark.parametrize("num,per_host", [(4, 3), (8, 1)])
def test_one_rank_of_each_class_is_enough(num: int, per_host: int) -> None:
    graph = hosts(num, per_host)
    plan = RING.build(Collective.ALL_REDUCE, num * per_host)
    classes = ring_classes(plan, *graph)
    assert len(classes.representatives) == per_host  # hosts are equal; places in them are not
    assert [classes.of[rank] for rank in range(per_host)] == [classes.of[rank + per_host] for rank in range(per_host)]
    alike, apart = run(plan, classes, graph), run(plan, RankClasses.apart(plan.world, plan.program), graph)
    assert alike.seconds == pytest.approx(apart.seconds, rel=1e-6)
    assert alike.graph.num_flows == apart.graph.num_flows // num
    assert alike.link_bytes == pytest.approx(apart.link_bytes, rel=1e-4)  # the last slot is shorter


def test_a_slow_host_makes_classes_of_its_own() -> None:
    graph = hosts(6, 2, slow_host=3)
    plan = RING.build(Collective.ALL_REDUCE, 12)
    classes = ring_classes(plan, *graph)
    assert len(classes.representatives) > 2
    alike, apart = run(plan, classes, graph), run(plan, RankClasses.apart(12, plan.program), graph)
    assert alike.seconds == pytest.approx(apart.seconds, rel=0.02)


def test_kinds_are_kept_apart() -> None:
    graph = hosts(4, 1)
    peers = [((r + 1) % 4, (r - 1) % 4) for r in range(4)]
    assert len(RankClasses.alike([0, 0, 0, 0], peers, *graph).representatives) == 1
    assert len(RankClasses.alike([0, 1, 0, 1], peers, *graph).representatives) == 2


def test_links_that_cannot_be_filled_do_not_count() -> None:
    """The links inside the hosts are ten times as fast as what can come through the NICs."""
    topology, placement = hosts(4, 1)
    faster = topology.with_estimates({("h2/cpu0", "h2"): (20e9, 1e-6)})
    peers = [((r + 1) % 4, (r - 1) % 4) for r in range(4)]
    assert len(RankClasses.alike([0] * 4, peers, faster, placement).representatives) == 1
    slower = topology.with_estimates({("h2/nic0", "net"): (0.5e9, 5e-6)})
    assert len(RankClasses.alike([0] * 4, peers, slower, placement).representatives) > 1


def test_peers_come_in_order_of_the_program() -> None:
    plan = RING.build(Collective.ALL_REDUCE, 5)
    assert peers_of(plan.program(0)) == (1, 4)


def test_a_steady_pace_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hosts(16, 2)
    plan = RING.build(Collective.ALL_REDUCE, 32)
    classes = ring_classes(plan, *graph)
    exact = run(plan, classes, graph)
    assert exact.times.simulated == 1.0
    monkeypatch.setattr(simulate_run, "_EXACT_EVENTS", 64)
    monkeypatch.setattr(simulate_run, "_WINDOW", 32)
    early = run(plan, classes, graph)
    assert early.times.events < exact.times.events
    assert early.times.simulated < 0.9
    assert early.seconds == pytest.approx(exact.seconds, rel=0.03)
