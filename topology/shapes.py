"""Shapes: small named graphs for tests, examples and first thoughts. Each returns (Topology, Placement).

Devices are CPUs unless the shape says otherwise, figures are those of priors.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import ETHERNET, MEMORY, Prior, both_ways
from hccl_py.topology.world import local_world

Shape = tuple[Topology, Placement]


def ring(size: int) -> Shape:
    """``size`` GPUs of one host, each with a NVLink to the next and the previous one and no other way."""
    gpus = _gpus(size)
    wires = {frozenset((gpus[i], gpus[(i + 1) % size])) for i in range(size) if size > 1}
    return _one_host(gpus, [tuple(sorted(wire)) for wire in wires])


def full_mesh(size: int) -> Shape:
    """``size`` GPUs of one host, each with a NVLink to every other one."""
    gpus = _gpus(size)
    return _one_host(gpus, [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]])


def single_host(size: int) -> Shape:
    """``size`` ranks around the memory of one host."""
    return many_hosts((size,))


def two_hosts(per_host: int, *, interleaved: bool = False) -> Shape:
    """``per_host`` ranks on each of two hosts with Ethernet between them; see `many_hosts`."""
    return many_hosts((per_host, per_host), interleaved=interleaved)


def many_hosts(
    per_host: Sequence[int], *, interleaved: bool = False, memory: Prior = MEMORY, network: Prior = ETHERNET
) -> Shape:
    """Host ``h<i>`` with ``per_host[i]`` ranks, all hosts at one switch.

    Args:
        per_host: number of ranks of each host, each at least 1.
        interleaved: neighbouring ranks are on different hosts (mpirun --map-by node), else ranks fill host after host.
        memory: figures of the link between a rank and its host's memory.
        network: figures of the link between a host and the switch.
    """
    if not per_host or min(per_host) < 1:
        raise TopologyError(f"{tuple(per_host)}: every host needs at least one rank")
    if interleaved:
        hosts = [f"h{i}" for turn in range(max(per_host)) for i, ranks in enumerate(per_host) if turn < ranks]
    else:
        hosts = [f"h{i}" for i, ranks in enumerate(per_host) for _ in range(ranks)]
    return local_world(hosts, memory=memory, network=network)


def _gpus(size: int) -> list[str]:
    if size < 1:
        raise TopologyError(f"{size} devices wanted: at least one is needed")
    return [f"h0/gpu{i}" for i in range(size)]


def _one_host(gpus: Sequence[str], wires: Sequence[tuple[str, ...]]) -> Shape:
    nodes = [Node("h0", NodeKind.HOST), *(Node(gpu, NodeKind.DEVICE, device=DeviceKind.GPU) for gpu in gpus)]
    links: list[Link] = []
    for a, b in wires:
        links += both_ways(a, b, LinkKind.NVLINK)
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(gpus))
