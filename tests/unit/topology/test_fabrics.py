"""Fabrics: what each generator makes, that each field changes it, and how figures that do not fit are refused."""

from __future__ import annotations

import re

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import parse_cluster, parse_topology
from hccl_py.topology.fabrics.kinds import KINDS
from hccl_py.topology.graph import LinkKind, NodeKind, Topology

HEAD = """\
version: 1
link_types:
  wire: {kind: roce, bandwidth: 10GB/s, latency: 1us}
  up: {kind: infiniband, bandwidth: 40GB/s, latency: 2us}
  base: {type: wire, latency: 5us}
hosts:
  h[0-7]:
    numa: {numa0: , numa1: }
    devices: {"gpu[0-3]": {kind: gpu}, gpu4: {kind: gpu, numa: numa1}}
    nics: {nic0: , nic1: }
    links:
      - {between: ["gpu*", host], kind: pcie, bandwidth: 30GB/s, latency: 1us}
      - {between: ["n*", host], kind: pcie, bandwidth: 30GB/s, latency: 1us}
fabrics:
"""
KEYS = {  # of each kind: a good fabric, and for each of its keys other values
    "fat_tree": (
        "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, spines: 2",
        {
            "ends": "['*/nic0']",
            "link": "base",
            "ends_per_leaf": "2",
            "spines": "3",
            "oversubscription": "2:1",
            "uplink": "{latency: 7us}",
            "as_one": "false",
            "leaves_per_pod": "2",
            "cores": "5",
            "core_oversubscription": "3:2",
        },
    ),
    "rail_optimised": (
        "ends: ['*/nic<rail>'], link: wire, spines: 2",
        {
            "ends": "['h[0-3]/nic<rail>']",
            "link": "base",
            "hosts_per_leaf": "4",
            "spines": "0",
            "oversubscription": "4:1",
            "uplink": "up",
            "as_one": "false",
        },
    ),
    "dragonfly": (
        "ends: ['*/nic*'], link: wire, local: up, global: base, ends_per_router: 2, routers_per_group: 2",
        {
            "ends": "['*/nic0']",
            "link": "base",
            "local": "base",
            "global": "wire",
            "ends_per_router": "4",
            "routers_per_group": "4",
        },
    ),
    "torus": (
        "ends: ['*/nic0'], dims: [2, 4], link: wire",
        {"ends": "['*/nic1']", "dims": "[8]", "wrap": "false", "link": "up"},
    ),
    "full_mesh": ("ends: ['*/nic0'], link: wire", {"ends": "['h[0-2]/nic0']", "link": "up"}),
    "ethernet": ("ends: ['*/nic0'], link: wire", {"ends": "['*/nic*']", "link": "up"}),
    "nvswitch": (
        "ends: ['h0/gpu*'], link: wire, chips: 2",
        {"ends": "['h1/gpu*']", "chips": "4", "as_one": "false", "link": "up"},
    ),
    "pcie_tree": (
        "ends: ['h0/nic*'], roots: [h0/numa0, h0/numa1], link: wire",
        {"ends": "['h0/nic0']", "roots": "[h0/numa1]", "switches_per_root": "2", "link": "up", "uplink": "up"},
    ),
}
NEEDS = {
    "spines": "as_one: false",
    "cores": "leaves_per_pod: 2, as_one: false",
    "core_oversubscription": "leaves_per_pod: 2",
}
NEEDS |= {"chips": "as_one: false"}


def fabric(kind: str, keys: str) -> str:
    return f"{HEAD}  f: {{kind: {kind}, {keys}}}\n"


def with_key(keys: str, name: str, value: str) -> str:
    kept = re.sub(rf"(^|, ){name}: (\[[^\]]*\]|\{{[^}}]*\}}|[^,\[]*)", "", keys).strip(", ")
    return f"{kept}, {name}: {value}"


def grow(kind: str, keys: str) -> Topology:
    return parse_topology(fabric(kind, keys), "f.yaml")


def wires(topology: Topology, prefix: str = "f") -> dict[tuple[str, str], float]:
    """Bandwidth in GB/s of the links that touch the fabric's switches, in the direction away from the first end."""
    found = {(e.src, e.dst): e.bandwidth_Bps / 1e9 for e in topology.links_within("")}
    return {ends: gb for ends, gb in found.items() if ends[1].startswith(prefix)}


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, (_, keys) in KEYS.items() for key in keys])
def test_every_key_changes_the_graph(kind: str, key: str) -> None:
    base, keys = KEYS[kind]
    if key in NEEDS:
        for need in NEEDS[key].split(", "):
            base = with_key(base, *need.split(": "))
    changed = with_key(base, key, keys[key])
    assert grow(kind, base) != grow(kind, changed)


def test_no_key_is_left_out_of_the_test_above() -> None:
    assert len(KINDS) == len(KEYS)
    for model in KINDS:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        kind = fields.pop("kind").annotation.__args__[0]  # type: ignore[union-attr]
        assert set(fields) == set(KEYS[kind][1])


def test_fat_tree_with_oversubscription() -> None:
    found = wires(grow("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, spines: 2, oversubscription: 2:1"))
    assert found["h0/nic0", "f-leaf0"] == found["h1/nic1", "f-leaf0"] == found["h2/nic0", "f-leaf1"] == 10
    assert {ends: gb for ends, gb in found.items() if ends[1] == "f-spine"} == {
        (f"f-leaf{i}", "f-spine"): 20 for i in range(4)
    }


def test_each_spine_and_a_stated_uplink() -> None:
    keys = "ends: ['*/nic*'], link: wire, ends_per_leaf: 8, spines: 2, as_one: false, uplink: {bandwidth: 7GB/s}"
    topology = grow("fat_tree", keys)
    assert {e.dst: e.bandwidth_Bps for e in topology.links_from("f-leaf1") if e.dst[0] == "f"} == {
        "f-spine0": 7e9,
        "f-spine1": 7e9,
    }
    merged = grow("fat_tree", keys.replace("as_one: false, ", ""))
    assert merged.link("f-leaf1", "f-spine").bandwidth_Bps == 14e9


def test_pods_have_spines_of_their_own_below_the_cores() -> None:
    keys = "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, leaves_per_pod: 2, core_oversubscription: 2:1"
    topology = grow("fat_tree", keys)
    assert [node.name for node in topology.nodes_within("")] == [
        "f-core", "f-leaf0", "f-leaf1", "f-leaf2", "f-leaf3", "f-pod0-spine", "f-pod1-spine",
    ]  # fmt: skip
    assert topology.link("f-leaf3", "f-pod1-spine").bandwidth_Bps == 40e9
    assert topology.link("f-pod1-spine", "f-core").bandwidth_Bps == 40e9
    assert [e.dst for e in topology.path("f-leaf0", "f-leaf1")] == ["f-pod0-spine", "f-leaf1"]


def test_one_leaf_needs_no_spine() -> None:
    topology = grow("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 16")
    assert [node.name for node in topology.nodes_within("")] == ["f-leaf0"]


def test_rails_stay_apart_below_the_spines() -> None:
    topology = grow("rail_optimised", "ends: ['*/nic<rail>'], link: wire, hosts_per_leaf: 4, spines: 0")
    leaf = {e.src: e.dst for e in topology.links_within("") if e.dst[0] == "f"}
    assert leaf["h0/nic0"] == leaf["h3/nic0"] == "f-rail0-leaf0"
    assert leaf["h4/nic1"] == "f-rail1-leaf1"
    assert len(set(leaf.values())) == 4
    joined = grow("rail_optimised", "ends: ['*/nic<rail>'], link: wire")
    assert joined.link("f-rail1", "f-spine").bandwidth_Bps == 80e9


def test_dragonfly_has_one_link_between_every_two_groups() -> None:
    keys = "ends: ['*/nic*'], link: wire, local: up, global: base, ends_per_router: 2, routers_per_group: 2"
    topology = grow("dragonfly", keys)
    between = [e for e in topology.links_within("") if e.latency_s == 5e-6 and "-g" in e.src]
    assert len(between) == 4 * 3
    assert len({(e.src.split("-")[1], e.dst.split("-")[1]) for e in between}) == 12
    assert topology.link("f-g2-r0", "f-g2-r1").bandwidth_Bps == 40e9
    used = [sum(e.src == f"f-g0-r{r}" for e in between) for r in range(2)]
    assert used == [2, 1]  # three other groups are dealt to two routers


def test_torus_neighbours() -> None:
    def near(keys: str) -> set[str]:
        topology = grow("torus", f"ends: ['*/nic0'], link: wire, {keys}")
        return {e.dst.split("/")[0] for e in topology.links_from("h0/nic0") if e.dst != "h0"}

    assert near("dims: [8]") == {"h1", "h7"}
    assert near("dims: [8], wrap: false") == {"h1"}
    assert near("dims: [2, 4]") == {"h4", "h1", "h3"}
    assert near("dims: [2, 2, 2]") == {"h4", "h2", "h1"}
    assert near("dims: [1, 8]") == {"h1", "h7"}


def test_full_mesh_ethernet_and_nvswitch() -> None:
    assert len(grow("full_mesh", "ends: ['*/nic0'], link: wire").links_within("")) == 8 * 7
    star = grow("ethernet", "ends: ['*/nic0'], link: wire")
    assert star.node("f").kind is NodeKind.SWITCH and len(star.links_from("f")) == 8
    chips = grow("nvswitch", "ends: ['h0/gpu*'], link: wire, chips: 2, as_one: false")
    assert chips.link("h0/gpu0", "f0").bandwidth_Bps == chips.link("f1", "h0/gpu4").bandwidth_Bps == 5e9


def test_pcie_tree_follows_numa_nodes_and_deals_the_rest() -> None:
    tree = "p: {kind: pcie_tree, ends: ['gpu*', 'nic*'], roots: [numa0, numa1], switches_per_root: 2, link: wire, "
    text = HEAD.replace("    links:", f"    fabrics:\n      {tree}uplink: {{bandwidth: 20GB/s}}}}\n    links:")
    topology = parse_topology(text.removesuffix("fabrics:\n"))
    at = {e.src.partition("/")[2]: e.dst.partition("/")[2] for e in topology.links_within("h5") if "/p" in e.dst}
    ends = {name: switch for name, switch in at.items() if name[0] in "gn" and not name.startswith("numa")}
    assert ends == {"gpu0": "p0", "gpu1": "p1", "gpu2": "p2", "gpu3": "p3", "gpu4": "p3", "nic0": "p1", "nic1": "p3"}
    assert topology.link("h5/p3", "h5/numa1").bandwidth_Bps == 20e9
    assert topology.link("h5/p3", "h5/numa1").kind is LinkKind.ROCE


DRAGONFLY = "ends: ['*/nic*'], link: wire, local: up, global: up"
BAD = [
    ("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, spines: 0", "4 leaves and no spine"),
    (
        "fat_tree",
        "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, oversubscription: 2:1, uplink: up",
        "say 'oversubscription' or a bandwidth of 'uplink'",
    ),
    ("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 0", "ends_per_leaf: .*greater than or equal to 1"),
    ("fat_tree", "ends: ['*/nic*'], link: wire", r"ends_per_leaf: missing \(keys here: ends, link"),
    ("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, oversubscription: 2", "is not a ratio"),
    ("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, oversubscription: '0:1'", "may be zero"),
    ("fat_tree", "ends: ['*/nic*'], link: wire, ends_per_leaf: 4, spine: 4", "did you mean 'spines'"),
    ("fat_tre", "ends: ['*/nic*'], link: wire", r"f.kind: 'fat_tre' is not one of .*; did you mean 'fat_tree'\?"),
    ("ethernet", "ends: ['*/nix*'], link: wire", r"f.ends\[0\]: no node matches '\*/nix\*'"),
    ("ethernet", "ends: [], link: wire", "ends: should have at least 1 item"),
    ("ethernet", "ends: ['*/nic*'], link: wir", r"f.link.type: there is no link type 'wir'; did you mean 'wire'\?"),
    ("ethernet", "ends: ['*/nic*'], link: {kind: roce, latency: 1us}", r"f.link.bandwidth: missing"),
    ("rail_optimised", "ends: ['*/nic*'], link: wire", "which rail is 'h0/nic0' on"),
    ("dragonfly", f"{DRAGONFLY}, ends_per_router: 3, routers_per_group: 2", "do not fill"),
    ("torus", "ends: ['*/nic0'], dims: [3, 3], link: wire", "a grid of 3 x 3 has 9 places, but there are 8 ends"),
    ("torus", "ends: ['*/nic0'], dims: [0, 8], link: wire", r"dims\[0\]: .*greater than or equal to 1"),
    ("full_mesh", "ends: ['h0/nic0'], link: wire", "two ends or more"),
    ("pcie_tree", "ends: ['h0/nic*'], roots: [h0/numa7], link: wire", "no node matches 'h0/numa7'"),
    ("pcie_tree", "ends: ['h0/nic*'], roots: [h0/numa0, h0/numa0], link: wire", "a root is named twice"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "keys", "says"), BAD, ids=[f"{kind}-{says}" for kind, _, says in BAD])
def test_figures_that_do_not_fit_are_refused_with_their_line(kind: str, keys: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^f.yaml:15: fabrics\..*{says}"):
        grow(kind, keys)


def test_a_fabric_needs_a_kind_and_free_names() -> None:
    with pytest.raises(ConfigError, match=r"f.yaml:15: fabrics.f.kind: missing: a fabric's kind is one of fat_tree"):
        parse_cluster(f"{HEAD}  f: {{ends: ['*/nic0']}}\n", "f.yaml")
    with pytest.raises(ConfigError, match=r"f.yaml:15: fabrics.f: should be a mapping of keys, found 7"):
        parse_cluster(f"{HEAD}  f: 7\n", "f.yaml")
    with pytest.raises(ConfigError, match=r"fabrics.h0: 'h0' is there twice, first in line 7"):
        parse_cluster(f"{HEAD}  h0: {{kind: ethernet, ends: ['*/nic0'], link: wire}}\n", "f.yaml")
    with pytest.raises(ConfigError, match=r"fabrics.a b: node name 'a b'"):
        parse_cluster(f"{HEAD}  a b: {{kind: ethernet, ends: ['*/nic0'], link: wire}}\n", "f.yaml")


def test_a_mesh_of_too_many_is_refused_before_it_is_made() -> None:
    text = "version: 1\nhosts:\n  h[0-9999]:\nfabrics:\n  m: {kind: full_mesh, ends: ['h*'], link: {kind: roce, "
    with pytest.raises(ConfigError, match=r"f:5: fabrics.m: the fabric has more than 100000 wires"):
        parse_topology(f"{text}bandwidth: 1GB/s, latency: 1us}}}}\n", "f")
