"""From a graph to the parameters of `rails`: the order of hosts, shares of rails, ways to halve, what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import gcd, lcm
from typing import cast

from hccl_py.core.types import Collective
from hccl_py.scheduler.engine_costs import EngineCosts
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.ring_order import ring_order
from hccl_py.topology.graph import Link, Topology
from hccl_py.topology.node import natural_key
from hccl_py.topology.placement import Placement

Groups = tuple[tuple[int, ...], ...]
_MAX_PART = 8  # shares are ratios of whole numbers up to this one
_MAX_RADIX = 4
# into which halvings cut a block: small ones first and last
_CHUNKS: tuple[tuple[int, ...], ...] = ((1,), (1, 1, 1, 1), (1, 2) + (3,) * 16 + (2, 1))
_TURNED = (1, 1, 2) + (3,) * 8 + (2, 1)  # where the first goes along the rails first
_RINGS = (1, 3)  # as many rings at a time
_FEW_HOSTS, _MORE_RINGS = 8, (4,)  # so many take less time there, above they only make more steps
_MAX_RING = 16  # hosts; above, so many hops cost more than halvings


def rails_for(
    collective: Collective, topology: Topology, placement: Placement, root: int = 0, channels: int = 2
) -> tuple[Mapping[str, ParamValue], ...]:
    """Parameter sets of `rails` for this graph; none on one host, with hosts of different size, or for one channel."""
    groups = rail_groups(topology, placement)
    if collective is not Collective.ALL_REDUCE:
        return ()
    if len(groups) < 2 or len({len(group) for group in groups}) > 1 or channels < 2:
        return ()
    base: dict[str, ParamValue] = {"groups": groups, "shares": rail_shares(topology, placement, groups)}
    inner = inner_order(topology, placement, groups[0])
    if inner:
        base["inner"] = inner
    hosts = len(groups)
    radices = _radices(topology, placement, groups)
    halvable = max(radices) <= 2 * _MAX_RADIX
    found: list[Mapping[str, ParamValue]] = []
    if hosts <= _MAX_RING or not halvable:
        rings = _RINGS + _MORE_RINGS if hosts <= _FEW_HOSTS else _RINGS
        found += [{**base, "chunks": (1,) * n} for n in rings]
    if halvable:
        found += [{**base, "radices": radices, "chunks": chunks} for chunks in _CHUNKS]
        if hosts == 2 and len(groups[0]) > 1:
            turned = (1,) + (0,) * (len(_TURNED) - 1)
            found.append({**base, "radices": radices, "chunks": _TURNED, "turned": turned})
    return tuple(found)


def inner_order(topology: Topology, placement: Placement, group: tuple[int, ...]) -> tuple[int, ...]:
    """The order of a ring inside a host where that loads its links less than straight messages do, else ()."""
    if len(group) < 3:
        return ()
    order = ring_order(topology, placement, group)
    index = tuple(group.index(rank) for rank in order)
    straight = [(a, b) for a in range(len(group)) for b in range(len(group)) if a != b]
    round_ = [(index[i - 1], index[i]) for i in range(len(group))]

    def busiest_s(pairs: list[tuple[int, int]], each: float) -> float:
        loads: dict[Link, float] = {}
        for a, b in pairs:
            for link in placement.path(group[a], group[b], topology):
                loads[link] = loads.get(link, 0.0) + each
        return max(load / link.bandwidth_Bps for link, load in loads.items())

    return index if busiest_s(round_, len(group) - 1) < 0.999 * busiest_s(straight, 1) else ()


def _radices(topology: Topology, placement: Placement, groups: Groups) -> tuple[int, ...]:
    """Hosts of one switch first, where all switches have equally many: the first digit moves most."""
    switches = _first_switch(topology)
    counts: dict[object, int] = {}
    for group in groups:
        key = switches.get(placement.host(group[0], topology), ())
        counts[key] = counts.get(key, 0) + 1
    near = counts.popitem()[1]
    if any(count != near for count in counts.values()):
        return merged(len(groups))
    return merged(near) + merged(len(groups) // near)


def _first_switch(topology: Topology) -> dict[str, tuple[object, ...]]:
    """Of each host, the first of the switches that it hangs at."""
    found: dict[str, tuple[object, ...]] = {}
    for link in topology.links:
        host = topology.host_of(link.src)
        if host and not topology.host_of(link.dst):
            key = natural_key(link.dst)
            found[host] = min(found.get(host, key), key)
    return found


def rail_groups(topology: Topology, placement: Placement) -> Groups:
    """The ranks of each host, hosts in natural order of the first switch that they hang at and of their names.

    Hosts of one switch follow each other, so that what goes to the next host stays below it where it can.
    """
    switch = _first_switch(topology)
    groups = placement.groups(topology)
    name = {group: placement.host(group[0], topology) for group in groups}
    return tuple(sorted(groups, key=lambda group: (switch.get(name[group], ()), natural_key(name[group]))))


@lru_cache(maxsize=4)
def rail_ways(topology: Topology, placement: Placement, groups: Groups) -> list[list[tuple[Link, ...]]]:
    """Of each rail, the ways from each host to the next, all round."""
    return [
        [
            placement.path(group[rail], groups[(number + 1) % len(groups)][rail], topology)
            for number, group in enumerate(groups)
        ]
        for rail in range(len(groups[0]))
    ]


def rail_shares(topology: Topology, placement: Placement, groups: Groups) -> tuple[int, ...]:
    """Shares in proportion to the narrowest link that each rail has on its way round."""
    narrowest = [min(map(Topology.bottleneck_Bps, ways)) for ways in rail_ways(topology, placement, groups)]
    ratios = [Fraction(speed / max(narrowest)).limit_denominator(_MAX_PART) for speed in narrowest]
    ratios = [max(ratio, Fraction(1, _MAX_PART)) for ratio in ratios]
    whole = [int(ratio * lcm(*(r.denominator for r in ratios))) for ratio in ratios]
    return tuple(part // gcd(*whole) for part in whole)


def merged(hosts: int) -> tuple[int, ...]:
    """Factors of a number, prime ones put together as long as the product is at most `_MAX_RADIX`, descending."""
    found: list[int] = []
    rest, p = hosts, 2
    while rest > 1:
        if rest % p:
            p += 1
            continue
        rest //= p
        if found and found[-1] * p <= _MAX_RADIX:
            found[-1] *= p
        else:
            found.append(p)
    return tuple(sorted(found, reverse=True))


class _Loads(dict[Link, float]):
    """Bytes over links."""

    def add(self, way: Iterable[Link], num_bytes: float) -> None:
        """So many more over each link of the way."""
        for link in way:
            self[link] = self.get(link, 0.0) + num_bytes

    def busiest_s(self) -> float:
        """Seconds of the busiest one."""
        return max((load / link.bandwidth_Bps for link, load in self.items()), default=0.0)


class RailsCost:
    """What an all-reduce along rails takes, see large.py: parts that do not depend on the size are worked out once."""

    def __init__(
        self, params: Mapping[str, ParamValue], topology: Topology, placement: Placement, engine: EngineCosts
    ) -> None:
        groups = cast("tuple[tuple[int, ...], ...]", params["groups"])
        self._shares = cast("tuple[int, ...]", params.get("shares", (1,) * len(groups[0])))
        self._chunks = cast("tuple[int, ...]", params.get("chunks", (1,)))
        self._radices = cast("tuple[int, ...]", params.get("radices", ()))
        turned = cast("tuple[int, ...]", params.get("turned", (0,) * len(self._chunks)))
        self._turned = sum(c for c, t in zip(self._chunks, turned, strict=True) if t) / sum(self._chunks)
        self._hosts = len(groups)
        ways = rail_ways(topology, placement, groups)
        self._hop_s = max(Topology.latency_s(way) for way in chain.from_iterable(ways))
        self._hop_s += 2 * (engine.step_s + engine.network_message_s)
        both, network, inner = _Loads(), _Loads(), _Loads()
        self._along(ways, network)
        order = cast("tuple[int, ...]", params.get("inner", ()))
        self._inside(groups[0], order, topology, placement, inner)
        for loads in (network, inner):
            for link, load in loads.items():
                both.add([link], load)
        self._network_s, self._inner_s, self._both_s = network.busiest_s(), inner.busiest_s(), both.busiest_s()

    def _along(self, ways: list[list[tuple[Link, ...]]], loads: _Loads) -> None:
        """Bytes over each link for a block of one byte, along the rails."""
        often, whole = 2 * (self._hosts - 1) / self._hosts, sum(self._shares)
        for rail, share in zip(ways, self._shares, strict=True):
            each = often * ((1 - self._turned) * share / whole + self._turned)
            loads.add(chain.from_iterable(rail), each)

    def _inside(
        self, group: tuple[int, ...], order: tuple[int, ...], topology: Topology, at: Placement, loads: _Loads
    ) -> None:
        """The same inside the first host; others are alike."""
        shares, whole = self._shares, sum(self._shares)
        kept = (1 - self._turned + self._turned / self._hosts) / whole
        for place, a in enumerate(order or range(len(group))):
            for b in [order[(place + 1) % len(order)]] if order else range(len(group)):
                if a != b:
                    both = shares[a] + shares[b]
                    loads.add(at.path(group[a], group[b], topology), kept * (2 * whole - both if order else both))

    def seconds(self, size_bytes: int) -> float:
        """For a block of this size."""
        chunks, hop_s = self._chunks, self._hop_s
        network_s, inner_s, both_s = (size_bytes * s for s in (self._network_s, self._inner_s, self._both_s))
        ends_s = inner_s * (chunks[0] + chunks[-1]) / 2 / sum(chunks)
        if self._radices:
            stages = 2 * len(self._radices) + 2
            alone_s = (network_s + inner_s) * max(chunks) / sum(chunks)
            through_s = max(both_s, alone_s)
            return through_s + ends_s * (len(chunks) > 1) + hop_s * (stages + len(chunks) - 1)
        hops = 2 * (self._hosts - 1)
        cycle_s = max(network_s / hops, network_s / hops / len(chunks) + hop_s)
        return max(hops * cycle_s, both_s) + ends_s / self._hosts + 2 * hop_s
