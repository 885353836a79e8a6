"""The default world: what the ranks know of each other before anybody has written or measured anything.

All that the bootstrap learns is which rank is on which host. That gives a star in every host (ranks around its memory)
and a star of hosts around one network, with the figures of priors.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import ETHERNET, MEMORY, Prior, both_ways

NETWORK = "network"


def local_world(
    hosts: Sequence[str],
    *,
    device: DeviceKind = DeviceKind.CPU,
    memory: Prior = MEMORY,
    network: Prior = ETHERNET,
) -> tuple[Topology, Placement]:
    """The graph and the placement of ``len(hosts)`` ranks.

    Args:
        hosts: the host id of each rank, any text; equal ids are one host. Rank order need not be host order.
        device: what each rank computes on.
        memory: figures of the link between a rank and its host's memory.
        network: figures of the link between a host and the network.

    Returns:
        Devices ``HOST/cpu0``, ``HOST/cpu1``, ... in order of the ranks of each host. Host names are the ids with other
        signs than letters, digits and ``_ . : @ + -`` replaced by ``-``, made unique by a number where needed. Every
        rank that gives the same ``hosts`` gets equal values.

    Raises:
        TopologyError: no rank.
    """
    if not hosts:
        raise TopologyError("a world needs at least one rank")
    names = _host_names(hosts)
    nodes = [Node(name, NodeKind.HOST) for name in names.values()]
    links: list[Link] = []
    devices: list[str] = []
    on_host = dict.fromkeys(names, 0)
    for host in hosts:
        name = f"{names[host]}/{device.value}{on_host[host]}"
        on_host[host] += 1
        nodes.append(Node(name, NodeKind.DEVICE, device=device))
        links += both_ways(name, names[host], LinkKind.MEMORY, memory)
        devices.append(name)
    if len(names) > 1:
        switch = NETWORK if NETWORK not in names.values() else _unused(NETWORK, set(names.values()))
        nodes.append(Node(switch, NodeKind.SWITCH))
        for name in names.values():
            nic = Node(f"{name}/nic0", NodeKind.NIC)
            nodes.append(nic)
            links += both_ways(name, nic.name, LinkKind.PCIE)
            links += both_ways(nic.name, switch, LinkKind.ETHERNET, network)
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(devices))


def host_word(text: str) -> str:
    """``text`` made into a legal name of a host."""
    word = re.sub(r"[^A-Za-z0-9_.:@+-]", "-", text)[:64]
    return word if re.match(r"[A-Za-z0-9_]", word) else f"h{word}"


def _host_names(hosts: Sequence[str]) -> dict[str, str]:
    """A unique legal name for each id, in order of the lowest rank."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for host in dict.fromkeys(hosts):
        names[host] = _unused(host_word(host), used)
        used.add(names[host])
    return names


def _unused(word: str, used: set[str]) -> str:
    number, name = 1, word
    while name in used:
        number += 1
        name = f"{word}-{number}"
    return name
