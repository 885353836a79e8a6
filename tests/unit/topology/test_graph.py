"""Topology as a value: what it refuses, what it answers, equality and digest."""

from __future__ import annotations

import pickle

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology


def cpu(name: str, numa: str = "") -> Node:
    return Node(name, NodeKind.DEVICE, device=DeviceKind.CPU, numa=numa)


def wire(a: str, b: str, bandwidth_Bps: float = 1e9, latency_s: float = 1e-6) -> tuple[Link, Link]:
    return (
        Link(a, b, LinkKind.ETHERNET, bandwidth_Bps, latency_s),
        Link(b, a, LinkKind.ETHERNET, bandwidth_Bps, latency_s),
    )


HOSTS = (Node("a", NodeKind.HOST), Node("b", NodeKind.HOST))
NODES = (
    *HOSTS,
    cpu("a/cpu0"),
    cpu("a/cpu10"),
    cpu("a/cpu2"),
    cpu("b/cpu0"),
    Node("b/eth0", NodeKind.NIC),
    Node("tor", NodeKind.SWITCH),
)
LINKS = (*wire("a/cpu0", "tor"), *wire("b/cpu0", "b/eth0"), *wire("b/eth0", "tor"))
TOPOLOGY = Topology(NODES, LINKS)


def test_queries() -> None:
    assert TOPOLOGY.hosts() == ("a", "b")
    assert TOPOLOGY.devices() == ("a/cpu0", "a/cpu2", "a/cpu10", "b/cpu0")  # natural order
    assert TOPOLOGY.devices("b") == ("b/cpu0",)
    assert TOPOLOGY.nics() == ("b/eth0",)
    assert TOPOLOGY.nics("a") == ()
    assert [node.name for node in TOPOLOGY.nodes_within("b")] == ["b", "b/cpu0", "b/eth0"]
    assert [node.name for node in TOPOLOGY.nodes_within("")] == ["tor"]
    assert [str(link) for link in TOPOLOGY.links_within("b")] == ["b/cpu0 -> b/eth0", "b/eth0 -> b/cpu0"]
    assert len(TOPOLOGY.links_within("")) == 4
    assert TOPOLOGY.host_of("a/cpu2") == "a"
    assert TOPOLOGY.host_of("a") == "a"
    assert TOPOLOGY.host_of("tor") == ""
    assert TOPOLOGY.node("b/eth0").interface == "eth0"
    assert TOPOLOGY.link("a/cpu0", "tor").bandwidth_Bps == 1e9
    assert [link.dst for link in TOPOLOGY.links_from("tor")] == ["a/cpu0", "b/eth0"]


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(TopologyError, match=r"no node 'b/eth1'; did you mean 'b/eth0'\?"):
        TOPOLOGY.node("b/eth1")
    with pytest.raises(TopologyError, match="no link a/cpu0 -> b/cpu0"):
        TOPOLOGY.link("a/cpu0", "b/cpu0")
    with pytest.raises(TopologyError, match="'tor' is a switch, not a host"):
        TOPOLOGY.devices("tor")
    with pytest.raises(TopologyError, match="no host 'bb'; did you mean 'b'"):
        TOPOLOGY.links_within("bb")
    with pytest.raises(TopologyError, match="no node 'c'"):
        TOPOLOGY.path("c", "c")


def test_equality_and_digest_do_not_depend_on_order() -> None:
    other = Topology(NODES[::-1], LINKS[::-1])
    assert other == TOPOLOGY
    assert hash(other) == hash(TOPOLOGY)
    assert other.digest() == TOPOLOGY.digest()
    assert len(TOPOLOGY.digest()) == 64


def test_digest_is_pinned() -> None:
    """Ranks of different versions compare digests: a change of the canonical form must be meant."""
    tiny = Topology((Node("h", NodeKind.HOST), cpu("h/cpu0")), wire("h", "h/cpu0"))
    assert tiny.digest() == "2ffdf8e211997701eccf1bf71905362b0249ed13e64c3f207bad41581fa32264"


@pytest.mark.parametrize(
    "changed",
    [
        Topology((*NODES[:-2], Node("b/eth0", NodeKind.NIC, interface="x"), NODES[-1]), LINKS),
        Topology((*NODES[:-2], Node("b/eth0", NodeKind.NIC, pci="0000:01:00.0"), NODES[-1]), LINKS),
        Topology((*NODES, Node("a/numa0", NodeKind.NUMA)), LINKS),
        Topology((*NODES, Node("a/numa0", NodeKind.NUMA, cpus=4)), LINKS),
        Topology((*HOSTS, *NODES[2:3], *NODES[4:], cpu("a/cpu10", "a/numa0"), Node("a/numa0", NodeKind.NUMA)), LINKS),
        Topology((*NODES[:2], Node("a/cpu0", NodeKind.DEVICE, device=DeviceKind.NPU), *NODES[3:]), LINKS),
        Topology((*NODES[:-1], Node("tor", NodeKind.HOST)), LINKS),
        Topology(NODES, LINKS[1:]),
        TOPOLOGY.with_estimates({("a/cpu0", "tor"): (1e9 + 1, 1e-6)}),
        TOPOLOGY.with_estimates({("a/cpu0", "tor"): (1e9, 2e-6)}),
        Topology(NODES, (Link("a/cpu0", "tor", LinkKind.ROCE, 1e9, 1e-6), *LINKS[1:])),
    ],
)
def test_digest_changes_with_everything_that_equality_sees(changed: Topology) -> None:
    assert changed != TOPOLOGY
    assert changed.digest() != TOPOLOGY.digest()


def test_queries_leave_the_value_as_it_was() -> None:
    fresh = Topology(NODES, LINKS)
    fresh.path("a/cpu0", "b/cpu0")
    assert fresh == Topology(NODES, LINKS)
    assert pickle.loads(pickle.dumps(fresh)) == fresh


def test_estimates_make_a_new_value() -> None:
    faster = TOPOLOGY.with_estimates({("a/cpu0", "tor"): (2e9, 5e-7)})
    assert (faster.link("a/cpu0", "tor").bandwidth_Bps, faster.link("a/cpu0", "tor").latency_s) == (2e9, 5e-7)
    assert faster.link("tor", "a/cpu0") == TOPOLOGY.link("tor", "a/cpu0")
    assert TOPOLOGY.link("a/cpu0", "tor").bandwidth_Bps == 1e9
    assert TOPOLOGY.with_estimates({}) == TOPOLOGY


@pytest.mark.parametrize("pair", [("a/cpu0", "b/cpu0"), ("a/cpu0", "nowhere")])
def test_estimates_of_what_is_no_link_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(TopologyError, match="there is no"):
        TOPOLOGY.with_estimates({pair: (1e9, 1e-6)})


def test_networkx_has_the_same_nodes_and_links() -> None:
    graph = TOPOLOGY.to_networkx()
    assert set(graph.nodes) == {node.name for node in NODES}
    assert graph.nodes["b/eth0"] == {"kind": "nic", "host": "b"}
    assert set(graph.edges) == {(link.src, link.dst) for link in LINKS}
    assert graph.edges["a/cpu0", "tor"] == {"kind": "ETHERNET", "bandwidth_Bps": 1e9, "latency_s": 1e-6}


def test_link_kinds_are_ordered_from_best_to_worst() -> None:
    path = TOPOLOGY.path("a/cpu0", "b/cpu0")
    assert max(link.kind for link in path) is LinkKind.ETHERNET
    assert LinkKind.NVLINK < LinkKind.MEMORY < LinkKind.PCIE < LinkKind.INFINIBAND < LinkKind.ETHERNET
    assert LinkKind.ROCE.is_network and not LinkKind.PCIE.is_network


@pytest.mark.parametrize(
    ("nodes", "links", "says"),
    [
        ((), (), "at least one node"),
        ((*HOSTS, HOSTS[0]), (), "'a' is there twice"),
        ((cpu("a/cpu0"),), (), "no host 'a'"),
        ((Node("a", NodeKind.SWITCH), cpu("a/cpu0")), (), "no host 'a'"),
        ((*HOSTS, cpu("a/cpu0", "a/numa0")), (), "no NUMA node 'a/numa0'"),
        ((*HOSTS, cpu("a/cpu0", "b/numa0"), Node("b/numa0", NodeKind.NUMA)), (), "no NUMA node 'b/numa0'"),
        (HOSTS, wire("a", "c"), "no node 'c'"),
        (HOSTS, (*wire("a", "b"), wire("a", "b")[1]), "b -> a is there twice"),
    ],
)
def test_bad_graphs_are_refused(nodes: tuple[Node, ...], links: tuple[Link, ...], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        Topology(nodes, links)


@pytest.mark.parametrize(
    ("bandwidth_Bps", "latency_s", "says"),
    [
        (0, 0, "above zero"),
        (-1, 0, "above zero"),
        (float("inf"), 0, "above zero and finite"),
        (float("nan"), 0, "above zero"),
        (1, -1e-9, "zero or more"),
        (1, float("nan"), "zero or more"),
    ],
)
def test_bad_figures_are_refused(bandwidth_Bps: float, latency_s: float, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        Link("a", "b", LinkKind.PCIE, bandwidth_Bps, latency_s)


def test_a_link_has_two_ends() -> None:
    with pytest.raises(TopologyError, match="same node"):
        Link("a", "a", LinkKind.PCIE, 1.0, 0.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Node("", NodeKind.HOST), "WORD or HOST/WORD"),
        (lambda: Node("a b", NodeKind.HOST), "WORD or HOST/WORD"),
        (lambda: Node("-a", NodeKind.HOST), "WORD or HOST/WORD"),
        (lambda: Node("a/b/c", NodeKind.SWITCH), "WORD or HOST/WORD"),
        (lambda: Node("a/", NodeKind.SWITCH), "WORD or HOST/WORD"),
        (lambda: Node("a/b", NodeKind.HOST), "has no '/'"),
        (lambda: Node("eth0", NodeKind.NIC), "belongs to a host"),
        (lambda: Node("a/host", NodeKind.SWITCH), "own vertex"),
        (lambda: Node("a/gpu0", NodeKind.DEVICE), "one of cpu, gpu, npu"),
        (lambda: Node("a", NodeKind.HOST, device=DeviceKind.CPU), "nothing else"),
        (lambda: Node("a", NodeKind.HOST, cpus=4), "only NUMA nodes"),
        (lambda: Node("a/n", NodeKind.NUMA, cpus=-1), "-1 CPUs"),
        (lambda: Node("a/n", NodeKind.NUMA, numa="a/n"), "only devices and NICs"),
        (lambda: Node("a/s", NodeKind.SWITCH, pci="0000:00:00.0"), "only devices and NICs"),
        (lambda: Node("a/s", NodeKind.SWITCH, interface="eth0"), "only NICs"),
    ],
)
def test_bad_nodes_are_refused(make: object, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        make()  # type: ignore[operator]
