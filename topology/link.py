"""Link: one directed edge of the graph, and the kinds of wire from best to worst."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from hccl_py.core.errors import TopologyError


class LinkKind(IntEnum):
    """What a link is made of, best first: ``max()`` over a path gives its worst part."""

    NVLINK = 0
    MEMORY = 1  # loads and stores within one host, as shared memory between ranks
    SOCKET = 2  # between the NUMA nodes of a host (UPI, xGMI)
    PCIE = 3
    INFINIBAND = 4
    ROCE = 5
    ETHERNET = 6

    @property
    def is_network(self) -> bool:
        """True for wires that leave a host."""
        return self >= LinkKind.INFINIBAND


@dataclass(frozen=True)
class Link:
    """One direction of a wire between two nodes. Latency is one way.

    Raises:
        TopologyError: both ends are the same, bandwidth not above zero, latency below zero, or either not finite.
    """

    src: str
    dst: str
    kind: LinkKind
    bandwidth_Bps: float
    latency_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth_Bps", float(self.bandwidth_Bps))  # 1 and 1.0 give one digest
        object.__setattr__(self, "latency_s", float(self.latency_s) + 0.0)  # and so do -0.0 and 0.0
        if self.src == self.dst:
            raise TopologyError(f"link {self}: both ends are the same node")
        if not (math.isfinite(self.bandwidth_Bps) and self.bandwidth_Bps > 0):
            raise TopologyError(f"link {self}: bandwidth {self.bandwidth_Bps} B/s is not above zero and finite")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise TopologyError(f"link {self}: latency {self.latency_s} s is not zero or more and finite")

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}"
