"""Declared against measured: what two descriptions of one cluster say of the same ranks and the same links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hccl_py.core.errors import TopologyError
from hccl_py.core.units import format_bandwidth, format_seconds
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import prior

FACTOR = 2.0
_MAX_HOSTS = 64  # beyond, each host is compared with the next one only


@dataclass(frozen=True)
class Figure:
    """One figure in both descriptions; ``src`` and ``dst`` are nodes of the declared graph."""

    what: str  # "ranks 0 -> 3", "link a -> b"
    quantity: str  # "bandwidth" or "latency"
    declared: float
    measured: float
    src: str
    dst: str

    @property
    def factor(self) -> float:
        """How far they are apart, 1 or more; infinite if one of them is zero."""
        low, high = sorted((self.declared, self.measured))
        return high / low if low > 0 else 1.0 if high == 0 else float("inf")

    def __str__(self) -> str:
        form = format_bandwidth if self.quantity == "bandwidth" else format_seconds
        return f"{self.what}: {self.quantity} {form(self.declared)} declared, {form(self.measured)} measured"


def compare(
    declared: tuple[Topology, Placement], measured: tuple[Topology, Placement]
) -> tuple[list[Figure], list[str]]:
    """All figures that can be compared, and sentences on what only one side has.

    Ranks are compared by number, along the path between them: between hosts the first rank of each with the first of
    every other, inside a host the first with the rest. Links are compared where both graphs have them by name, and the
    second one does not only have the prior of its kind.
    """
    ours, theirs = declared[0], measured[0]
    size = min(declared[1].size, measured[1].size)
    figures = [figure for pair in _pairs(measured[1].head(size), theirs) for figure in _ranks(pair, declared, measured)]
    links = {(link.src, link.dst): link for link in theirs.links}
    common = 0
    for link in ours.links:
        other = links.get((link.src, link.dst))
        common += other is not None
        if other is not None and (other.bandwidth_Bps, other.latency_s) != prior(
            other.kind
        ):  # a prior was not measured
            values = (
                ("bandwidth", link.bandwidth_Bps, other.bandwidth_Bps),
                ("latency", link.latency_s, other.latency_s),
            )
            figures += [Figure(f"link {link}", what, a, b, link.src, link.dst) for what, a, b in values]
    notes = []
    if declared[1].size != measured[1].size:
        notes.append(
            f"{declared[1].size} ranks are declared, {measured[1].size} were measured: compared the first {size}"
        )
    grouping = [p.head(size).groups(t) for t, p in (declared, measured)]
    if grouping[0] != grouping[1]:
        notes.append(f"declared hosts hold the ranks {_text(grouping[0])}, measured ones {_text(grouping[1])}")
    if not common and ours.links:
        notes.append("no link has the same name on both sides: only ranks were compared")
    return figures, notes


def _pairs(placement: Placement, topology: Topology) -> Iterator[tuple[int, int]]:
    groups = placement.groups(topology)
    for i, a in enumerate(groups):
        others = groups if len(groups) <= _MAX_HOSTS else (groups[(i + 1) % len(groups)],)
        yield from ((a[0], b[0]) for b in others if b is not a)
        yield from ((a[0], other) for other in a[1:])


def _ranks(
    pair: tuple[int, int], declared: tuple[Topology, Placement], measured: tuple[Topology, Placement]
) -> list[Figure]:
    try:
        paths = [placement.path(*pair, topology) for topology, placement in (declared, measured)]
    except TopologyError:
        return []
    ends = declared[1].device(pair[0]), declared[1].device(pair[1])
    name = f"ranks {pair[0]} -> {pair[1]}"
    ours, theirs = paths
    return [
        Figure(name, "bandwidth", Topology.bottleneck_Bps(ours), Topology.bottleneck_Bps(theirs), *ends),
        Figure(name, "latency", Topology.latency_s(ours), Topology.latency_s(theirs), *ends),
    ]


def _text(groups: tuple[tuple[int, ...], ...]) -> str:
    text = " | ".join(",".join(map(str, ranks)) for ranks in groups)
    return text if len(text) <= 100 else f"{text[:96]} ..."
