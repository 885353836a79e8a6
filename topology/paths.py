"""Best paths from one node to all others: Dijkstra over (relays, latency, bottleneck).

Between devices of a host that hang together by NVLink (or the like) that fabric is the way, if it is no narrower than
the best path by these rules: PCIe between two neighbours may have the lower latency, but nobody copies over it.
networkx adds up single numbers; the order wanted here is lexicographic, and its last part is a minimum, not a sum.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from hccl_py.topology.link import Link, LinkKind
from hccl_py.topology.node import Node, NodeKind

# Latencies are added as whole femtoseconds: sums of floats depend on their order, and equal paths would not be equal.
_FS_PER_S = 10**15

_NETWORK = -1  # the "host" of the network's switches

Label = tuple[int, int, float]  # relays, latency in fs, minus the bottleneck in bytes/second


def relays(start: Node, src: Node, dst: Node) -> int:
    """1 if taking the link ``src -> dst`` on a path from ``start`` makes software at ``src`` forward, else 0."""
    through_device = src.kind is NodeKind.DEVICE and src.name != start.name
    leaves_foreign_host = src.host not in ("", start.host) and dst.host != src.host
    return int(through_device or leaves_foreign_host)


def extend(label: Label, link: Link, relay: int) -> Label:
    """The label of a path made longer by ``link``."""
    return label[0] + relay, label[1] + round(link.latency_s * _FS_PER_S), max(label[2], -link.bandwidth_Bps)


_Edge = tuple[int, int, float, Link]  # other end, latency in fs, minus bandwidth, link
_MAX_NEAR = 24  # destination hosts of one node, after which a search over everything is cheaper


class PathFinder:
    """Best paths, found on demand and kept.

    A path without relays touches the two ends' hosts and the network's switches only. So the search begins there, and
    goes over the whole graph only where that finds no path without relays: 1,024 devices in 128 hosts are 3,600 nodes,
    two of their hosts and the switches less than 100.

    Args:
        nodes: in natural order, which decides between equal labels.
        links: all links, in natural order of (src, dst).
    """

    def __init__(self, nodes: Sequence[Node], links: Sequence[Link]) -> None:
        self._number = {node.name: index for index, node in enumerate(nodes)}
        hosts = {"": _NETWORK}
        self._host = [hosts.setdefault(node.host, len(hosts)) for node in nodes]
        self._is_device = [node.kind is NodeKind.DEVICE for node in nodes]
        self._outgoing: list[dict[int, list[_Edge]]] = [{} for _ in nodes]  # of each node, by host of the other end
        for link in links:
            _, latency_fs, minus_Bps = extend((0, 0, float("-inf")), link, 0)
            to = self._number[link.dst]
            by_host = self._outgoing[self._number[link.src]].setdefault(self._host[to], [])
            by_host.append((to, latency_fs, minus_Bps, link))
        self._leads_to: dict[int, list[int]] = {}  # host -> the nodes with a link into it
        for number, by_hosts in enumerate(self._outgoing):
            for host in by_hosts:
                self._leads_to.setdefault(host, []).append(number)
        self._near: dict[int, dict[int, dict[int, Link]]] = {}  # start -> other host -> node -> last link
        self._home: dict[int, tuple[dict[int, Label], dict[int, Link]]] = {}  # start -> its host and the network
        self._full: dict[int, dict[int, Link]] = {}
        self._nvlink: dict[int, dict[int, Link]] = {}

    def path(self, src: str, dst: str) -> tuple[Link, ...] | None:
        """The links from ``src`` to ``dst``, or None if there is no way."""
        first, at = self._number[src], self._number[dst]
        found = self._back(self._tree(first, at), first, at)
        if found is None or not (
            self._is_device[first] and self._is_device[at] and self._host[first] == self._host[at]
        ):
            return found
        if first not in self._nvlink:
            self._nvlink[first] = self._search(first, {self._host[first]}, relays=False, only=LinkKind.NVLINK)[1]
        fabric = self._back(self._nvlink[first], first, at)  # memory of one device is mapped by the other over it
        if fabric and min(e.bandwidth_Bps for e in fabric) >= min(e.bandwidth_Bps for e in found):
            return fabric
        return found

    def _back(self, tree: dict[int, Link], first: int, at: int) -> tuple[Link, ...] | None:
        links: list[Link] = []
        while at != first:
            link = tree.get(at)
            if link is None:
                return None
            links.append(link)
            at = self._number[link.src]
        return tuple(reversed(links))

    def _tree(self, start: int, to: int) -> dict[int, Link]:
        """The last link of the best path from ``start`` to each node; ``to`` is among them if it can be reached."""
        if start in self._full:
            return self._full[start]
        near = self._near.setdefault(start, {})
        other = self._host[to]
        if len(near) < _MAX_NEAR or other in near:
            if other not in near:
                near[other] = self._search_into(start, other)
            if to in near[other] or to == start:
                return near[other]
        return self._search_all(start)

    def search_everywhere(self, src: str) -> None:
        """Find the paths from ``src`` to all nodes at once: right when most of them will be asked for."""
        self._search_all(self._number[src])

    def _search_into(self, start: int, other: int) -> dict[int, Link]:
        """The paths without relays to one host, going on from those in the start's host and the network.

        Nothing leads out of the other host again without a relay, so what was found before is final. All nodes that
        lead into the host are taken up once more in the order of that search, so that equal paths come out the same.
        """
        if start not in self._home:
            self._home[start] = self._search(start, {_NETWORK, self._host[start]}, relays=False)
        best, last = self._home[start]
        if other in (_NETWORK, self._host[start]):
            return last
        begin = {at: best[at] for at in self._leads_to.get(other, ()) if at in best and self._host[at] != other}
        return {**last, **self._search(start, {other}, relays=False, begin=begin)[1]}

    def _search_all(self, start: int) -> dict[int, Link]:
        self._full[start] = self._search(start, None, relays=True)[1]
        return self._full[start]

    def _search(
        self,
        start: int,
        within: Collection[int] | None,
        relays: bool,
        begin: dict[int, Label] | None = None,
        only: LinkKind | None = None,
    ) -> tuple[dict[int, Label], dict[int, Link]]:
        """Dijkstra, within some hosts or everywhere, with relays or without, over all links or those of one kind; from
        ``begin`` on, if that is known.

        Returns the label of each node and the last link of the path to it.

        It is right because making two paths longer by the same link never turns their order round.
        """
        home = self._host[start]
        best = dict(begin) if begin is not None else {start: (0, 0, float("-inf"))}
        last: dict[int, Link] = {}
        done: set[int] = set()
        queue: list[tuple[Label, int]] = [(label, at) for at, label in best.items()]
        heapq.heapify(queue)
        while queue:
            (forwards, latency_fs, minus_Bps), at = heapq.heappop(queue)
            if at in done:
                continue
            done.add(at)
            host = self._host[at]
            foreign = host not in (_NETWORK, home)
            through_device = self._is_device[at] and at != start
            by_host = self._outgoing[at]
            for there in by_host if within is None else within:
                relay = through_device or (foreign and there != host)
                if relay and not relays:
                    continue
                for to, more_fs, link_Bps, link in by_host.get(there, ()):
                    if to in done or (only is not None and link.kind is not only):
                        continue
                    wide_Bps = minus_Bps if minus_Bps > link_Bps else link_Bps
                    longer = (forwards + relay, latency_fs + more_fs, wide_Bps)
                    if to not in best or longer < best[to]:
                        best[to] = longer
                        last[to] = link
                        heapq.heappush(queue, (longer, to))
        return best, last
