"""A cluster from what its ranks saw and measured: each host's inside, and the network that the figures suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import PCIE, both_ways

_SAME = 0.7  # a pair that reaches this share of what its two ends can do is not held back by the network between them
_DIGITS = 3  # figures are rounded: nobody measures better, and equal links stay equal


@dataclass(frozen=True)
class Pair:
    """What one rank's data to another rank was measured to do: bytes/second, and seconds one way."""

    bandwidth_Bps: float
    latency_s: float


Pairs = Mapping[tuple[int, int], Pair]


@dataclass(frozen=True)
class Assembled:
    """The cluster, and sentences for people."""

    topology: Topology
    placement: Placement
    notes: tuple[str, ...]


def assemble(insides: Sequence[Topology], groups: Sequence[Sequence[int]], pairs: Pairs) -> Assembled:
    """The graph of a cluster.

    Args:
        insides: of each host what discovery found; the hosts' names must differ.
        groups: of each host its ranks.
        pairs: measured figures of ordered pairs of ranks; between hosts one pair each way is enough.

    Raises:
        TopologyError: names are not unique, or a pair of hosts was not measured.
    """
    nodes: list[Node] = []
    links: list[Link] = []
    notes: list[str] = []
    devices: dict[int, str] = {}
    nics: list[str] = []
    for inside, ranks in zip(insides, groups, strict=True):
        (host,) = inside.hosts()
        if any(host == node.name for node in nodes):
            raise TopologyError(f"two hosts are called {host!r}")
        mine, wires = _inside(inside, host, len(groups) > 1)
        names = _devices(mine, wires, host, len(ranks), notes)
        if len(groups) > 1:
            nics.append(_nic(mine, wires, inside, host, notes))
        devices.update(zip(ranks, names, strict=True))
        measured = {rank: _rank_pair(rank, ranks, pairs) for rank in ranks}
        links += [_with_memory(link, names, [measured[rank] for rank in ranks]) for link in wires.values()]
        nodes += mine.values()
    if len(groups) > 1:
        added, switches = _network(nics, groups, pairs)
        links += added
        nodes += [Node(name, NodeKind.SWITCH) for name in switches]
        if len(switches) > 1:
            notes.append(f"the measured pairs fall into {len(switches)} sites with narrower links between them")
    placement = Placement(tuple(devices[rank] for rank in sorted(devices)))
    return Assembled(Topology(tuple(nodes), tuple(links)), placement, tuple(dict.fromkeys(notes)))


def _inside(inside: Topology, host: str, several: bool) -> tuple[dict[str, Node], dict[tuple[str, str], Link]]:
    """Nodes and links of the host without the networks that discovery assumed."""
    nodes = {node.name: node for node in inside.nodes_within(host)}
    if not several:
        nodes |= {node.name: node for node in inside.nodes}
    wires = {(e.src, e.dst): e for e in inside.links if e.src in nodes and e.dst in nodes}
    return nodes, wires


def _devices(
    nodes: dict[str, Node], wires: dict[tuple[str, str], Link], host: str, count: int, notes: list[str]
) -> list[str]:
    """A device for each rank: accelerators if they suffice, else CPUs; CPUs are made up where ranks outnumber them."""
    found = [name for name, node in nodes.items() if node.kind is NodeKind.DEVICE]
    accelerators = [name for name in found if nodes[name].device is not DeviceKind.CPU]
    if len(accelerators) >= count:
        return accelerators[:count]
    cpus = [name for name in found if nodes[name].device is DeviceKind.CPU]
    number = 0
    while len(cpus) < count:
        name = f"{host}/rank{number}"
        number += 1
        if name not in nodes:
            nodes[name] = Node(name, NodeKind.DEVICE, device=DeviceKind.CPU)
            numa = next((n for n, node in nodes.items() if node.kind is NodeKind.NUMA), host)
            wires.update({(e.src, e.dst): e for e in both_ways(name, numa, LinkKind.MEMORY)})
            cpus.append(name)
            notes.append(f"{host} has more ranks than CPUs: places for them were added")
    return cpus[:count]


def _rank_pair(rank: int, ranks: Sequence[int], pairs: Pairs) -> Pair | None:
    """The best that was measured between the rank and another one of its host."""
    found = [pairs[ends] for other in ranks for ends in ((rank, other), (other, rank)) if ends in pairs]
    if not found:
        return None
    return Pair(max(pair.bandwidth_Bps for pair in found), min(pair.latency_s for pair in found))


def _with_memory(link: Link, names: Sequence[str], measured: Sequence[Pair | None]) -> Link:
    """The link of a CPU rank to its memory, with what was measured; two such links lie between two ranks."""
    if link.kind is not LinkKind.MEMORY:
        return link
    for name, pair in zip(names, measured, strict=True):
        if pair is not None and name in (link.src, link.dst):
            return replace(link, bandwidth_Bps=_round(pair.bandwidth_Bps), latency_s=_round(pair.latency_s / 2))
    return link


def _nic(
    nodes: dict[str, Node],
    wires: dict[tuple[str, str], Link],
    inside: Topology,
    host: str,
    notes: list[str],
) -> str:
    """The NIC that stands for the host's way out: the widest one that discovery found, or a new one."""
    nics = [name for name, node in nodes.items() if node.kind is NodeKind.NIC]
    if not nics:
        notes.append(f"{host}: no NIC was found, nic0 stands for its way out")
        nic = f"{host}/nic0"
        nodes[nic] = Node(nic, NodeKind.NIC)
        wires.update({(e.src, e.dst): e for e in both_ways(host, nic, LinkKind.PCIE, PCIE)})
        for numa in [name for name, node in nodes.items() if node.kind is NodeKind.NUMA]:
            wires.update({(e.src, e.dst): e for e in both_ways(host, numa, LinkKind.MEMORY)})
        return nic

    def width_Bps(nic: str) -> float:
        return max((e.bandwidth_Bps for e in inside.links_from(nic) if e.kind.is_network), default=0.0)

    best = max(nics, key=width_Bps)
    if len(nics) > 1:
        notes.append(f"{host}: the way out was measured as a whole and is written to {best}; other NICs lead nowhere")
    return best


def _network(nics: Sequence[str], groups: Sequence[Sequence[int]], pairs: Pairs) -> tuple[list[Link], list[str]]:
    """Links of each NIC to the switch of its site, and between the sites; and the names of the switches."""
    count = len(nics)
    between: dict[tuple[int, int], Pair] = {}
    for a in range(count):
        for b in range(count):
            if a != b:
                found = [pairs[i, j] for i in groups[a] for j in groups[b] if (i, j) in pairs]
                if not found:
                    raise TopologyError(f"nothing was measured from {nics[a]!r} to {nics[b]!r}")
                between[a, b] = Pair(max(p.bandwidth_Bps for p in found), min(p.latency_s for p in found))
    up = [max(between[a, b].bandwidth_Bps for b in range(count) if b != a) for a in range(count)]
    down = [max(between[b, a].bandwidth_Bps for b in range(count) if b != a) for a in range(count)]
    near = [min(between[a, b].latency_s for b in range(count) if b != a) / 2 for a in range(count)]
    site = list(range(count))
    for (a, b), pair in between.items():
        back = between[b, a]
        free = pair.bandwidth_Bps >= _SAME * min(up[a], down[b]) and back.bandwidth_Bps >= _SAME * min(up[b], down[a])
        if free and site[a] != site[b]:
            old, new = site[b], site[a]
            site = [new if one == old else one for one in site]
    sites = sorted(set(site))
    taken = {nic.partition("/")[0] for nic in nics}
    name = "network" if "network" not in taken else "network-0"
    switches = [name]
    if len(sites) > 1:
        switches = [f"site{i}" if f"site{i}" not in taken else f"site{i}-network" for i in range(len(sites))]
    links: list[Link] = []
    for a, nic in enumerate(nics):
        switch = switches[sites.index(site[a])]
        latency_s = _round(near[a])
        links.append(Link(nic, switch, LinkKind.ETHERNET, _round(up[a]), latency_s))
        links.append(Link(switch, nic, LinkKind.ETHERNET, _round(down[a]), latency_s))
    for i, one in enumerate(sites):
        for j, other in enumerate(sites):
            if i != j:
                ends = [(a, b) for (a, b) in between if site[a] == one and site[b] == other]
                width_Bps = max(between[e].bandwidth_Bps for e in ends)
                latency_s = min(max(0.0, between[a, b].latency_s - near[a] - near[b]) for a, b in ends)
                links.append(Link(switches[i], switches[j], LinkKind.ETHERNET, _round(width_Bps), _round(latency_s)))
    return links, switches


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
