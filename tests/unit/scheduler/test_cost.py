"""The cost model: right where the answer is known, and in the order of things where it is not."""

from __future__ import annotations

import pytest

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.halving_doubling import HALVING_DOUBLING
from hccl_py.scheduler.algorithms.hierarchical import HIERARCHICAL
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.cost import CostModel, EngineCosts, cost
from hccl_py.topology.graph import LinkKind
from hccl_py.topology.priors import ETHERNET
from hccl_py.topology.shapes import many_hosts, single_host, two_hosts

C = Collective
MiB = 1 << 20
FREE_ENGINE = EngineCosts(step_s=0, message_s=0, network_message_s=0, touch_Bps=1e18, one_round_limit_bytes=0)


def network_bytes(loads: dict) -> list[int]:
    """Bytes over each link of the network."""
    return [amount for link, amount in loads.items() if link.kind.is_network]


def test_a_message_takes_latency_and_bytes_over_the_narrowest_link() -> None:
    topology, placement = two_hosts(1)
    path = placement.path(0, 1, topology)
    model = CostModel(topology, placement, FREE_ENGINE)
    plan = DIRECT.build(C.BROADCAST, 2)
    for size in (4, 64 * MiB):
        wanted = sum(link.latency_s for link in path) + size / min(link.bandwidth_Bps for link in path)
        assert model.seconds(plan, size) == pytest.approx(wanted, rel=0.01)


def test_messages_that_share_a_link_share_its_bandwidth() -> None:
    topology, placement = two_hosts(4)
    model = CostModel(topology, placement, FREE_ENGINE)
    alone = model.seconds(DIRECT.build(C.BROADCAST, 8), 16 * MiB)  # four messages leave host 0
    assert alone == pytest.approx(4 * 16 * MiB / ETHERNET.bandwidth_Bps, rel=0.02)


@pytest.mark.parametrize("per_host", [(4, 4), (2, 2, 2), (1, 3), (3, 1, 2)])
def test_hierarchical_all_reduce_crosses_the_network_as_rarely_as_can_be(per_host: tuple[int, ...]) -> None:
    topology, placement = many_hosts(per_host, interleaved=True)
    hosts = len(per_host)
    plan = HIERARCHICAL.build(C.ALL_REDUCE, sum(per_host), params={"groups": placement.groups(topology)})
    size = plan.slots_per_block * 4 * 64
    loads = network_bytes(CostModel(topology, placement).link_bytes(plan, size))
    assert len(loads) == 2 * hosts
    assert set(loads) == {size * 2 * (hosts - 1) // hosts}


@pytest.mark.parametrize("collective", [C.BROADCAST, C.REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER], ids=lambda c: c.name)
def test_hierarchical_crosses_once_per_host_and_byte(collective: Collective) -> None:
    topology, placement = two_hosts(4)
    plan = HIERARCHICAL.build(collective, 8, params={"groups": placement.groups(topology)})
    loads = network_bytes(CostModel(topology, placement).link_bytes(plan, 4096))
    blocks = 4 if collective in (C.ALL_GATHER, C.REDUCE_SCATTER) else 1
    assert set(loads) == {4096 * blocks}


def test_hierarchical_all_to_all_sends_fewer_messages_between_hosts() -> None:
    topology, placement = two_hosts(4)
    groups = placement.groups(topology)

    def crossing(plan) -> int:  # type: ignore[no-untyped-def]
        graph = plan.certificate.graph
        ends = [(graph.owner[m.sender] // 4, graph.owner[m.receiver] // 4) for m in graph.messages]
        return sum(a != b for a, b in ends)

    assert crossing(DIRECT.build(C.ALL_TO_ALL, 8)) == 32
    assert crossing(HIERARCHICAL.build(C.ALL_TO_ALL, 8, params={"groups": groups})) == 8


@pytest.mark.parametrize("algorithm", builtin_algorithms(), ids=lambda a: a.name)
def test_more_bytes_take_longer(algorithm) -> None:  # type: ignore[no-untyped-def]
    topology, placement = two_hosts(2)
    params = algorithm.variants(C.ALL_REDUCE, placement.groups(topology))[-1]
    plan = algorithm.build(C.ALL_REDUCE, 4, params=params)
    curve = CostModel(topology, placement).curve(plan, [4**k for k in range(2, 15)])
    assert curve == sorted(curve)
    assert curve[0] > 0


def test_curve_and_single_values_agree() -> None:
    topology, placement = single_host(4)
    plan, sizes = RING.build(C.ALL_REDUCE, 4), [16, 4096, MiB]
    assert CostModel(topology, placement).curve(plan, sizes) == [cost(plan, topology, placement, s) for s in sizes]


def test_small_sizes_want_few_rounds_and_large_ones_few_bytes() -> None:
    topology, placement = two_hosts(1)
    many = many_hosts((1,) * 8)
    model = CostModel(*many)
    direct, ring = DIRECT.build(C.ALL_REDUCE, 8), RING.build(C.ALL_REDUCE, 8)
    assert model.seconds(direct, 64) < model.seconds(ring, 64)
    assert model.seconds(direct, 64 * MiB) > 2 * model.seconds(ring, 64 * MiB)
    assert CostModel(topology, placement).one_host is False


def test_a_ring_in_host_order_loads_the_network_less() -> None:
    topology, placement = two_hosts(4, interleaved=True)
    model = CostModel(topology, placement)
    (params,) = RING.variants(C.ALL_REDUCE, placement.groups(topology))
    ordered, plain = RING.build(C.ALL_REDUCE, 8, params=params), RING.build(C.ALL_REDUCE, 8)
    assert max(network_bytes(model.link_bytes(plain, 8 * MiB))) == 4 * max(
        network_bytes(model.link_bytes(ordered, 8 * MiB))
    )
    assert model.seconds(plain, 8 * MiB) > 2 * model.seconds(ordered, 8 * MiB)


def test_pipelining_hides_the_depth_of_a_tree() -> None:
    topology, placement = many_hosts((1,) * 8)
    model = CostModel(topology, placement, FREE_ENGINE)
    seconds = model.seconds(TREE.build(C.BROADCAST, 8), 64 * MiB)
    once = 64 * MiB / ETHERNET.bandwidth_Bps
    assert once < seconds < 1.6 * once


def test_slots_serve_one_round_plans_on_one_host_up_to_a_limit() -> None:
    plan, two = DIRECT.build(C.ALL_TO_ALL, 4), DIRECT.build(C.ALL_REDUCE, 4, params={"rounds": 2})
    one_host = CostModel(*single_host(4), EngineCosts(one_round_limit_bytes=4096))
    assert one_host.uses_slots(plan, 1024) and not one_host.uses_slots(plan, 1025)  # INPUT has four blocks
    assert not one_host.uses_slots(two, 16)
    assert not CostModel(*two_hosts(2)).uses_slots(plan, 16)
    assert one_host.seconds(plan, 1024) < CostModel(*single_host(4), FREE_ENGINE).seconds(plan, 1024) + 2e-6
    assert one_host.link_bytes(plan, 4096)


def test_shared_folds_serve_ranks_of_one_host() -> None:
    def shares(world: int, **engine: int) -> bool:
        two_rounds = DIRECT.build(C.ALL_REDUCE, world, params={"rounds": 2})
        return CostModel(*single_host(world), EngineCosts(**engine)).shares_fold(two_rounds)

    assert shares(3) and shares(3, one_round_limit_bytes=4096)
    assert not shares(2)  # its rings are faster
    assert not shares(3, one_round_limit_bytes=4095)
    four = DIRECT.build(C.ALL_REDUCE, 4, params={"rounds": 2})
    assert not CostModel(*two_hosts(2)).shares_fold(four)
    model = CostModel(*single_host(4), EngineCosts())
    assert not model.shares_fold(DIRECT.build(C.ALL_REDUCE, 4))
    assert not model.shares_fold(DIRECT.build(C.REDUCE, 4, params={"rounds": 2}))
    small, large, larger = model.curve(four, [64 * 1024, 16 * MiB, 32 * MiB])
    assert small < 20e-6 and 1.9 < larger / large < 2.1


def test_an_engine_that_costs_more_is_slower() -> None:
    shape = single_host(4)
    plan = HALVING_DOUBLING.build(C.ALL_REDUCE, 4)
    base = CostModel(*shape, EngineCosts())
    for slower in (EngineCosts(step_s=1e-3), EngineCosts(message_s=1e-3), EngineCosts(touch_Bps=1e6)):
        assert CostModel(*shape, slower).seconds(plan, 4096) > 2 * base.seconds(plan, 4096)
    remote = two_hosts(2)
    slower = EngineCosts(network_message_s=1e-2)
    assert CostModel(*remote, slower).seconds(plan, 4096) > 2 * CostModel(*remote).seconds(plan, 4096)
    assert any(link.kind is LinkKind.ETHERNET for link in remote[0].links)
