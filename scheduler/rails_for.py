"""From a graph to the parameters of `rails`: the order of hosts, shares of rails, ways to halve, what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import cast

from hccl_py.core.types import Collective
from hccl_py.scheduler.engine_costs import EngineCosts
from hccl_py.scheduler.plan import ParamValue
from hccl_py.topology.graph import Link, Topology
from hccl_py.topology.node import natural_key
from hccl_py.topology.placement import Placement

Groups = tuple[tuple[int, ...], ...]
_MAX_PART = 8  # shares are ratios of whole numbers up to this one
_MAX_RADIX = 4
_CHUNKS: tuple[tuple[int, ...], ...] = (
    (1,),
    (1, 1, 1, 1),
    (1, 2) + (3,) * 16 + (2, 1),
)  # into which halvings cut a block
_RINGS = (1, 2)  # as many rings at a time
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
    base: Mapping[str, ParamValue] = {"groups": groups, "shares": rail_shares(topology, placement, groups)}
    hosts = len(groups)
    radices = _radices(topology, placement, groups)
    halvable = max(radices) <= 2 * _MAX_RADIX
    found: list[Mapping[str, ParamValue]] = []
    if hosts <= _MAX_RING or not halvable:
        found += [{**base, "chunks": (1,) * n} for n in _RINGS]
    if halvable:
        found += [{**base, "radices": radices, "chunks": chunks} for chunks in _CHUNKS]
    return tuple(found)


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


def rail_ways(topology: Topology, placement: Placement, groups: Groups) -> list[list[tuple[Link, ...]]]:
    """Of each rail, the ways from each host to the next, all round."""
    return [
        [
            placement.path(group[rail], groups[(number + 1) % len(groups)][rail], topology)
            for number, group in enumerate(groups)
        ]
        for rail in range(len(groups[0]))
    ]


def _busiest_s(ways: list[list[tuple[Link, ...]]], shares: tuple[int, ...]) -> float:
    """Seconds that the busiest link takes if a rail moves as many bytes as it has shares from a host to the next."""
    loads: dict[Link, int] = {}
    for rail, share in zip(ways, shares, strict=True):
        for way in rail:
            for link in way:
                loads[link] = loads.get(link, 0) + share
    shared = {link: load for link, load in loads.items() if link.kind.is_network}
    return max((load / link.bandwidth_Bps for link, load in (shared or loads).items()), default=0.0)


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


def rails_seconds(
    params: Mapping[str, ParamValue], topology: Topology, placement: Placement, engine: EngineCosts, size_bytes: int
) -> float:
    """What an all-reduce along rails takes, see the module's docstring."""
    groups = cast("tuple[tuple[int, ...], ...]", params["groups"])
    shares = cast("tuple[int, ...]", params.get("shares", (1,) * len(groups[0])))
    chunks = cast("tuple[int, ...]", params.get("chunks", (1,)))
    radices = cast("tuple[int, ...]", params.get("radices", ()))
    hosts, whole = len(groups), sum(shares)
    ways = rail_ways(topology, placement, groups)
    hop_s = max(Topology.latency_s(way) for rail in ways for way in rail)
    hop_s += 2 * (engine.step_s + engine.network_message_s)
    network_s = 2 * (hosts - 1) / hosts * size_bytes / whole * _busiest_s(ways, shares)
    inside = [placement.path(groups[0][i], groups[0][i - 1], topology) for i in range(len(shares))]
    inner_Bps = min(map(Topology.bottleneck_Bps, inside))
    inner_s = 0.0
    if len(shares) > 1:
        inner_s = max(2 * (whole - s) + 2 * (len(shares) - 1) * s for s in shares) / 2 / whole * size_bytes / inner_Bps
    ends_s = inner_s * (chunks[0] + chunks[-1]) / 2 / sum(chunks)
    if radices:
        stages = 2 * len(radices) + 2
        alone_s = (network_s + inner_s) * max(chunks) / sum(chunks)
        through_s = max(network_s, inner_s, alone_s)
        return through_s + ends_s * (len(chunks) > 1) + hop_s * (stages + len(chunks) - 1)
    hops = 2 * (hosts - 1)
    cycle_s = max(network_s / hops, network_s / hops / len(chunks) + hop_s)
    return max(hops * cycle_s, inner_s) + ends_s / hosts + 2 * hop_s
