"""Priors: figures for links that nobody has declared or measured yet.

They decide only until measurements replace them (`Topology.with_estimates`), so they need the right order of magnitude
and the right order among each other: memory before PCIe before the network. Each says where it comes from. Latencies
are one way.
"""

from __future__ import annotations

from typing import NamedTuple

from hccl_py.topology.link import Link, LinkKind


class Prior(NamedTuple):
    """Bandwidth in bytes/second and one-way latency in seconds of one link."""

    bandwidth_Bps: float
    latency_s: float


# A rank and the memory of its host. Two ranks are two such links apart: 0.25 us, what a hand-over by sched_yield took
# on two cores of an EPYC (Zen 4), and 12 GB/s, what copies of 16 to 64 MiB between two processes reached there.
MEMORY = Prior(12e9, 0.125e-6)
# Between the sockets of a host: an estimate; remote access to memory costs about 0.1 us more than local access.
SOCKET = Prior(20e9, 0.1e-6)
# PCIe 4.0 x16: 16 GT/s x 16 lanes x 128/130 = 31.5 GB/s; a posted write takes some hundred nanoseconds.
PCIE = Prior(31.5e9, 0.4e-6)
# 10 Gbit/s Ethernet; TCP between blocked processes took 25 us one way by loopback and 19 us across a veth pair with
# a bridge. Two such links (NIC, switch, NIC) are 20 us.
ETHERNET = Prior(1.25e9, 10e-6)
# RDMA NICs of 100 Gbit/s; an estimate: vendors state 1 to 2 us between two hosts.
ROCE = Prior(12.5e9, 1.0e-6)
INFINIBAND = Prior(12.5e9, 0.75e-6)
# One GPU to an NVSwitch or a GPU, fourth generation: 450 GB/s by the data sheet, 394 GB/s by a copy engine on two H200.
NVLINK = Prior(394e9, 0.5e-6)


def prior(kind: LinkKind) -> Prior:
    """The prior of one link of that kind."""
    return {
        LinkKind.NVLINK: NVLINK,
        LinkKind.MEMORY: MEMORY,
        LinkKind.SOCKET: SOCKET,
        LinkKind.PCIE: PCIE,
        LinkKind.INFINIBAND: INFINIBAND,
        LinkKind.ROCE: ROCE,
        LinkKind.ETHERNET: ETHERNET,
    }[kind]


def both_ways(a: str, b: str, kind: LinkKind, figures: Prior | None = None) -> tuple[Link, Link]:
    """The two directions of a wire with the given figures, by default the prior of its kind."""
    bandwidth_Bps, latency_s = figures or prior(kind)
    return Link(a, b, kind, bandwidth_Bps, latency_s), Link(b, a, kind, bandwidth_Bps, latency_s)
