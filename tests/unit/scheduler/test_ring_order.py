"""Ring order: a bottleneck travelling salesman, against all orders."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from scheduler_graphs import graphs

from hccl_py.core.types import Collective
from hccl_py.scheduler.rails_for import inner_order
from hccl_py.scheduler.ring_order import _improved, ring_cost, ring_order, ring_sets
from hccl_py.scheduler.routes import Routes
from hccl_py.scheduler.select import build_table
from hccl_py.scheduler.simulate import simulate
from hccl_py.topology.config import parse_cluster
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.shapes import single_host, two_hosts

Shape = tuple[Topology, Placement]

SITES = """
version: 1
hosts: {'h[0-7]': {devices: {cpu0: {kind: cpu}}, nics: {eth0: }, links: [
  {between: [cpu0, eth0], kind: pcie, bandwidth: 8GB/s, latency: 1us}]}}
switches: {west: , east: }
links:
  - {between: ["h[0-3]/eth0", west], kind: ethernet, bandwidth: 1Gbit/s, latency: 10us}
  - {between: ["h[4-7]/eth0", east], kind: ethernet, bandwidth: 1Gbit/s, latency: 10us}
  - {between: [west, east], kind: ethernet, bandwidth: 200Mbit/s, latency: 10us}
placement: [h0/cpu0, h4/cpu0, h1/cpu0, h5/cpu0, h2/cpu0, h6/cpu0, h3/cpu0, h7/cpu0]
"""


@given(graphs())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_order_of_few_ranks_has_a_less_busy_link(shape: Shape) -> None:
    routes = Routes(*shape)
    order = ring_order(*shape)
    assert sorted(order) == list(range(shape[1].size))
    best = min(ring_cost(routes, (0, *rest))[0] for rest in permutations(range(1, routes.size)))
    assert ring_cost(routes, order)[0] == pytest.approx(best)
    improved = _improved(routes)
    assert sorted(improved) == list(range(routes.size))
    assert best <= ring_cost(routes, improved)[0] * 1.000001 <= ring_cost(routes, range(routes.size))[0] * 1.00001


def test_interleaved_sites_are_put_in_order_and_the_table_uses_it() -> None:
    """Eight ranks go to and fro between two sites; a good order crosses the thin link once each way."""
    cluster = parse_cluster(SITES, "sites")
    topology, placement = cluster.topology, cluster.placement
    order = ring_order(topology, placement)
    crossings = sum(order[i - 1] % 2 != order[i] % 2 for i in range(8))
    assert crossings == 2
    (params,) = ring_sets(Collective.ALL_REDUCE, topology, placement)
    assert params == {"order": order}
    forced = build_table(Collective.ALL_REDUCE, topology, placement, forced="ring", declared=True)
    assert dict(forced.choose(1 << 28).plan.params)["order"] == order
    plain = build_table(Collective.ALL_REDUCE, topology, placement, forced="ring")
    there, back = (simulate(table.choose(1 << 28).plan, topology, placement, 1 << 28) for table in (plain, forced))
    assert there.seconds > 3.9 * back.seconds


def test_nothing_is_tried_where_hosts_in_a_row_are_as_good() -> None:
    assert ring_sets(Collective.ALL_REDUCE, *two_hosts(2)) == ()
    assert ring_order(*single_host(2)) == (0, 1)


def test_the_order_inside_a_host_goes_round_where_a_link_between_sockets_is_narrow() -> None:
    text = """
version: 1
hosts: {h: {numa: {"numa[0-1]": {cpus: 8}}, devices: {"gpu[0-1]": {kind: gpu, numa: numa0},
  "gpu[2-3]": {kind: gpu, numa: numa1}}, links: [
  {between: ["gpu[0-1]", numa0], kind: pcie, bandwidth: 32GB/s, latency: 1us},
  {between: ["gpu[2-3]", numa1], kind: pcie, bandwidth: 32GB/s, latency: 1us},
  {between: [numa0, numa1], kind: socket, bandwidth: SOCKET, latency: 0.1us}]}}
"""
    narrow = parse_cluster(text.replace("SOCKET", "20GB/s"), "narrow")
    wide = parse_cluster(text.replace("SOCKET", "200GB/s"), "wide")
    assert inner_order(narrow.topology, narrow.placement, (0, 1, 2, 3)) in [(0, 1, 2, 3), (0, 1, 3, 2)]
    assert inner_order(wide.topology, wide.placement, (0, 1, 2, 3)) == ()
