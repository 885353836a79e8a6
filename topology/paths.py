"""Best paths from one node to all others: Dijkstra over (relays, latency, bottleneck).

networkx adds up single numbers; the order wanted here is lexicographic, and its last part is a minimum, not a sum.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hccl_py.topology.link import Link
from hccl_py.topology.node import Node, NodeKind

# Latencies are added as whole femtoseconds: sums of floats depend on their order, and equal paths would not be equal.
_FS_PER_S = 10**15

Label = tuple[int, int, float]  # relays, latency in fs, minus the bottleneck in bytes/second


def relays(start: Node, src: Node, dst: Node) -> int:
    """1 if taking the link ``src -> dst`` on a path from ``start`` makes software at ``src`` forward, else 0."""
    through_device = src.kind is NodeKind.DEVICE and src.name != start.name
    leaves_foreign_host = src.host not in ("", start.host) and dst.host != src.host
    return int(through_device or leaves_foreign_host)


def extend(label: Label, link: Link, relay: int) -> Label:
    """The label of a path made longer by ``link``."""
    return label[0] + relay, label[1] + round(link.latency_s * _FS_PER_S), max(label[2], -link.bandwidth_Bps)


class PathFinder:
    """The graph by numbers: what `relays` and `extend` need is looked up once, not for each of a million steps.

    Args:
        nodes: in natural order, which decides between equal labels.
        links: all links, in natural order of (src, dst).
    """

    def __init__(self, nodes: Sequence[Node], links: Sequence[Link]) -> None:
        self._number = {node.name: index for index, node in enumerate(nodes)}
        hosts = {"": -1}
        self._host = [hosts.setdefault(node.host, len(hosts)) for node in nodes]  # -1: a switch of the network
        self._is_device = [node.kind is NodeKind.DEVICE for node in nodes]
        # of each node: (other end, latency in fs, minus bandwidth, link)
        self._outgoing: list[list[tuple[int, int, float, Link]]] = [[] for _ in nodes]
        for link in links:
            _, latency_fs, minus_Bps = extend((0, 0, float("-inf")), link, 0)
            self._outgoing[self._number[link.src]].append((self._number[link.dst], latency_fs, minus_Bps, link))

    def tree(self, start: str) -> dict[str, Link]:
        """The last link of the best path from ``start`` to every node that can be reached.

        Dijkstra is right because making two paths longer by the same link never turns their order round.
        """
        first = self._number[start]
        home = self._host[first]
        best: dict[int, Label] = {first: (0, 0, float("-inf"))}
        last: dict[int, Link] = {}
        done = [False] * len(self._outgoing)
        queue: list[tuple[Label, int]] = [(best[first], first)]
        while queue:
            (forwards, latency_fs, minus_Bps), at = heapq.heappop(queue)
            if done[at]:
                continue
            done[at] = True
            host = self._host[at]
            foreign = host not in (-1, home)
            through_device = self._is_device[at] and at != first
            for to, more_fs, link_Bps, link in self._outgoing[at]:
                if done[to]:
                    continue
                relay = through_device or (foreign and self._host[to] != host)
                longer = (forwards + relay, latency_fs + more_fs, minus_Bps if minus_Bps > link_Bps else link_Bps)
                if to not in best or longer < best[to]:
                    best[to] = longer
                    last[to] = link
                    heapq.heappush(queue, (longer, to))
        return {link.dst: link for link in last.values()}
