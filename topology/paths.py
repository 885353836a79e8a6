"""Best paths from one node to all others: Dijkstra over (relays, latency, bottleneck).

networkx adds up single numbers; the order wanted here is lexicographic, and its last part is a minimum, not a sum.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

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
    return (
        label[0] + relay,
        label[1] + round(link.latency_s * _FS_PER_S),
        max(label[2], -link.bandwidth_Bps),
    )


def shortest_tree(start: str, nodes: Mapping[str, Node], outgoing: Mapping[str, Sequence[Link]]) -> dict[str, Link]:
    """The last link of the best path from ``start`` to every node that can be reached.

    ``nodes`` is in natural order, which decides between equal labels. Dijkstra is right here because making two paths
    longer by the same link never turns their order round.
    """
    number = {name: index for index, name in enumerate(nodes)}
    best: dict[str, Label] = {start: (0, 0, float("-inf"))}
    last: dict[str, Link] = {}
    done: set[str] = set()
    queue: list[tuple[Label, int, str]] = [(best[start], number[start], start)]
    while queue:
        label, _, at = heapq.heappop(queue)
        if at in done:
            continue
        done.add(at)
        for link in outgoing[at]:
            if link.dst in done:
                continue
            longer = extend(label, link, relays(nodes[start], nodes[at], nodes[link.dst]))
            if link.dst not in best or longer < best[link.dst]:
                best[link.dst] = longer
                last[link.dst] = link
                heapq.heappush(queue, (longer, number[link.dst], link.dst))
    return last
