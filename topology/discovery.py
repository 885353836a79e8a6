"""Discovery: probes look at the machine they run on, one after the other, and their findings become a Topology.

A probe wraps one source (a part of sysfs, a driver) and takes the root of the file system, so tests give it fixtures.
What a probe leaves out, and every figure that it had to assume, it says in a note.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import Node, NodeKind, Topology
from hccl_py.topology.probes.accelerators import AcceleratorProbe
from hccl_py.topology.probes.cpus import CpuProbe
from hccl_py.topology.probes.nics import NETWORKS, NicProbe
from hccl_py.topology.probes.nvml import NvmlProbe
from hccl_py.topology.probes.probe import Found, Probe
from hccl_py.topology.world import host_word

__all__ = ["Found", "Probe", "builtin_probes", "discover", "survey"]


def builtin_probes(root: str | Path = "/") -> tuple[Probe, ...]:
    """The probes of this package, in the order in which they build upon each other."""
    return CpuProbe(root), AcceleratorProbe(root), NvmlProbe(), NicProbe(root)


def survey(probes: Sequence[Probe], host: str | None = None) -> Found:
    """All that the probes find, with their notes.

    Args:
        probes: run in this order; each sees what the earlier ones found.
        host: name of the host's vertex; by default this machine's hostname.
    """
    name = host_word(host if host is not None else socket.gethostname())
    if name in NETWORKS.values():
        name += "-host"
    found = Found(nodes=(Node(name, NodeKind.HOST),))
    for probe in probes:
        found += probe.probe(name, found)
    return found


def discover(probes: Sequence[Probe], host: str | None = None) -> Topology:
    """The local machine as a graph; see `survey` for the arguments.

    Raises:
        TopologyError: the probes contradict each other.
    """
    found = survey(probes, host)
    try:
        return Topology(found.nodes, found.links)
    except TopologyError as error:
        raise TopologyError(f"the probes contradict each other: {error}") from error
