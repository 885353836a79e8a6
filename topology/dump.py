"""A Topology (and a Placement) as the text of a cluster file, such that loading it gives an equal value.

Equal hosts, equal nodes and equal links are written once, with ranges: 1,024 GPUs are some hundred lines, not 70,000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hccl_py.core.units import format_bandwidth, format_seconds
from hccl_py.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.node import HOST_WORD
from hccl_py.topology.placement import Placement
from hccl_py.topology.ranges import fold
from hccl_py.topology.schema import VERSION

_SECTIONS = {
    NodeKind.NUMA: "numa",
    NodeKind.DEVICE: "devices",
    NodeKind.NIC: "nics",
    NodeKind.SWITCH: "switches",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_OTHER_MEANING = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_Figures = tuple[LinkKind, float, float]


def dump_topology(topology: Topology, placement: Placement | None = None, name: str = "") -> str:
    """YAML text; links inside a host stand with the host, equal directions as ``between``.

    ``load_topology`` of the text equals ``topology``; with ``placement``, ``load_cluster`` gives that placement too.
    """
    lines = [f"version: {VERSION}"]
    if name:
        lines.append(f"name: {scalar(name)}")
    lines.append("hosts:")
    groups: dict[tuple[str, ...], list[str]] = {}
    for host in topology.hosts():
        groups.setdefault(tuple(_body(topology, host)), []).append(host)
    for body, hosts in groups.items():
        for text in fold(hosts):
            lines += [f"  {scalar(text)}:{'' if body else ' {}'}", *body]
    if topology.nodes_within(""):
        lines.append("switches:")
        lines += [f"  {scalar(text)}: {{}}" for text in fold(node.name for node in topology.nodes_within(""))]
    if topology.links_within(""):
        lines += ["links:", *(f"  - {text}" for text in _links(topology.links_within(""), ""))]
    if placement is not None:
        lines += ["placement:", *(f"  - {scalar(text)}" for text in _ranks(placement, topology))]
    return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """``text`` as YAML reads it back: as it is where that is plain, else in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_MEANING:
        return text
    letters = []
    for letter in text:
        if letter in '"\\':
            letters.append(f"\\{letter}")
        elif " " <= letter <= "~":
            letters.append(letter)
        else:
            letters.append(f"\\U{ord(letter):08X}")
    return f'"{"".join(letters)}"'


def _body(topology: Topology, host: str) -> list[str]:
    """The lines of what is in a host."""
    lines = []
    inside = [node for node in topology.nodes_within(host) if node.kind is not NodeKind.HOST]
    for kind, section in _SECTIONS.items():
        entries: dict[str, list[str]] = {}
        for node in inside:
            if node.kind is kind:
                entries.setdefault(_entry(node), []).append(node.local)
        if entries:
            lines.append(f"    {section}:")
        for entry, names in entries.items():
            lines += [f"      {scalar(text)}: {{{entry}}}" for text in fold(names)]
    if topology.links_within(host):
        lines += ["    links:", *(f"      - {text}" for text in _links(topology.links_within(host), host))]
    return lines


def _entry(node: Node) -> str:
    values = {
        "kind": node.device.value if node.device is not None else "",
        "numa": node.numa.rpartition("/")[2],
        "cpus": str(node.cpus) if node.cpus else "",
        "interface": node.interface if node.interface != node.local else "",
        "pci": node.pci,
    }
    texts = {key: value if key == "cpus" else scalar(value) for key, value in values.items() if value}
    return ", ".join(f"{key}: {text}" for key, text in texts.items())


def _links(links: Iterable[Link], host: str) -> list[str]:
    def local(name: str) -> str:
        if not host:
            return name
        return HOST_WORD if name == host else name.rpartition("/")[2]

    left = {(link.src, link.dst): link for link in links}
    groups: dict[tuple[_Figures, bool], list[tuple[str, str]]] = {}
    while left:
        (src, dst), link = next(iter(left.items()))
        del left[src, dst]
        figures = (link.kind, link.bandwidth_Bps, link.latency_s)
        back = left.get((dst, src))
        both = back is not None and (back.kind, back.bandwidth_Bps, back.latency_s) == figures
        if both:
            del left[dst, src]
        groups.setdefault((figures, both), []).append((local(src), local(dst)))
    entries = []
    for ((kind, bandwidth_Bps, latency_s), both), pairs in groups.items():
        bandwidth, latency = format_bandwidth(bandwidth_Bps, exact=True), format_seconds(latency_s, exact=True)
        figures_text = f"kind: {kind.name.lower()}, bandwidth: {bandwidth}, latency: {latency}"
        for a, b in _fold_pairs(pairs, both):
            ends = f"between: [{scalar(a)}, {scalar(b)}]" if both else f"from: {scalar(a)}, to: {scalar(b)}"
            entries.append(f"{{{ends}, {figures_text}}}")
    return entries


def _fold_pairs(pairs: Sequence[tuple[str, str]], both: bool) -> list[tuple[str, str]]:
    """Few pairs of texts whose products are exactly these pairs."""
    nodes = {name for pair in pairs for name in pair}
    every = fold(nodes)
    if both and len(nodes) > 2 and len(every) == 1 and len(pairs) == len(nodes) * (len(nodes) - 1) // 2:
        return [(every[0], every[0])]  # all with all
    by_right = _products(pairs)
    by_left = [(a, b) for b, a in _products([(b, a) for a, b in pairs])]
    return min(by_right, by_left, key=len)


def _products(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    lefts: dict[str, list[str]] = {}
    for a, b in pairs:
        lefts.setdefault(b, []).append(a)
    rights: dict[tuple[str, ...], list[str]] = {}
    for b, some in lefts.items():
        rights.setdefault(tuple(some), []).append(b)
    return [(a, b) for some, bs in rights.items() for a in fold(some) for b in fold(bs)]


def _ranks(placement: Placement, topology: Topology) -> Iterable[str]:
    """The devices in order; a run that is one text in natural order is written as one."""
    order = {name: index for index, name in enumerate(topology.devices())}
    run: list[str] = []
    for device in placement.devices:
        if run and (order[device] < order[run[-1]] or device.partition("/")[0] != run[-1].partition("/")[0]):
            yield from _run(run)
            run = []
        run.append(device)
    yield from _run(run)


def _run(run: list[str]) -> list[str]:
    texts = fold(run)
    return texts if len(texts) == 1 else run
