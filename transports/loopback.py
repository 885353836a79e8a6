"""Transport ``loopback``: all ranks in one process. The reference the others are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.transports.base import Availability, TransportConfig, TransportSpec


@dataclass(frozen=True)
class LoopbackConfig(TransportConfig):
    """Loopback has no options: the ranks meet in a hub that they are given."""


def availability(config: LoopbackConfig) -> Availability:
    """Always."""
    return Availability(True, "ranks of one process, for tests and as the reference")


SPEC = TransportSpec(
    name="loopback",
    same_host_only=True,
    maps_peer_memory=True,
    needs="ranks in one process",
    config_type=LoopbackConfig,
    probe=availability,
)
