"""Probe: the protocol of all probes, and Found, what they find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hccl_py.topology.graph import Link, Node, NodeKind


@dataclass(frozen=True)
class Found:
    """What is known so far, or what one probe adds. ``notes`` are sentences for people."""

    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Found) -> Found:
        return Found(self.nodes + other.nodes, self.links + other.links, self.notes + other.notes)

    def hub(self, host: str, numa_index: int) -> Node:
        """Where something near NUMA node ``numa_index`` (-1: unknown) is attached: there, the first, or the host."""
        numas = [node for node in self.nodes if node.kind is NodeKind.NUMA]
        for node in numas:
            if node.local == f"numa{numa_index}":
                return node
        return numas[0] if numas else next(node for node in self.nodes if node.name == host)


class Probe(Protocol):
    """One source of facts about this machine."""

    def probe(self, host: str, so_far: Found) -> Found:
        """What this source adds about ``host``.

        Args:
            host: name of the host's vertex, which is in ``so_far``.
            so_far: the host and what earlier probes found.

        Returns:
            New nodes and links only; a source that is not there adds nothing and may say so in a note.
        """
        ...
