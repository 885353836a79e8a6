"""hccl_py: collectives on a topology graph.

``hccl_py.init()`` under mpirun or torchrun gives a :class:`Communicator`; ``import hccl_py.torch`` adds the backend
``"hccl_py"`` to torch.distributed. Importing this package imports neither MPI nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hccl_py.core.errors import (
    BrokenGroupError,
    CollectiveTimeoutError,
    ConfigError,
    DesyncError,
    HcclError,
    InternalError,
    PeerLostError,
    PlanError,
    TopologyError,
    TransportError,
    TransportUnavailableError,
)
from hccl_py.core.types import Collective, DType, ReduceOp

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator, init

__all__ = [
    "BrokenGroupError",
    "Collective",
    "CollectiveTimeoutError",
    "Communicator",
    "ConfigError",
    "DType",
    "DesyncError",
    "HcclError",
    "InternalError",
    "PeerLostError",
    "PlanError",
    "ReduceOp",
    "TopologyError",
    "TransportError",
    "TransportUnavailableError",
    "init",
]

_LATE = ("Communicator", "init")  # these load the engine, the schema and the planner


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'hccl_py' has no attribute {name!r}")
    from hccl_py import communicator

    return getattr(communicator, name)
