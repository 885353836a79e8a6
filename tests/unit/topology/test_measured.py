"""A cluster from measured pairs, its comparison with a declared one, and the file that takes over the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.config import load_cluster, parse_cluster
from hccl_py.topology.diff import compare
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.measured import Assembled, Pair, assemble
from hccl_py.topology.priors import both_ways
from hccl_py.topology.update import with_overrides

CONFIGS = Path(__file__).parents[3] / "cluster_configs"


def inside(host: str, cpus: int = 1, gpus: int = 0, nic: bool = True) -> Topology:
    nodes = [Node(host, NodeKind.HOST)]
    nodes += [Node(f"{host}/cpu{i}", NodeKind.DEVICE, device=DeviceKind.CPU) for i in range(cpus)]
    nodes += [Node(f"{host}/gpu{i}", NodeKind.DEVICE, device=DeviceKind.GPU) for i in range(gpus)]
    links: list[Link] = []
    for node in nodes[1:]:
        links += both_ways(node.name, host, LinkKind.PCIE if "gpu" in node.name else LinkKind.MEMORY)
    if nic:
        nodes += [Node(f"{host}/eth0", NodeKind.NIC), Node("ethernet", NodeKind.SWITCH)]
        links += [
            *both_ways(host, f"{host}/eth0", LinkKind.PCIE),
            *both_ways(f"{host}/eth0", "ethernet", LinkKind.ETHERNET),
        ]
    return Topology(tuple(nodes), tuple(links))


def star(*rates: float, narrow: dict[tuple[int, int], float] | None = None, latency_s: float = 40e-6) -> Assembled:
    """Hosts of one rank each behind these rates; ``narrow``: what some pairs reach instead."""
    count = range(len(rates))
    pairs = {}
    for a in count:
        for b in count:
            if a != b:
                width = (narrow or {}).get((a, b), (narrow or {}).get((b, a), min(rates[a], rates[b])))
                pairs[a, b] = Pair(width, latency_s if width == min(rates[a], rates[b]) else 2e-3)
    return assemble([inside(f"h{i}") for i in count], [(i,) for i in count], pairs)


def test_a_star_comes_out_as_it_is() -> None:
    made = star(125e6, 125e6, 62.5e6, 25e6)
    topology = made.topology
    assert {e.src: e.bandwidth_Bps for e in topology.links_to("network")} == {
        "h0/eth0": 125e6, "h1/eth0": 125e6, "h2/eth0": 62.5e6, "h3/eth0": 25e6,
    }  # fmt: skip
    assert topology.latency_s(made.placement.path(0, 3, topology)) == pytest.approx(40e-6, rel=0.05)
    assert made.placement.devices == ("h0/cpu0", "h1/cpu0", "h2/cpu0", "h3/cpu0")
    assert "ethernet" not in [node.name for node in topology.nodes]


def test_directions_may_differ() -> None:
    pairs = {(0, 1): Pair(100e6, 1e-5), (1, 0): Pair(10e6, 1e-5)}
    topology = assemble([inside("a"), inside("b")], [(0,), (1,)], pairs).topology
    assert topology.link("a/eth0", "network").bandwidth_Bps == topology.link("network", "b/eth0").bandwidth_Bps == 100e6
    assert topology.link("b/eth0", "network").bandwidth_Bps == 10e6


def test_two_sites_are_told_apart() -> None:
    narrow = {(0, 1): 25e6, (0, 3): 25e6, (2, 1): 25e6, (2, 3): 25e6}
    made = star(125e6, 125e6, 125e6, 125e6, narrow=narrow)
    switches = [node.name for node in made.topology.nodes_within("")]
    assert switches == ["site0", "site1"]
    near = {e.src.split("/")[0] for e in made.topology.links_to("site0") if "/" in e.src}
    assert near == {"h0", "h2"}
    link = made.topology.link("site0", "site1")
    assert link.bandwidth_Bps == 25e6
    assert link.latency_s == pytest.approx(2e-3 - 40e-6, rel=0.05)
    assert any("2 sites" in note for note in made.notes)


def test_ranks_in_a_host_get_measured_memory_and_places() -> None:
    pairs = {(0, 1): Pair(8e9, 1e-6), (1, 0): Pair(6e9, 2e-6), (0, 2): Pair(4e9, 3e-6), (2, 0): Pair(4e9, 3e-6)}
    made = assemble([inside("a", cpus=2)], [(0, 1, 2)], pairs)
    assert made.placement.devices == ("a/cpu0", "a/cpu1", "a/rank0")
    assert made.topology.link("a/cpu1", "a").bandwidth_Bps == 8e9
    assert made.topology.link("a/rank0", "a").bandwidth_Bps == 4e9
    assert made.topology.link("a", "a/rank0").latency_s == 1.5e-6
    assert any("more ranks than CPUs" in note for note in made.notes)
    assert "ethernet" in [node.name for node in made.topology.nodes]  # one host: nothing of it was measured


def test_accelerators_are_the_places_if_they_suffice() -> None:
    made = assemble([inside("a", cpus=4, gpus=2), inside("b", gpus=2, nic=False)], [(0, 2), (1, 3)],
                    {(0, 1): Pair(1e9, 1e-5), (1, 0): Pair(1e9, 1e-5)})  # fmt: skip
    assert made.placement.devices == ("a/gpu0", "b/gpu0", "a/gpu1", "b/gpu1")
    assert made.topology.nics("b") == ("b/nic0",)
    assert any("no NIC was found" in note for note in made.notes)


def test_contradictions_are_refused() -> None:
    with pytest.raises(TopologyError, match="two hosts are called 'a'"):
        assemble([inside("a"), inside("a")], [(0,), (1,)], {})
    with pytest.raises(TopologyError, match="nothing was measured from 'a/eth0' to 'b/eth0'"):
        assemble([inside("a"), inside("b")], [(0,), (1,)], {})


# ---- diff


def test_equal_clusters_have_nothing_to_tell() -> None:
    config = load_cluster(CONFIGS / "four_hosts_uneven.yaml")
    figures, notes = compare((config.topology, config.placement), (config.topology, config.placement))
    assert {figure.factor for figure in figures} == {1.0}
    assert not notes
    assert {figure.what.split()[0] for figure in figures} == {"ranks", "link"}


def test_what_is_off_is_named_with_both_figures() -> None:
    declared = load_cluster(CONFIGS / "lab_star.yaml")
    made = star(125e6, 40e6, 62.5e6, 25e6)
    figures, notes = compare((declared.topology, declared.placement), (made.topology, made.placement))
    far = {str(one): one.factor for one in figures if one.factor > 2 and one.quantity == "bandwidth"}
    assert set(far) == {  # not the links between NIC and memory: of them the second graph has priors only
        "ranks 0 -> 1: bandwidth 125MB/s declared, 40MB/s measured",
        "ranks 1 -> 0: bandwidth 125MB/s declared, 40MB/s measured",
    }
    assert all(factor == pytest.approx(3.125) for factor in far.values())
    assert not [note for note in notes if "ranks are declared" in note]


def test_different_sizes_and_groupings_are_said() -> None:
    two, four = load_cluster(CONFIGS / "two_hosts_ethernet.yaml"), load_cluster(CONFIGS / "single_host_4cpu.yaml")
    _, notes = compare((two.topology, two.placement), (four.topology, four.placement))
    assert "8 ranks are declared, 4 were measured: compared the first 4" in notes
    assert "no link has the same name on both sides: only ranks were compared" in notes
    uneven = load_cluster(CONFIGS / "four_hosts_uneven.yaml")
    _, notes = compare((four.topology, four.placement), (uneven.topology, uneven.placement.head(4)))
    assert "declared hosts hold the ranks 0,1,2,3, measured ones 0 | 1 | 2 | 3" in notes


def test_update_keeps_comments_and_order() -> None:
    text = (CONFIGS / "lab_star.yaml").read_text()
    before = parse_cluster(text).topology
    (one,) = [link for link in before.links_from("h1/eth0") if link.kind.is_network]
    both = {(one.src, one.dst): (40e6, 1e-5), (one.dst, one.src): (40e6, 1e-5)}
    other = {("h0", "h0/cpu0"): (5e9, 1e-6)}
    new = with_overrides(text, {**both, **other})
    assert [line for line in text.splitlines() if "#" in line] == [line for line in new.splitlines() if "#" in line]
    after = parse_cluster(new).topology
    assert after == before.with_estimates({**both, **other})
    assert new.count("between") == text.count("between") + 1
    again = with_overrides(new, {("h0/cpu0", "h0"): (4e9, 1e-6)})
    assert parse_cluster(again).topology.link("h0/cpu0", "h0").bandwidth_Bps == 4e9
    assert again.startswith(new[:-1].rpartition("\n")[0])
