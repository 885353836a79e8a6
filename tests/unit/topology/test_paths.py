"""Paths: the order relays, latency, width, and what counts as a relay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.config import parse_cluster
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.shapes import ring, two_hosts

CONFIGS = Path(__file__).parents[3] / "cluster_configs"


def graph(*wires: tuple[str, str, float, float]) -> Topology:
    """A graph from (a, b, bandwidth, latency); the first letter of a local name gives the kind."""
    nodes: dict[str, Node] = {}
    links = []
    for a, b, bandwidth_Bps, latency_s in wires:
        for name in (a, b):
            host, _, local = name.rpartition("/")
            if host:
                nodes[host] = Node(host, NodeKind.HOST)
            if local[0] == "d":
                nodes[name] = Node(name, NodeKind.DEVICE, device=DeviceKind.GPU)
            else:
                nodes[name] = Node(name, NodeKind.NIC if local[0] == "n" else NodeKind.SWITCH)
        links += [Link(x, y, LinkKind.PCIE, bandwidth_Bps, latency_s) for x, y in ((a, b), (b, a))]
    return Topology(tuple(nodes.values()), tuple(links))


def stops(topology: Topology, src: str, dst: str) -> list[str]:
    return [link.dst for link in topology.path(src, dst)]


def test_the_path_to_itself_is_empty_and_infinitely_wide() -> None:
    topology = graph(("h/d0", "h/s", 1, 1))
    assert topology.path("h/d0", "h/d0") == ()
    assert topology.bottleneck_Bps(()) == float("inf")
    assert topology.latency_s(()) == 0


def test_lowest_latency_wins_over_width() -> None:
    topology = graph(("h/d0", "h/s0", 1, 1), ("h/s0", "h/d1", 1, 1), ("h/d0", "h/s1", 9, 2), ("h/s1", "h/d1", 9, 1))
    path = topology.path("h/d0", "h/d1")
    assert [link.dst for link in path] == ["h/s0", "h/d1"]
    assert topology.bottleneck_Bps(path) == 1
    assert topology.latency_s(path) == 2


@pytest.mark.parametrize(("fabric_Bps", "way"), [(9.0, "h/s1"), (0.5, "h/s0")])
def test_nvlink_inside_a_host_wins_over_latency_unless_it_is_narrower(fabric_Bps: float, way: str) -> None:
    plain = graph(("h/d0", "h/s0", 1, 1), ("h/s0", "h/d1", 1, 1))
    fabric = graph(("h/d0", "h/s1", fabric_Bps, 2), ("h/s1", "h/d1", fabric_Bps, 2))
    nvlink = [Link(e.src, e.dst, LinkKind.NVLINK, e.bandwidth_Bps, e.latency_s) for e in fabric.links]
    topology = Topology(tuple(dict.fromkeys(plain.nodes + fabric.nodes)), (*plain.links, *nvlink))
    assert stops(topology, "h/d0", "h/d1") == [way, "h/d1"]


def test_paths_into_hosts_do_not_depend_on_what_was_asked_before() -> None:
    """The search for a second host goes on where that for the home host ended."""
    for name in ("wan_three_sites", "npu16_full_mesh_roce"):
        cluster = parse_cluster((CONFIGS / f"{name}.yaml").read_text("utf-8"), name)
        topology, devices = cluster.topology, cluster.placement.devices
        whole = Topology(topology.nodes, topology.links)
        whole._finder.search_everywhere(devices[0])
        assert all(topology.path(devices[0], other) == whole.path(devices[0], other) for other in devices)


def test_widest_wins_at_equal_latency() -> None:
    topology = graph(("h/d0", "h/s0", 1, 1), ("h/s0", "h/d1", 9, 1), ("h/d0", "h/s1", 2, 1), ("h/s1", "h/d1", 9, 1))
    assert stops(topology, "h/d0", "h/d1") == ["h/s1", "h/d1"]


def test_latencies_are_added_exactly() -> None:
    """0.1 + 0.2 and 0.3 are one latency, so width decides; as floats the narrow way would look shorter."""
    topology = graph(("h/d0", "h/s0", 9, 0.1), ("h/s0", "h/d1", 9, 0.2), ("h/d0", "h/d1", 1, 0.3))
    assert stops(topology, "h/d0", "h/d1") == ["h/s0", "h/d1"]


def test_natural_order_decides_between_equal_paths() -> None:
    topology = graph(("h/d0", "h/s10", 1, 1), ("h/s10", "h/d1", 1, 1), ("h/d0", "h/s9", 1, 1), ("h/s9", "h/d1", 1, 1))
    assert stops(topology, "h/d0", "h/d1") == ["h/s9", "h/d1"]


def test_devices_do_not_forward_where_there_is_another_way() -> None:
    topology = graph(("h/d0", "h/d1", 9, 1), ("h/d1", "h/d2", 9, 1), ("h/d0", "h/s", 1, 50), ("h/s", "h/d2", 1, 50))
    assert stops(topology, "h/d0", "h/d2") == ["h/s", "h/d2"]


def test_devices_forward_where_nothing_else_connects() -> None:
    topology, placement = ring(6)
    assert [link.dst for link in placement.path(0, 2, topology)] == ["h0/gpu1", "h0/gpu2"]
    assert [link.dst for link in placement.path(1, 5, topology)] == ["h0/gpu0", "h0/gpu5"]


def test_a_foreign_host_does_not_forward_where_there_is_another_way() -> None:
    topology = graph(
        ("a/d", "a/n", 9, 1),
        ("a/n", "x", 9, 1),
        ("x", "b/n0", 9, 1),
        ("b/n0", "b/n1", 9, 1),
        ("b/n1", "y", 9, 1),
        ("y", "c/n", 9, 1),
        ("c/n", "c/d", 9, 1),
        ("x", "y", 1, 100),
    )
    assert stops(topology, "a/d", "c/d") == ["a/n", "x", "y", "c/n", "c/d"]


def test_ranks_of_one_host_do_not_leave_it() -> None:
    topology, placement = two_hosts(2)
    assert {topology.host_of(link.dst) for link in placement.path(0, 1, topology)} == {"h0"}
    assert [link.kind for link in placement.path(0, 2, topology)] == [
        LinkKind.MEMORY,
        LinkKind.PCIE,
        LinkKind.ETHERNET,
        LinkKind.ETHERNET,
        LinkKind.PCIE,
        LinkKind.MEMORY,
    ]


def test_links_are_directed_and_a_missing_way_is_refused() -> None:
    nodes = graph(("h/d0", "h/d1", 1, 1)).nodes
    topology = Topology(nodes, (Link("h/d0", "h/d1", LinkKind.PCIE, 1, 1),))
    assert stops(topology, "h/d0", "h/d1") == ["h/d1"]
    with pytest.raises(TopologyError, match="no path from 'h/d1' to 'h/d0'"):
        topology.path("h/d1", "h/d0")
    with pytest.raises(TopologyError, match="no path from 'h/d1' to 'h/d0'"):
        topology.check_connected(["h/d0", "h/d1"])
    with pytest.raises(TopologyError, match="no path from 'h/d1' to 'h/d0'"):
        topology.check_connected(["h/d1", "h/d0"])
    topology.check_connected(["h/d0"])
    topology.check_connected([])


def test_a_thousand_ranks_are_read_and_routed_in_seconds() -> None:
    """128 hosts with 8 GPUs: 3,585 nodes, 10,496 links; a shortest tree each for the ranks of one host."""
    file = Path(__file__).parents[3] / "cluster_configs/two_nodes_8gpu_ib.yaml"
    started = time.monotonic()
    config = parse_cluster(file.read_text().replace("node[0-1]", "node[0-127]"))
    for src in range(8):
        assert len(config.placement.path(src, 1023 - src, config.topology)) == 6
    assert config.placement.size == 1024
    assert time.monotonic() - started < 20  # 1.5 s on an idle core
