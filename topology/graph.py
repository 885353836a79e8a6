"""Topology: a frozen graph of hosts, devices, NICs, switches and directed links. A value: no global one, no I/O.

Nodes and links are kept in natural order, so two graphs with the same content are equal and have one digest, in
whatever order they were written. Measured figures make a new value (`Topology.with_estimates`). Which rank sits on
which device is another value: placement.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from hccl_py.core.errors import TopologyError
from hccl_py.topology.link import Link, LinkKind
from hccl_py.topology.node import DeviceKind, Node, NodeKind, did_you_mean, natural_key
from hccl_py.topology.paths import PathFinder

if TYPE_CHECKING:
    import networkx  # type: ignore[import-untyped]

__all__ = ["DeviceKind", "Link", "LinkKind", "Node", "NodeKind", "Topology"]


@dataclass(frozen=True)
class Topology:
    """Nodes and directed links, at most one link for each ordered pair of nodes.

    Args:
        nodes: in any order; kept in natural order of their names.
        links: in any order; kept in natural order of (src, dst).

    Raises:
        TopologyError: no node, a name used twice, a host or NUMA node that is not there, a link with an unknown end, or
            two links from the same node to the same node.
    """

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        # [Note: order] Sorting here, not in the callers, is what makes equality and digest independent of order.
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: natural_key(node.name))))
        ranks = {node.name: index for index, node in enumerate(self.nodes)}
        if not self.nodes:
            raise TopologyError("a topology needs at least one node")
        if len(ranks) != len(self.nodes):
            twice = next(a.name for a, b in pairwise(self.nodes) if a.name == b.name)
            raise TopologyError(f"node {twice!r} is there twice")
        for node in self.nodes:
            self._check_references(node)
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in ranks:
                    raise TopologyError(f"link {link}: there is no node {end!r}{did_you_mean(end, ranks)}")
        by_ends = sorted(self.links, key=lambda link: (ranks[link.src], ranks[link.dst]))
        object.__setattr__(self, "links", tuple(by_ends))
        for a, b in pairwise(by_ends):
            if (a.src, a.dst) == (b.src, b.dst):
                raise TopologyError(f"link {a} is there twice: give parallel wires as one link with their sum")

    def _check_references(self, node: Node) -> None:
        host = self._nodes.get(node.host) if node.host else None
        if node.host and (host is None or host.kind is not NodeKind.HOST):
            raise TopologyError(f"{node.kind.value} {node.name!r}: there is no host {node.host!r}")
        if node.numa:
            numa = self._nodes.get(node.numa)
            if numa is None or numa.kind is not NodeKind.NUMA or numa.host != node.host:
                raise TopologyError(f"{node.kind.value} {node.name!r}: its host has no NUMA node {node.numa!r}")

    # ---- what is there

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.src, link.dst): link for link in self.links}

    @cached_property
    def _outgoing(self) -> dict[str, list[Link]]:
        outgoing: dict[str, list[Link]] = {node.name: [] for node in self.nodes}
        for link in self.links:
            outgoing[link.src].append(link)
        return outgoing

    def node(self, name: str) -> Node:
        """The node of that name; TopologyError names the nearest one if there is none."""
        if name not in self._nodes:
            raise TopologyError(f"there is no node {name!r}{did_you_mean(name, self._nodes)}")
        return self._nodes[name]

    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts in natural order."""
        return tuple(node.name for node in self.nodes if node.kind is NodeKind.HOST)

    def devices(self, host: str | None = None) -> tuple[str, ...]:
        """Names of the devices, of one host or of all, in natural order."""
        return self._of_kind(NodeKind.DEVICE, host)

    def nics(self, host: str | None = None) -> tuple[str, ...]:
        """Names of the NICs, of one host or of all, in natural order."""
        return self._of_kind(NodeKind.NIC, host)

    def _of_kind(self, kind: NodeKind, host: str | None) -> tuple[str, ...]:
        if host is not None and self.node(host).kind is not NodeKind.HOST:
            raise TopologyError(f"{host!r} is a {self.node(host).kind.value}, not a host")
        nodes = self.nodes if host is None else self._group(host)[0]
        return tuple(node.name for node in nodes if node.kind is kind)

    def host_of(self, name: str) -> str:
        """Name of the host that the node is or is in; "" for a switch of the network."""
        return self.node(name).host

    def link(self, src: str, dst: str) -> Link:
        """The direct link from ``src`` to ``dst``; TopologyError if there is none."""
        self.node(src), self.node(dst)
        if (src, dst) not in self._links:
            raise TopologyError(f"there is no link {src} -> {dst}")
        return self._links[src, dst]

    def links_from(self, src: str) -> tuple[Link, ...]:
        """The links that leave ``src``, in natural order of their other end."""
        self.node(src)
        return tuple(self._outgoing[src])

    @cached_property
    def _incoming(self) -> dict[str, list[Link]]:
        incoming: dict[str, list[Link]] = {node.name: [] for node in self.nodes}
        for link in self.links:
            incoming[link.dst].append(link)
        return incoming

    def links_to(self, dst: str) -> tuple[Link, ...]:
        """The links that end in ``dst``, in natural order of their other end."""
        self.node(dst)
        return tuple(self._incoming[dst])

    @cached_property
    def _of_host(self) -> dict[str, tuple[list[Node], list[Link]]]:
        groups: dict[str, tuple[list[Node], list[Link]]] = {host: ([], []) for host in ("", *self.hosts())}
        for node in self.nodes:
            groups[node.host][0].append(node)
        for link in self.links:
            src, dst = self._nodes[link.src].host, self._nodes[link.dst].host
            groups[src if src == dst else ""][1].append(link)
        return groups

    def nodes_within(self, host: str) -> tuple[Node, ...]:
        """The host's own vertex and all that is in it; for "": the switches of the network."""
        return tuple(self._group(host)[0])

    def links_within(self, host: str) -> tuple[Link, ...]:
        """The links between nodes of one host; for "": all others."""
        return tuple(self._group(host)[1])

    def _group(self, host: str) -> tuple[list[Node], list[Link]]:
        if host not in self._of_host:
            raise TopologyError(f"there is no host {host!r}{did_you_mean(host, self.hosts())}")
        return self._of_host[host]

    # ---- paths

    @cached_property
    def _finder(self) -> PathFinder:
        return PathFinder(self.nodes, self.links)

    def path(self, src: str, dst: str) -> tuple[Link, ...]:
        """The links from ``src`` to ``dst``; empty if they are the same node.

        Fewest relays first (a device in the middle, or a host other than the two ends': there software would have to
        forward), then lowest latency, then widest bottleneck; what is still equal is decided by natural order. Between
        devices of one host, NVLink all the way comes first, where it is no narrower.

        Raises:
            TopologyError: an unknown node, or no way.
        """
        self.node(src), self.node(dst)
        links = self._finder.path(src, dst)
        if links is None:
            raise TopologyError(f"there is no path from {src!r} to {dst!r}")
        return links

    @staticmethod
    def bottleneck_Bps(path: Iterable[Link]) -> float:
        """Bandwidth of the narrowest link; infinite for the empty path (nothing leaves the node)."""
        return min((link.bandwidth_Bps for link in path), default=float("inf"))

    @staticmethod
    def latency_s(path: Iterable[Link]) -> float:
        """Sum of the one-way latencies."""
        return sum(link.latency_s for link in path)

    def check_connected(self, devices: Sequence[str]) -> None:
        """Check that every one of ``devices`` reaches every other.

        Raises:
            TopologyError: names a pair without a path.
        """
        if not devices:
            return
        reversed_: dict[str, list[str]] = {name: [] for name in self._nodes}
        for link in self.links:
            reversed_[link.dst].append(link.src)
        outgoing = {name: [link.dst for link in links] for name, links in self._outgoing.items()}
        there, back = (_reach(devices[0], neighbours) for neighbours in (outgoing, reversed_))
        for device in devices:
            for src, dst, reached in ((devices[0], device, there), (device, devices[0], back)):
                if device not in reached:
                    raise TopologyError(f"there is no path from {src!r} to {dst!r}")

    # ---- other forms

    def with_estimates(self, estimates: Mapping[tuple[str, str], tuple[float, float]]) -> Topology:
        """A new graph in which links have measured figures.

        Args:
            estimates: ``{(src, dst): (bandwidth_Bps, latency_s)}``; links that are not named stay as they are.

        Raises:
            TopologyError: a pair that is not a link, or a figure that no link may have.
        """
        for src, dst in estimates:
            self.link(src, dst)
        links = []
        for link in self.links:
            bandwidth_Bps, latency_s = estimates.get((link.src, link.dst), (link.bandwidth_Bps, link.latency_s))
            links.append(replace(link, bandwidth_Bps=bandwidth_Bps, latency_s=latency_s))
        return replace(self, links=tuple(links))

    def without(self, names: Collection[str]) -> Topology:
        """A new graph without these nodes and their links.

        Raises:
            TopologyError: an unknown node, or one that others belong to.
        """
        for name in names:
            self.node(name)
        nodes = tuple(node for node in self.nodes if node.name not in names)
        links = tuple(link for link in self.links if link.src not in names and link.dst not in names)
        return Topology(nodes, links)

    @cached_property
    def _digest(self) -> str:
        nodes = [
            [n.name, n.kind.value, n.device.value if n.device else "", n.numa, n.cpus, n.interface, n.pci]
            for n in self.nodes
        ]
        links = [[e.src, e.dst, e.kind.name, e.bandwidth_Bps.hex(), e.latency_s.hex()] for e in self.links]
        text = json.dumps(["hccl_py topology 1", nodes, links], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def digest(self) -> str:
        """SHA-256 of the canonical form, 64 hexadecimal digits: equal graphs, and only they, have equal digests."""
        return self._digest

    def to_networkx(self) -> networkx.DiGraph[str]:
        """A networkx DiGraph: nodes with ``kind``, ``host``; edges with ``kind``, ``bandwidth_Bps``, ``latency_s``."""
        import networkx  # here, so that a worker that only runs plans does not pay for it

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for node in self.nodes:
            graph.add_node(node.name, kind=node.kind.value, host=node.host)
        for link in self.links:
            graph.add_edge(
                link.src, link.dst, kind=link.kind.name, bandwidth_Bps=link.bandwidth_Bps, latency_s=link.latency_s
            )
        return graph


def _reach(start: str, neighbours: Mapping[str, Sequence[str]]) -> set[str]:
    """All nodes that can be reached from ``start``, itself included."""
    reached, left = {start}, [start]
    while left:
        for name in neighbours[left.pop()]:
            if name not in reached:
                reached.add(name)
                left.append(name)
    return reached
