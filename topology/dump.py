"""A Topology (and a Placement) as the text of a cluster file, such that loading it gives an equal value."""

from __future__ import annotations

import io
from collections.abc import Iterable

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from hccl_py.core.units import format_bandwidth, format_seconds
from hccl_py.topology.graph import Link, Node, NodeKind, Topology
from hccl_py.topology.node import HOST_WORD
from hccl_py.topology.placement import Placement
from hccl_py.topology.schema import VERSION

_SECTIONS = {
    NodeKind.NUMA: "numa",
    NodeKind.DEVICE: "devices",
    NodeKind.NIC: "nics",
    NodeKind.SWITCH: "switches",
}


def dump_topology(topology: Topology, placement: Placement | None = None, name: str = "") -> str:
    """YAML text. Every node is written out; links inside a host stand with the host, equal directions as ``between``.

    ``load_topology`` of the text equals ``topology``; with ``placement``, ``load_cluster`` gives that placement too.
    """
    top = CommentedMap(version=VERSION)
    if name:
        top["name"] = name
    top["hosts"] = CommentedMap()
    for host in topology.hosts():
        body = CommentedMap()
        for node in topology.nodes_within(host):
            if node.kind is not NodeKind.HOST:
                body.setdefault(_SECTIONS[node.kind], CommentedMap())[node.local] = _entry(node)
        if topology.links_within(host):
            body["links"] = _links(topology.links_within(host), host)
        top["hosts"][host] = body
    if topology.nodes_within(""):
        top["switches"] = CommentedMap((switch.name, CommentedMap()) for switch in topology.nodes_within(""))
    if topology.links_within(""):
        top["links"] = _links(topology.links_within(""), "")
    if placement is not None:
        top["placement"] = list(placement.devices)
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(top, stream)
    return stream.getvalue()


def _entry(node: Node) -> CommentedMap:
    entry = CommentedMap()
    if node.device is not None:
        entry["kind"] = node.device.value
    if node.numa:
        entry["numa"] = node.numa.rpartition("/")[2]
    if node.cpus:
        entry["cpus"] = node.cpus
    if node.interface and node.interface != node.local:
        entry["interface"] = node.interface
    if node.pci:
        entry["pci"] = node.pci
    entry.fa.set_flow_style()
    return entry


def _links(links: Iterable[Link], host: str) -> list[CommentedMap]:
    def local(name: str) -> str:
        if not host:
            return name
        return HOST_WORD if name == host else name.rpartition("/")[2]

    left = {(link.src, link.dst): link for link in links}
    entries = []
    while left:
        (src, dst), link = next(iter(left.items()))
        del left[src, dst]
        back = left.get((dst, src))
        entry = CommentedMap()
        if back == Link(dst, src, link.kind, link.bandwidth_Bps, link.latency_s):
            del left[dst, src]
            entry["between"] = [local(src), local(dst)]
        else:
            entry["from"], entry["to"] = local(src), local(dst)
        entry["kind"] = link.kind.name.lower()
        entry["bandwidth"] = format_bandwidth(link.bandwidth_Bps, exact=True)
        entry["latency"] = format_seconds(link.latency_s, exact=True)
        entry.fa.set_flow_style()
        entries.append(entry)
    return entries
