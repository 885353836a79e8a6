"""Cuts: what a collective takes at least because so much has to pass between sets of ranks (see bounds.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hccl_py.core.types import Collective
from hccl_py.topology.graph import Link, NodeKind, Topology
from hccl_py.topology.placement import Placement

C = Collective
_MAX_FLOW_RANKS = 64
_MAX_SPEEDS = 12
_SCALE = 2**20  # capacities become whole numbers for scipy's flow; rounded up, so that a bound stays one


@dataclass(frozen=True)
class Bound:
    """No plan is faster.

    Attributes:
        seconds: for one collective of the size that was asked about.
        why: "trees", "cut of ...", "partition into ...", "latency of ...".
    """

    seconds: float
    why: str


def per_byte(topology: Topology, placement: Placement, collective: Collective, root: int = 0) -> list[Bound]:
    """Bounds by cuts and partitions, in seconds for a block of one byte."""
    flows = _Flows(topology, placement) if placement.size <= _MAX_FLOW_RANKS else None
    found: list[Bound] = []
    for part in _partitions(topology, placement):
        if len(part.sets) < 2:
            continue
        out = [flows.between(s, leaving=True) for s in part.sets] if flows else part.around(topology, leaving=True)
        into = [flows.between(s, leaving=False) for s in part.sets] if flows else part.around(topology, leaving=False)
        for ranks, leaves, enters in zip(part.sets, out, into, strict=True):
            sent, received = _crossing(collective, ranks, placement.size, root)
            what = f"cut around {_named(ranks)}"
            found += [Bound(sent / leaves, what), Bound(received / enters, what)]
        if collective is C.ALL_REDUCE:
            copies = 2.0 * (len(part.sets) - 1)
            found.append(Bound(copies / min(sum(out), sum(into)), f"partition into {len(part.sets)} {part.name}"))
    return found


def _crossing(collective: Collective, ranks: Sequence[int], world: int, root: int) -> tuple[float, float]:
    """Blocks that have to leave a set of ranks, and to enter it."""
    inside, outside = len(ranks), world - len(ranks)
    has_root = root in ranks
    if collective is C.ALL_REDUCE:
        return 1.0, 1.0
    if collective in (C.BROADCAST, C.REDUCE):
        leaves = has_root if collective is C.BROADCAST else not has_root
        return (1.0, 0.0) if leaves else (0.0, 1.0)
    if collective is C.ALL_GATHER:
        return float(inside), float(outside)
    if collective is C.REDUCE_SCATTER:
        return float(outside), float(inside)
    if collective is C.ALL_TO_ALL:
        return float(inside * outside), float(inside * outside)
    if collective is C.GATHER:
        return (0.0, float(outside)) if has_root else (float(inside), 0.0)
    if collective is C.SCATTER:
        return (float(outside), 0.0) if has_root else (0.0, float(inside))
    return 0.0, 0.0  # a barrier has no bytes


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}..{ranks[-1]} ({len(ranks)})"


@dataclass(frozen=True)
class _Partition:
    """Sets of ranks, and for each node of the graph the number of the set that it lies in, if it does."""

    name: str
    sets: tuple[tuple[int, ...], ...]
    label: dict[str, int]

    def around(self, topology: Topology, leaving: bool) -> list[float]:
        """Of each set, bytes per second of the links that leave its nodes, or enter them."""
        total = [0.0] * len(self.sets)
        for link in topology.links:
            src, dst = self.label.get(link.src, -1), self.label.get(link.dst, -1)
            mine = src if leaving else dst
            if src != dst and mine >= 0:
                total[mine] += link.bandwidth_Bps
        return total


def _partitions(topology: Topology, placement: Placement) -> Iterable[_Partition]:
    """Single ranks, hosts, and the islands that are left without the topmost switches or without the slowest links."""
    ranks = tuple((rank,) for rank in range(placement.size))
    yield _Partition("ranks", ranks, {device: rank for rank, device in enumerate(placement.devices)})
    hosts: dict[object, list[int]] = {}
    for rank in range(placement.size):
        hosts.setdefault(placement.host(rank, topology), []).append(rank)
    number: dict[object, int] = {host: i for i, host in enumerate(hosts)}
    inside = {node.name: number[node.host] for node in topology.nodes if node.host in number}
    yield _Partition("hosts", tuple(map(tuple, hosts.values())), inside)
    level = _levels(topology)
    for height in range(max(level.values(), default=0), 0, -1):
        yield _islands(topology, placement, without={name for name, h in level.items() if h >= height})
    speeds = sorted({link.bandwidth_Bps for link in topology.links})
    for speed in speeds[1:_MAX_SPEEDS]:
        yield _islands(topology, placement, without=set(), at_least_Bps=speed)


def _levels(topology: Topology) -> dict[str, int]:
    """Height of each switch of the network: 1 if a host hangs at it, else one above the lowest next to it."""
    level: dict[str, int] = {}
    edge = [node.name for node in topology.nodes if node.host]
    height = 0
    while edge:
        above = {
            link.dst
            for name in edge
            for link in topology.links_from(name)
            if topology.node(link.dst).kind is NodeKind.SWITCH and not topology.host_of(link.dst)
        } - level.keys()
        height += 1
        level.update(dict.fromkeys(above, height))
        edge = sorted(above)
    return level


def _islands(topology: Topology, placement: Placement, without: set[str], at_least_Bps: float = 0.0) -> _Partition:
    """What hangs together once some nodes and all slower links are gone."""
    found: dict[str, int] = {}
    for node in topology.nodes:
        if node.name in found or node.name in without:
            continue
        found[node.name], left = len(found), [node.name]
        while left:
            for link in topology.links_from(left.pop()):
                if link.dst not in found and link.dst not in without and link.bandwidth_Bps >= at_least_Bps:
                    found[link.dst] = found[node.name]
                    left.append(link.dst)
    sets: dict[int, list[int]] = {}
    for rank, device in enumerate(placement.devices):
        sets.setdefault(found[device], []).append(rank)
    number = {island: i for i, island in enumerate(sets)}
    inside = {name: number[island] for name, island in found.items() if island in number}
    return _Partition("islands", tuple(map(tuple, sets.values())), inside)


class _Flows:
    """Largest flows between a set of ranks and the others, over the links that routes use."""

    def __init__(self, topology: Topology, placement: Placement) -> None:
        self._placement = placement
        self._links = _used_links(topology, placement)
        self._nodes = {name: i for i, name in enumerate(dict.fromkeys(n for e in self._links for n in (e.src, e.dst)))}
        for device in placement.devices:
            self._nodes.setdefault(device, len(self._nodes))

    def between(self, ranks: Sequence[int], leaving: bool) -> float:
        """Bytes per second from the set to the others, or back."""
        # here, so that a worker that asks for no bound does not load it
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
        from scipy.sparse.csgraph import maximum_flow  # type: ignore[import-untyped]

        inside = set(ranks)
        source, sink = len(self._nodes), len(self._nodes) + 1
        unit = max(link.bandwidth_Bps for link in self._links) / _SCALE
        rows, columns, values = [], [], []
        for link in self._links:
            rows.append(self._nodes[link.src])
            columns.append(self._nodes[link.dst])
            values.append(-int(-link.bandwidth_Bps // unit))
        for rank, device in enumerate(self._placement.devices):
            mine = (rank in inside) is leaving
            rows.append(source if mine else self._nodes[device])
            columns.append(self._nodes[device] if mine else sink)
            values.append(2**30)
        size = len(self._nodes) + 2
        graph = csr_matrix((values, (rows, columns)), shape=(size, size), dtype="int32")
        return float(maximum_flow(graph, source, sink).flow_value) * unit


def _used_links(topology: Topology, placement: Placement) -> list[Link]:
    found: dict[Link, None] = {}
    for src in range(placement.size):
        for dst in range(placement.size):
            if src != dst:
                found.update(dict.fromkeys(placement.path(src, dst, topology)))
    return list(found)
