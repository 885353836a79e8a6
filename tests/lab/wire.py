"""What an all_reduce must cost on the wire, and the check of what it did cost."""

from __future__ import annotations

from collections.abc import Sequence

from hccl_py.lab.kernel import Counters

TOLERANCE = 0.10  # headers and acknowledgements, and how the ranks found each other


def hierarchical_bytes(hosts: int, size_bytes: int) -> float:
    """What each host sends, and receives, if data is reduced inside the hosts first."""
    return 2 * (hosts - 1) / hosts * size_bytes


def ring_bytes(ranks: int, size_bytes: int) -> float:
    """What one link of a ring over all ranks carries: with the ranks in order of hosts, each host has one going out."""
    return 2 * (ranks - 1) / ranks * size_bytes


def check_wire(counted: Sequence[Counters], expected_bytes: float) -> None:
    """Assert that every host sent and received ``expected_bytes``, within TOLERANCE."""
    for host, counters in enumerate(counted):
        for direction, nbytes in (("sent", counters.sent_bytes), ("received", counters.received_bytes)):
            assert abs(nbytes - expected_bytes) <= TOLERANCE * expected_bytes, (
                f"host {host} {direction} {nbytes / 2**20:.2f} MiB, expected {expected_bytes / 2**20:.2f}"
            )
