"""EngineCosts: what the engine itself costs, by kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hccl_py.topology.graph import DeviceKind, Topology
from hccl_py.topology.placement import Placement

ONE_ROUND_LIMIT_BYTES = 64 * 1024
LEAST_SHARED_FOLD_BYTES = 4096  # the least slot with which the engine shares folds


@dataclass(frozen=True)
class EngineCosts:
    """What the engine itself costs; see [Note: model] in cost.py."""

    step_s: float = 0.15e-6
    message_s: float = 0.25e-6
    network_message_s: float = 3e-6
    touch_Bps: float = 24e9
    segment_bytes: int = 64 * 1024
    one_round_limit_bytes: int = ONE_ROUND_LIMIT_BYTES
    lend_from_bytes: float = 64 * 1024  # between what the engine does with shared and with private memory

    @classmethod
    def of(cls, topology: Topology, placement: Placement) -> EngineCosts:
        """The figures for the kind of device that the ranks sit on."""
        if topology.node(placement.device(0)).device is DeviceKind.CPU:
            return cls()
        return cls(step_s=3e-6, touch_Bps=2e12, segment_bytes=1024 * 1024, one_round_limit_bytes=0, lend_from_bytes=inf)
