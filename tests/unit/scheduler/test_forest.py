"""Packed trees and bounds on random graphs and on graphs whose optimum is known."""

from __future__ import annotations

import os
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, seed, settings
from scheduler_graphs import graphs
from scheduler_reference import check

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.algorithms.forest import FOREST, trees_of
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.arborescence import cheapest_tree
from hccl_py.scheduler.bounds import Bounds, gap, lower_bound
from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.packing import pack
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.routes import Routes
from hccl_py.scheduler.select import build_table
from hccl_py.scheduler.simulate import simulate
from hccl_py.scheduler.synthesis import MAX_FOREST_RANKS, forest_for
from hccl_py.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.node import DeviceKind
from hccl_py.topology.placement import Placement
from hccl_py.topology.shapes import full_mesh, many_hosts, ring, single_host, two_hosts

C = Collective
TREES = (C.ALL_REDUCE, C.REDUCE, C.BROADCAST, C.ALL_GATHER, C.REDUCE_SCATTER)
MB = 1_000_000
NUM_GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "12"))  # `make bench-topology PART=graphs` takes hundreds
MAX_RANKS = 8 if "RANDOM_GRAPHS" in os.environ else 6
Shape = tuple[Topology, Placement]


def star(*Mbps: int, latency_s: float = 10e-6) -> Shape:
    """Hosts of one rank at one switch, with these speeds."""
    nodes, links, devices = [Node("net", NodeKind.SWITCH)], [], []
    for i, speed in enumerate(Mbps):
        device = f"h{i}/cpu0"
        nodes += [Node(f"h{i}", NodeKind.HOST), Node(device, NodeKind.DEVICE, device=DeviceKind.CPU)]
        ends = ((device, "net"), ("net", device))
        links += [Link(a, b, LinkKind.ETHERNET, speed * 125e3, latency_s) for a, b in ends]
        devices.append(device)
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(devices))


def two_sites(between_Mbps: int) -> Shape:
    """Two sites of two hosts at 1 Gbit/s, ranks interleaved."""
    nodes = [Node("west", NodeKind.SWITCH), Node("east", NodeKind.SWITCH)]
    wires = [("west", "east", between_Mbps)]
    for i in range(4):
        nodes += [Node(f"h{i}", NodeKind.HOST), Node(f"h{i}/cpu0", NodeKind.DEVICE, device=DeviceKind.CPU)]
        wires.append((f"h{i}/cpu0", ("west", "east")[i % 2], 1000))
    links = [Link(*ends, LinkKind.ETHERNET, speed * 125e3, 10e-6) for a, b, speed in wires for ends in ((a, b), (b, a))]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(f"h{i}/cpu0" for i in range(4)))


def busiest_link_s(plan: Plan, shape: Shape, size: int) -> float:
    """What even an engine without any costs and latencies takes: the time of the busiest link."""
    loads = CostModel(*shape).link_bytes(plan, size)
    return max((amount / link.bandwidth_Bps for link, amount in loads.items()), default=0.0)


@seed(int(os.environ.get("RANDOM_SEED", "0")))
@given(graphs(max_ranks=MAX_RANKS))
@settings(max_examples=NUM_GRAPHS, deadline=None, database=None)
def test_on_random_graphs_forests_are_verified_and_nothing_beats_the_bound(shape: Shape) -> None:
    topology, placement = shape
    root = placement.size - 1
    for collective in TREES:
        size = 6 * MB
        bound = lower_bound(topology, placement, collective, size, root)
        (params,) = forest_for(collective, topology, placement, root)
        forest = FOREST.build(collective, placement.size, root, params)
        # a tree packing uses up what its busiest links can do; whole slots and tidiness cost a little
        assert bound.seconds * 0.9999 <= busiest_link_s(forest, shape, size) <= 1.06 * bound.seconds, bound
        assert simulate(forest, topology, placement, size).seconds >= bound.seconds * 0.9999
        for algorithm in builtin_algorithms():
            if algorithm is FOREST or not algorithm.supports(collective):
                continue
            for variant in algorithm.variants(collective, placement.groups(topology)):
                plan = algorithm.build(collective, placement.size, root, variant)
                assert CostModel(topology, placement).seconds(plan, size) >= bound.seconds * 0.9999, plan.name
                assert busiest_link_s(plan, shape, size) >= bound.seconds * 0.9999, plan.name


@given(graphs(max_ranks=5))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_forests_of_random_graphs_compute_what_numpy_does(shape: Shape) -> None:
    topology, placement = shape
    for channels, collective in enumerate(TREES, 1):
        (params,) = forest_for(collective, topology, placement, 0, channels)
        plan = FOREST.build(collective, placement.size, 0, params)
        assert plan.channels <= channels
        check(plan.programs, count=2 * plan.slots_per_block + 1, in_place=channels % 2 == 0, average=False, seed=1)


@pytest.mark.parametrize(
    ("shape", "collective", "wanted_s"),
    [
        (star(1000, 1000, 500, 200), C.ALL_REDUCE, MB / 25e6),  # all of it leaves and enters the slowest host once
        (star(1000, 1000, 1000, 1000), C.ALL_REDUCE, 2 * 3 / 4 * MB / 125e6),  # as a ring
        (two_sites(200), C.ALL_REDUCE, MB / 25e6),
        (two_sites(200), C.ALL_GATHER, 2 * MB / 25e6),
        (star(1000, 400), C.BROADCAST, MB / 50e6),
        (star(1000, 1000, 1000), C.REDUCE, MB / 125e6),
        (full_mesh(4), C.ALL_REDUCE, 2 * 3 / 4 * MB / (3 * 394e9)),  # every GPU uses its three links
        (ring(4), C.ALL_GATHER, 3 * MB / (2 * 394e9)),  # both ways round
        (single_host(4), C.REDUCE_SCATTER, 3 * MB / 12e9),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_optimum_where_it_is_known(shape: Shape, collective: Collective, wanted_s: float) -> None:
    bound = lower_bound(*shape, collective, MB)
    assert bound.seconds == pytest.approx(wanted_s, rel=2e-3)
    cuts = lower_bound(*shape, collective, MB, trees=False)
    assert cuts.seconds <= bound.seconds * 1.0001
    (params,) = forest_for(collective, *shape)
    plan = FOREST.build(collective, shape[1].size, 0, params)
    assert busiest_link_s(plan, shape, MB) <= 1.02 * bound.seconds


def test_forest_beats_the_ring_where_links_differ() -> None:
    for shape, factor in ((star(1000, 1000, 500, 200), 1.35), (two_sites(200), 2.0)):
        (params,) = forest_for(C.ALL_REDUCE, *shape)
        model = CostModel(*shape)
        forest = model.seconds(FOREST.build(C.ALL_REDUCE, 4, 0, params), 16 << 20)
        assert model.seconds(RING.build(C.ALL_REDUCE, 4), 16 << 20) >= factor * forest
        assert forest <= lower_bound(*shape, C.ALL_REDUCE, 16 << 20).seconds / 0.9


def test_bounds_say_why() -> None:
    shape = star(1000, 1000, 500, 200)
    assert lower_bound(*shape, C.ALL_REDUCE, MB, trees=False).why == "cut around rank 3"
    assert lower_bound(*shape, C.ALL_REDUCE, 0).why == "latency between ranks 0 and 1"
    assert lower_bound(*shape, C.GATHER, MB, root=0).seconds == pytest.approx(MB / 25e6, rel=1e-3)
    assert lower_bound(*shape, C.SCATTER, MB, root=3).seconds == pytest.approx(3 * MB / 25e6, rel=1e-3)
    assert lower_bound(*single_host(1), C.ALL_REDUCE, MB).seconds == 0
    hosts = many_hosts((4, 4, 4))
    assert lower_bound(*hosts, C.ALL_REDUCE, MB).seconds == pytest.approx(4 / 3 * MB / 1.25e9, rel=1e-3)
    assert lower_bound(*hosts, C.ALL_REDUCE, MB, trees=False).why == "partition into 3 hosts"
    sites = two_sites(200)
    assert lower_bound(*sites, C.ALL_REDUCE, MB, trees=False).why == "cut around ranks 0..2 (2)"


def test_bounds_without_flows_are_bounds_too() -> None:
    large, small = many_hosts((5,) * 13), many_hosts((2,) * 13)
    by_links = lower_bound(*large, C.ALL_REDUCE, MB, trees=False)
    by_flows = lower_bound(*small, C.ALL_REDUCE, MB, trees=False)
    assert by_links.seconds == pytest.approx(by_flows.seconds, rel=1e-4)


def test_gap_is_told_in_per_cent() -> None:
    assert (gap(1.042, 1.0), gap(1.0, 0.0)) == ("+4.2%", "-")


def test_cheapest_trees_are_those_of_networkx() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 9))
        price, root = rng.integers(1, 6, (n, n)).astype(float), int(rng.integers(n))
        parents = cheapest_tree(price, root)
        graph = nx.DiGraph([(u, v, {"weight": price[u, v]}) for u in range(n) for v in range(n) if v not in (u, root)])
        chosen = nx.DiGraph([(int(parents[v]), v) for v in range(n) if v != root])
        assert nx.is_arborescence(chosen) and parents[root] == -1
        wanted = nx.minimum_spanning_arborescence(graph).size("weight")
        assert sum(price[u, v] for u, v in chosen.edges) == wanted


def test_tables_use_forests_and_state_bounds_only_for_declared_graphs() -> None:
    shape = two_sites(200)
    table = build_table(C.ALL_REDUCE, *shape, declared=True)
    row = table.choose(64 << 20)
    assert row.plan.algorithm == "forest" and 0 < row.bound_s <= row.predicted_s
    assert "bound" in str(table) and "%" in str(table)
    plain = build_table(C.ALL_REDUCE, *shape)
    assert all(row.plan.algorithm != "forest" and row.bound_s == 0 for row in plain.entries)
    assert build_table(C.BROADCAST, *two_hosts(2), forced="forest").entries[0].plan.algorithm == "forest"
    with pytest.raises(PlanError, match=f"finds nothing for {MAX_FOREST_RANKS + 1} ranks"):
        build_table(C.ALL_REDUCE, *single_host(MAX_FOREST_RANKS + 1), forced="forest")


def test_more_channels_are_used_where_there_are_more() -> None:
    shape = full_mesh(4)
    few, many = (
        FOREST.build(C.ALL_REDUCE, 4, 0, forest_for(C.ALL_REDUCE, *shape, 0, channels)[0]) for channels in (1, 6)
    )
    assert few.channels == 1 < many.channels <= 6


def test_a_packing_gets_no_worse_with_more_rounds() -> None:
    routes = Routes(*full_mesh(5))
    first, best = pack(routes, C.ALL_GATHER, max_rounds=1), pack(routes, C.ALL_GATHER)
    assert first.seconds_per_byte >= best.seconds_per_byte >= best.bound_s
    assert Bounds(*full_mesh(5), C.ALL_GATHER).at(MB).seconds == pytest.approx(MB * best.bound_s, rel=2e-3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shares": (1,)}, "2 roots, 1 shares"),
        ({"roots": ()}, "0 roots"),
        ({"up": ((-1, 0), (1, -1, 0))}, "are not the parents of 3 ranks"),
        ({"down": ((-1, 0, 7), (1, -1, 0))}, "are not the parents of 3 ranks"),
        ({"down": ((-1, 0, 2), (1, -1, 0))}, "in a tree with root 0"),  # rank 2 is its own parent
        ({"up": ((-1, 0, -1), (1, -1, 0))}, "in a tree with root 0"),
        ({"up": ((-1, 2, 1), (1, -1, 0))}, "deadlock"),  # ranks 1 and 2 turn in a circle
        ({"shares": (1, 0)}, "not all one slot or more"),
    ],
)
def test_parameters_that_are_no_forest_are_refused(change: dict, why: str) -> None:  # type: ignore[type-arg]
    good = {"roots": (0, 1), "shares": (1, 2), "up": ((-1, 0, 0), (1, -1, 0)), "down": ((-1, 0, 0), (1, -1, 0))}
    assert FOREST.build(C.ALL_REDUCE, 3, 0, good).slots_per_block == 3
    with pytest.raises(PlanError, match=why):
        FOREST.build(C.ALL_REDUCE, 3, 0, {**good, **change})


def test_trees_of_one_root_cut_its_block_alike() -> None:
    params = {"roots": (0, 0, 1), "shares": (1, 2, 2), "up": (), "down": ((-1, 0), (-1, 0), (1, -1))}
    with pytest.raises(PlanError, match=r"into \[2, 3\] slots"):
        trees_of(C.ALL_GATHER, 2, params)  # type: ignore[arg-type]


def test_links_that_no_route_uses_do_not_count() -> None:
    topology, placement = star(1000, 1000)
    bound = lower_bound(topology, placement, C.ALL_REDUCE, MB)
    slow = [Link(*ends, LinkKind.ETHERNET, 1e6, 1.0) for ends in (placement.devices, placement.devices[::-1])]
    more = replace(topology, links=(*topology.links, *slow))
    assert lower_bound(more, placement, C.ALL_REDUCE, MB) == bound
