"""Properties of random graphs: canonical form, round trip through YAML, and best paths against brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.core.errors import TopologyError
from hccl_py.topology.config import parse_cluster, parse_topology
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.paths import PathFinder, extend, relays
from hccl_py.topology.placement import Placement
from hccl_py.topology.tree import tree_text

quick = settings(deadline=None, max_examples=60)
LETTERS = "abAB0129_"  # few, so that names are alike
WORDS = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}.:@+-", max_size=5))
FIGURES = st.floats(1e-3, 1e13)


@st.composite
def topologies(draw: st.DrawFn, simple: bool = False, max_size: int = 9) -> Topology:
    """Random graphs. ``simple``: few different figures, so that many paths are equally good."""
    words = st.sampled_from(["a", "b", "c"]) if simple else WORDS
    hosts = draw(st.lists(words, min_size=1, max_size=3, unique=True))
    nodes = {host: Node(host, NodeKind.HOST) for host in hosts}
    numas: list[str] = []
    for number in range(draw(st.integers(1, max_size))):
        kind = draw(st.sampled_from([k for k in NodeKind if k is not NodeKind.HOST]))
        local = f"x{number}" if simple else draw(WORDS.filter(lambda word: word != "host"))
        host = draw(st.sampled_from(hosts)) if kind is not NodeKind.SWITCH or draw(st.booleans()) else ""
        name = f"{host}/{local}" if host else local
        if name in nodes:
            continue
        near = [numa for numa in numas if numa.split("/")[0] == host]
        numa = draw(st.sampled_from(["", *near])) if kind in (NodeKind.DEVICE, NodeKind.NIC) else ""
        nodes[name] = Node(
            name,
            kind,
            device=draw(st.sampled_from(DeviceKind)) if kind is NodeKind.DEVICE else None,
            numa=numa,
            cpus=draw(st.integers(0, 99)) if kind is NodeKind.NUMA else 0,
            interface=draw(st.sampled_from(["", "eth0", "1", "no: thing", "null"])) if kind is NodeKind.NIC else "",
            pci=draw(st.sampled_from(["", "0000:01:00.0", "1e5"])) if kind in (NodeKind.DEVICE, NodeKind.NIC) else "",
        )
        numas += [name] if kind is NodeKind.NUMA else []
    ends = st.tuples(st.sampled_from(sorted(nodes)), st.sampled_from(sorted(nodes))).filter(
        lambda pair: pair[0] != pair[1]
    )
    pairs = draw(st.lists(ends, max_size=3 * len(nodes), unique=True)) if len(nodes) > 1 else []
    bandwidth = st.sampled_from([1.0, 2.0, 3.0]) if simple else FIGURES
    latency = st.sampled_from([0.0, 0.1, 0.2, 0.3]) if simple else st.floats(0, 1e3)
    links = [Link(a, b, draw(st.sampled_from(LinkKind)), draw(bandwidth), draw(latency)) for a, b in pairs]
    mirrored = [Link(e.dst, e.src, e.kind, e.bandwidth_Bps, e.latency_s) for e in links if draw(st.booleans())]
    there = {(e.src, e.dst) for e in links}
    return Topology(tuple(nodes.values()), tuple(links + [e for e in mirrored if (e.src, e.dst) not in there]))


@quick
@given(topologies(), st.randoms())
def test_the_order_in_which_a_graph_is_written_does_not_matter(topology: Topology, random: object) -> None:
    nodes, links = list(topology.nodes), list(topology.links)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    random.shuffle(links)  # type: ignore[attr-defined]
    other = Topology(tuple(nodes), tuple(links))
    assert other == topology
    assert other.digest() == topology.digest()


@quick
@given(topologies(simple=True, max_size=2), topologies(simple=True, max_size=2))
def test_digests_are_equal_exactly_where_graphs_are(a: Topology, b: Topology) -> None:
    assert (a.digest() == b.digest()) == (a == b)


@quick
@given(topologies())
def test_yaml_round_trip(topology: Topology) -> None:
    text = dump_topology(topology)
    assert parse_topology(text) == topology
    assert dump_topology(parse_topology(text)) == text


@quick
@given(topologies(simple=True), st.text(max_size=8), st.randoms())
def test_yaml_round_trip_with_placement(topology: Topology, name: str, random: object) -> None:
    devices = list(topology.devices())
    random.shuffle(devices)  # type: ignore[attr-defined]
    try:
        placement = Placement(tuple(devices))
        placement.check(topology)
    except TopologyError:  # no device, or not connected: nothing that a cluster file may say
        return
    name = "".join(letter for letter in name if letter.isprintable())
    config = parse_cluster(dump_topology(topology, placement, name))
    assert (config.topology, config.placement, config.name) == (topology, placement, name)


@quick
@given(topologies())
def test_every_graph_has_a_tree(topology: Topology) -> None:
    text = tree_text(topology, title="t", width=400)
    assert topology.digest()[:12] in text
    assert all(host in text or "[" in text for host in topology.hosts())


def simple_paths(topology: Topology, src: str, dst: str, seen: tuple[str, ...] = ()) -> Iterator[tuple[Link, ...]]:
    """All paths without a loop, by exhaustion."""
    if src == dst:
        yield ()
        return
    for link in topology.links_from(src):
        if link.dst not in seen and link.dst != src:
            for rest in simple_paths(topology, link.dst, dst, (*seen, src)):
                yield (link, *rest)


def label(topology: Topology, path: tuple[Link, ...]) -> tuple[int, int, float]:
    start = topology.node(path[0].src)
    result = (0, 0, float("-inf"))
    for link in path:
        result = extend(result, link, relays(start, topology.node(link.src), topology.node(link.dst)))
    return result


@quick
@given(topologies(simple=True, max_size=5))
def test_paths_are_connected_and_no_other_is_better(topology: Topology) -> None:
    for src in topology.nodes:
        for dst in topology.nodes:
            if src == dst:
                continue
            every = list(simple_paths(topology, src.name, dst.name))
            try:
                path = topology.path(src.name, dst.name)
            except TopologyError:
                assert not every
                continue
            assert (path[0].src, path[-1].dst) == (src.name, dst.name)
            assert all(a.dst == b.src for a, b in pairwise(path))
            assert label(topology, path) == min(label(topology, other) for other in every)
            assert topology.bottleneck_Bps(path) == min(link.bandwidth_Bps for link in path)


@quick
@given(topologies(simple=True))
def test_the_short_search_finds_what_the_long_one_finds(topology: Topology) -> None:
    for src in topology.nodes:
        patient, hasty = PathFinder(topology.nodes, topology.links), PathFinder(topology.nodes, topology.links)
        hasty.search_everywhere(src.name)
        for dst in topology.nodes:
            assert patient.path(src.name, dst.name) == hasty.path(src.name, dst.name)


@quick
@given(topologies(simple=True))
def test_paths_do_not_depend_on_what_was_asked_before(topology: Topology) -> None:
    def all_paths(graph: Topology, names: list[str]) -> dict[tuple[str, str], tuple[Link, ...] | None]:
        found: dict[tuple[str, str], tuple[Link, ...] | None] = {}
        for src in names:
            for dst in names:
                try:
                    found[src, dst] = graph.path(src, dst)
                except TopologyError:
                    found[src, dst] = None
        return found

    names = [node.name for node in topology.nodes]
    fresh = Topology(topology.nodes[::-1], topology.links[::-1])
    assert all_paths(topology, names) == all_paths(fresh, names[::-1])
