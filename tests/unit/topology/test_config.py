"""The cluster file: every field changes what it should, every mistake is one error with file, line and a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import ClusterConfig, load_cluster, load_topology, parse_cluster
from hccl_py.topology.graph import DeviceKind, LinkKind, NodeKind
from hccl_py.topology.schema import ClusterFile, DeviceEntry, HostBody, LinkEntry, NicEntry, NumaEntry
from hccl_py.topology.validate import known_keys

BASE = """\
version: 1
name: two hosts
link_types:
  slow: {latency: 9us}
host_types:
  box:
    numa:
      numa0: {cpus: 8}
    devices:
      gpu[0-1]: {kind: gpu, numa: numa0, pci: "0000:18:00.0"}
    nics:
      nic0: {interface: mlx5_0, numa: numa0, pci: "0000:19:00.0"}
    switches:
      plx:
    links:
      - {between: [gpu*, plx], kind: pcie, bandwidth: 30GB/s, latency: 300ns}
      - {between: [nic0, plx], type: slow, kind: pcie, bandwidth: 30GB/s}
      - {between: [host, plx], kind: pcie, bandwidth: 30GB/s, latency: 300ns}
hosts:
  a: {type: box}
  b[0-1]:
    type: box
switches:
  leaf:
links:
  - {between: [a/nic0, leaf], kind: roce, bandwidth: 100Gbit/s, latency: 1us}
  - {from: b*/nic0, to: leaf, kind: roce, bandwidth: 100Gbit/s, latency: 1us}
  - {from: leaf, to: b*/nic0, kind: roce, bandwidth: 50Gbit/s, latency: 2us}
placement: [b*/gpu*, a/gpu1, a/gpu0]
"""


def read(old: str = "", new: str = "", text: str = BASE) -> ClusterConfig:
    assert old in text
    return parse_cluster(text.replace(old, new, 1) if old else text, "c.yaml")


# ---- every field. One row: (what is replaced, by what, what is asked, before, after).

FIELDS: dict[str, tuple[str, str, Callable[[ClusterConfig], object], object, object]] = {
    "ClusterFile.name": ("name: two hosts", "name: more", lambda c: c.name, "two hosts", "more"),
    "ClusterFile.hosts": (
        "  a: {",
        "  c: {type: box}\n  a: {",
        lambda c: c.topology.hosts(),
        ("a", "b0", "b1"),
        ("a", "b0", "b1", "c"),
    ),
    "ClusterFile.host_types": ("gpu[0-1]", "gpu[0-2]", lambda c: len(c.topology.devices("b1")), 2, 3),
    "ClusterFile.switches": (
        "  leaf:\n",
        "  leaf:\n  spine:\n",
        lambda c: "spine" in str(c.topology.nodes),
        False,
        True,
    ),
    "ClusterFile.links": (
        "\nlinks:\n",
        "\nlinks:\n  - {between: [a, leaf], kind: pcie, bandwidth: 1GB/s, latency: 1us}\n",
        lambda c: [e.dst for e in c.topology.links_from("a")],
        ["a/plx"],
        ["a/plx", "leaf"],
    ),
    "ClusterFile.link_types": (
        "link_types:\n  slow: {latency: 9us}",
        "link_types:\n  slow: {latency: 8us}",
        lambda c: c.topology.link("a/plx", "a/nic0").latency_s,
        9e-6,
        8e-6,
    ),
    "ClusterFile.fabrics": (
        "placement:",
        "fabrics:\n  eth: {kind: ethernet, ends: [a/nic0], link: {type: slow, kind: roce, bandwidth: 1GB/s}}\n"
        "placement:",
        lambda c: [e.dst for e in c.topology.links_from("a/nic0")],
        ["a/plx", "leaf"],
        ["a/plx", "eth", "leaf"],
    ),
    "ClusterFile.overrides": (
        "placement:",
        "overrides: [{between: [b1/nic0, leaf], share: 50%}]\nplacement:",
        lambda c: c.topology.link("b1/nic0", "leaf").bandwidth_Bps,
        12.5e9,
        6.25e9,
    ),
    "ClusterFile.placement": (
        "a/gpu1, a/gpu0]",
        "a/gpu0, a/gpu1]",
        lambda c: c.placement.devices[4:],
        ("a/gpu1", "a/gpu0"),
        ("a/gpu0", "a/gpu1"),
    ),
    "HostBody.type": (
        "  a: {type: box}",
        "  a: {type: box}\n  d: {}",
        lambda c: "d" in c.topology.hosts(),
        False,
        True,
    ),
    "HostBody.numa": (
        "numa0: {cpus: 8}",
        "numa[0-1]: {cpus: 8}",
        lambda c: sum(n.kind is NodeKind.NUMA for n in c.topology.nodes),
        3,
        6,
    ),
    "HostBody.devices": (
        "gpu[0-1]: {",
        "gpu[2-3]: {kind: npu}\n      gpu[0-1]: {",
        lambda c: len(c.topology.devices("a")),
        2,
        4,
    ),
    "HostBody.nics": (
        "      nic0: {",
        "      nic1:\n      nic0: {",
        lambda c: c.topology.nics("a"),
        ("a/nic0",),
        ("a/nic0", "a/nic1"),
    ),
    "HostBody.switches": (
        "      plx:\n",
        "      plx:\n      nvs:\n",
        lambda c: any(n.name == "a/nvs" for n in c.topology.nodes),
        False,
        True,
    ),
    "HostBody.fabrics": (
        "    links:\n",
        "    fabrics: {nvs: {kind: nvswitch, ends: [gpu*], link: {type: slow, kind: nvlink, bandwidth: 1GB/s}}}\n"
        "    links:\n",
        lambda c: [e.dst for e in c.topology.links_from("b0/gpu0")],
        ["b0/plx"],
        ["b0/nvs", "b0/plx"],
    ),
    "HostBody.links": (
        "    links:\n",
        "    links:\n      - {between: [gpu0, gpu1], kind: nvlink, bandwidth: 1GB/s, latency: 1ns}\n",
        lambda c: len(c.topology.path("a/gpu0", "a/gpu1")),
        2,
        1,
    ),
    "NumaEntry.cpus": ("cpus: 8", "cpus: 9", lambda c: c.topology.node("b0/numa0").cpus, 8, 9),
    "DeviceEntry.kind": (
        "kind: gpu",
        "kind: npu",
        lambda c: c.topology.node("a/gpu0").device,
        DeviceKind.GPU,
        DeviceKind.NPU,
    ),
    "DeviceEntry.numa": (
        "kind: gpu, numa: numa0",
        "kind: gpu",
        lambda c: c.topology.node("a/gpu0").numa,
        "a/numa0",
        "",
    ),
    "DeviceEntry.pci": (
        'pci: "0000:18:00.0"',
        'pci: "0000:20:00.0"',
        lambda c: c.topology.node("a/gpu0").pci,
        "0000:18:00.0",
        "0000:20:00.0",
    ),
    "NicEntry.interface": ("interface: mlx5_0, ", "", lambda c: c.topology.node("a/nic0").interface, "mlx5_0", "nic0"),
    "NicEntry.numa": ("mlx5_0, numa: numa0", "mlx5_0", lambda c: c.topology.node("a/nic0").numa, "a/numa0", ""),
    "NicEntry.pci": (
        "0000:19:00.0",
        "0000:21:00.0",
        lambda c: c.topology.node("a/nic0").pci,
        "0000:19:00.0",
        "0000:21:00.0",
    ),
    "LinkEntry.between": (
        "between: [nic0, plx]",
        "between: [nic0, host]",
        lambda c: [e.dst for e in c.topology.links_from("a/nic0")],
        ["a/plx", "leaf"],
        ["a", "leaf"],
    ),
    "LinkEntry.from": (
        "from: b*/nic0",
        "from: b*",
        lambda c: [e.dst for e in c.topology.links_from("b0")],
        ["b0/plx"],
        ["b0/plx", "leaf"],
    ),
    "LinkEntry.to": (
        "to: leaf",
        "to: a",
        lambda c: [e.dst for e in c.topology.links_from("b0/nic0")],
        ["b0/plx", "leaf"],
        ["a", "b0/plx"],
    ),
    "LinkEntry.type": (
        "type: slow, ",
        "latency: 3us, ",
        lambda c: c.topology.link("a/nic0", "a/plx").latency_s,
        9e-6,
        3e-6,
    ),
    "LinkEntry.kind": (
        "kind: roce",
        "kind: ethernet",
        lambda c: c.topology.link("leaf", "a/nic0").kind,
        LinkKind.ROCE,
        LinkKind.ETHERNET,
    ),
    "LinkEntry.bandwidth": (
        "100Gbit/s",
        "10GB/s",
        lambda c: c.topology.link("leaf", "a/nic0").bandwidth_Bps,
        12.5e9,
        10e9,
    ),
    "LinkEntry.latency": (
        "latency: 1us",
        "latency: 5ns",
        lambda c: c.topology.link("leaf", "a/nic0").latency_s,
        1e-6,
        5e-9,
    ),
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_what_it_should(field: str) -> None:
    old, new, ask, before, after = FIELDS[field]
    first, second = read(), read(old, new)
    assert ask(first) == before
    assert ask(second) == after
    assert before != after
    assert first != second


def test_no_field_is_left_out_of_the_test_above() -> None:
    models = (ClusterFile, HostBody, NumaEntry, DeviceEntry, NicEntry, LinkEntry)
    fields = {f"{m.__name__}.{f.alias or name}" for m in models for name, f in m.model_fields.items()}
    elsewhere = {"ClusterFile.version", "ClusterFile.policy"}  # of the latter: test_policy.py
    assert fields - elsewhere == set(FIELDS)


@pytest.mark.parametrize("found", ["0", "2", "'1'", "1.0.0", "true", "[1]"])
def test_version_decides_whether_the_file_is_read(found: str) -> None:
    assert read().name == "two hosts"
    with pytest.raises(ConfigError, match=r"c.yaml:1: version: this hccl_py reads version 1, found"):
        read("version: 1", f"version: {found}")
    with pytest.raises(ConfigError, match="version: missing: write 'version: 1'"):
        read("version: 1\n", "")


# ---- behaviour


def test_a_host_adds_to_its_type_and_replaces_equal_names() -> None:
    own = """  a:
    type: box
    devices: {gpu1: {kind: npu}, gpu2: {kind: gpu}}
    links:
      - {between: [gpu2, host], kind: pcie, bandwidth: 1GB/s, latency: 1us}
"""
    topology = read("  a: {type: box}\n", own).topology
    assert topology.devices("a") == ("a/gpu0", "a/gpu1", "a/gpu2")
    assert topology.node("a/gpu1").device is DeviceKind.NPU
    assert topology.node("a/gpu1").numa == ""
    assert topology.devices("b0") == ("b0/gpu0", "b0/gpu1")
    assert topology.link("a/gpu2", "a").bandwidth_Bps == 1e9


def test_between_is_both_directions_and_from_to_is_one() -> None:
    topology = read().topology
    assert topology.link("a/nic0", "leaf").bandwidth_Bps == topology.link("leaf", "a/nic0").bandwidth_Bps
    assert topology.link("b0/nic0", "leaf").bandwidth_Bps == 12.5e9
    assert topology.link("leaf", "b0/nic0").bandwidth_Bps == 6.25e9


def test_placement_keeps_the_order_written_and_defaults_to_host_after_host() -> None:
    written = read()
    assert written.placement.devices == ("b0/gpu0", "b0/gpu1", "b1/gpu0", "b1/gpu1", "a/gpu1", "a/gpu0")
    assert written.placement.groups(written.topology) == ((0, 1), (2, 3), (4, 5))
    default = read("placement: [b*/gpu*, a/gpu1, a/gpu0]\n", "")
    assert default.placement.devices[:3] == ("a/gpu0", "a/gpu1", "b0/gpu0")


def test_a_pattern_between_a_group_and_itself_is_a_full_mesh() -> None:
    mesh = "version: 1\nhosts:\n  h:\n    devices: {gpu[0-3]: {kind: gpu}}\n    links:\n"
    mesh = mesh.replace("gpu[0-3]", '"gpu[0-3]"')
    topology = read(
        text=mesh + "      - {between: [gpu*, gpu*], kind: nvlink, bandwidth: 1GB/s, latency: 1us}\n"
    ).topology
    assert len(topology.links) == 12


def test_eight_equal_hosts_are_short_to_write() -> None:
    text = BASE.replace("b[0-1]", "b[0-6]")
    assert len(text.splitlines()) < 30
    assert len(read(text=text).topology.hosts()) == 8


def test_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(BASE)
    assert load_cluster(file) == read()
    assert load_topology(str(file)) == read().topology


def test_load_topology_takes_what_is_not_connected_and_load_cluster_does_not(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nhosts:\n  a:\n  b:\n    devices: {x: {kind: cpu}, y: {kind: cpu}}\n")
    assert load_topology(file).devices() == ("b/x", "b/y")
    with pytest.raises(ConfigError, match=r"c.yaml:2: hosts: there is no path from 'b/x' to 'b/y'"):
        load_cluster(file)
    file.write_text("version: 1\nhosts:\n  a:\n")
    with pytest.raises(ConfigError, match=r"c.yaml:2: hosts: the topology has no device"):
        load_cluster(file)


# ---- mistakes: (what is replaced, by what, the error)

MISTAKES = [
    (
        "cpus: 8",
        "cpu: 8",
        r"c.yaml:8: host_types.box.numa.numa0.cpu: unknown key; did you mean 'cpus'\? \(keys here: cpus\)",
    ),
    ("hosts:\n  a", "host:\n  a", r"c.yaml:19: host: unknown key; did you mean 'hosts'\?.*\(and 1 more\)"),
    (
        "kind: roce, ",
        "kind: roce, bandwith: 1GB/s, ",
        r"c.yaml:26: links\[0\].bandwith: unknown key; did you mean 'bandwidth'\?",
    ),
    ("switches:\n  leaf:", "switches:\n  leaf: {ports: 3}", r"switches.leaf.ports: unknown key \(keys here: none\)"),
    ("cpus: 8", "cpus: eight", r"c.yaml:8: .*cpus: should be a valid integer, found 'eight'"),
    ("cpus: 8", "cpus: -8", r"c.yaml:8: .*cpus: should be greater than or equal to 0, found -8"),
    ("name: two hosts", "name: 7", r"c.yaml:2: name: should be a valid string, found 7"),
    ("kind: gpu", "kind: gpi", r"c.yaml:10: .*kind: 'gpi' is not one of cpu, gpu, npu; did you mean 'gpu'\?"),
    ("kind: gpu, ", "", r"c.yaml:10: host_types.box.devices.gpu\[0-1\].kind: missing \(keys here: kind, numa, pci\)"),
    ("kind: roce", "kind: ROCE", r"c.yaml:26: links\[0\].kind: 'ROCE' is not one of nvlink, .*ethernet"),
    ("100Gbit/s", "100", r"c.yaml:26: links\[0\].bandwidth: 100 has no unit: write a bandwidth as \"25GB/s\""),
    ("100Gbit/s", "100Gb", r"c.yaml:26: links\[0\].bandwidth: '100Gb': 'Gb' is not a unit"),
    ("100Gbit/s", "0Gbit/s", r"c.yaml:26: links\[0\].bandwidth: '0Gbit/s': a bandwidth must be above zero"),
    ("100Gbit/s", "-1Gbit/s", r"c.yaml:26: links\[0\].bandwidth: '-1Gbit/s' is not a bandwidth"),
    ("latency: 1us", "latency: 1", r"c.yaml:26: links\[0\].latency: 1 has no unit"),
    (", latency: 1us", "", r"c.yaml:26: links\[0\].latency: missing"),
    ("[a/nic0, leaf]", "[a/nic0]", r"c.yaml:26: links\[0\].between: should have at least 2 items"),
    ("between: [a/nic0, leaf]", "from: leaf", r"c.yaml:26: links\[0\]: say 'between: \[a, b\]'"),
    ("between: [a/nic0, leaf]", "between: [a, leaf], to: leaf", r"c.yaml:26: links\[0\]: say 'between"),
    ("[a/nic0, leaf]", "[a/nic1, leaf]", r"c.yaml:26: links\[0\]: no node matches 'a/nic1'; did you mean 'a/nic0'\?"),
    (
        "[nic0, plx]",
        "[nic0, plxx]",
        r"c.yaml:17: host_types.box.links\[1\]: no node matches 'plxx'; did you mean 'plx'\?",
    ),
    ("[nic0, plx]", "[gpu0, plx]", r"c.yaml:17: .*the link a/gpu0 -> a/plx is already declared in line 16"),
    ("type: box}", "type: bos}", r"c.yaml:20: hosts.a.type: there is no host type 'bos'; did you mean 'box'\?"),
    ("b[0-1]:", "a:", r"c.yaml:21: hosts.a: the key 'a' is there twice \(first in line 20\)"),
    ("b[0-1]:", "'a[0-1]':\n  a0:", r"c.yaml:22: hosts.a0: 'a0' is there twice, first in line 21"),
    ("b[0-1]:", "b[1-0]:", r"c.yaml:21: hosts.b\[1-0\]: .*runs backward"),
    ("  leaf:\n", "  b1:\n", r"c.yaml:24: switches.b1: 'b1' is there twice, first in line 21"),
    ("      plx:", "      gpu0:", r"'gpu0' is already in 'switches' of host 'a'"),
    ("      plx:", "      host:", r"c.yaml:14: host_types.box.switches.host: .*own vertex"),
    ("      plx:", "      p/x:", r"c.yaml:14: .*a declared name has no '/'"),
    ("      plx:", "      'p x':", r"c.yaml:14: .*letters, digits"),
    ("numa: numa0, pci", "numa: numa1, pci", r"c.yaml:10: .*numa: the host has no NUMA node 'numa1' \(it has: numa0\)"),
    ("[b*/gpu*, a/gpu1", "[c*/gpu*, a/gpu1", r"c.yaml:29: placement\[0\]: no node matches 'c\*/gpu\*'"),
    ("a/gpu1, a/gpu0", "a/gpu1, a/gpu1", r"c.yaml:29: placement: ranks 4 and 5 are both placed on 'a/gpu1'"),
    ("a/gpu1, a/gpu0", "a/gpu1, a/nic0", r"c.yaml:29: placement\[2\]: no node matches 'a/nic0'"),
    ("[b*/gpu*, a/gpu1, a/gpu0]", "[]", r"c.yaml:29: placement: should have at least 1 item"),
    ("  a: {type: box}", "  a: box", r"c.yaml:20: hosts.a: should be a mapping of keys, found 'box'"),
    ("[b*/gpu*, a/gpu1, a/gpu0]", "b0/gpu0", r"c.yaml:29: placement: should be a valid list, found 'b0/gpu0'"),
    ("  - {from: leaf", "  # {from: leaf", r"c.yaml:29: placement: there is no path from 'b0/gpu0' to 'b1/gpu0'"),
]


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES, ids=[f"{old}->{new}" for old, new, _ in MISTAKES])
def test_mistakes_name_file_line_key_and_a_way_out(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(old, new)


def test_the_file_must_be_a_mapping_with_hosts() -> None:
    with pytest.raises(ConfigError, match=r"f:1: a cluster file is a mapping of keys, found \['a'\]"):
        parse_cluster("[a]", "f")
    with pytest.raises(ConfigError, match=r"f:2: hosts: should have at least 1 item"):
        parse_cluster("version: 1\nhosts: {}\n", "f")
    with pytest.raises(ConfigError, match=r"f:1: hosts: missing"):
        parse_cluster("version: 1\n", "f")


def test_too_many_nodes_or_links_are_refused() -> None:
    many = "version: 1\nhosts:\n  h[0-40000]:\nswitches:\n  s[0-40000]:\n"
    with pytest.raises(ConfigError, match=r"f:5: switches.*more than 65536 nodes"):
        parse_cluster(many, "f")
    wires = "{between: [h*, h*], kind: roce, bandwidth: 1GB/s, latency: 1us}"
    mesh = f"version: 1\nhosts:\n  h[0-2000]:\nlinks:\n  - {wires}\n"
    with pytest.raises(ConfigError, match=r"f:5: links\[0\]: .*make more than 200000 links"):
        parse_cluster(mesh, "f")


def test_known_keys_follow_the_models() -> None:
    assert known_keys(()) == tuple(field.alias or name for name, field in ClusterFile.model_fields.items())
    assert "from" in known_keys(("hosts", "a", "links", 0))
    assert known_keys(("host_types", "x", "numa", "y")) == ("cpus",)
    assert known_keys(("placement", 0)) == ()
