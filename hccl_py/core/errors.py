"""The errors of hccl_py, split by what the caller can do.

::

    HcclError
      ConfigError (ValueError)                YAML, argument or environment is wrong: mend it
      TopologyError                           the graph cannot serve the request
      PlanError                               a plan is wrong, or none may serve the request
      TransportError (ConnectionError)
        TransportUnavailableError             not built in, or no such hardware here: .reason
        PeerLostError                         the other side closed or died: .rank
      CollectiveTimeoutError (TimeoutError)   nobody came in time: .rank .peer .step .waited_s
      DesyncError                             ranks disagree on what they run: .ours .theirs
      BrokenGroupError                        an earlier error left the group unusable: destroy it
      InternalError                           an invariant of ours broke: please report
"""

from __future__ import annotations


class HcclError(Exception):
    """Base of all errors that hccl_py raises on purpose."""


class ConfigError(HcclError, ValueError):
    """A YAML file, an argument or an environment variable is wrong. Nothing was sent; tensors are untouched."""


class TopologyError(HcclError):
    """The graph cannot serve the request: an unknown node, or no path between two ranks."""


class PlanError(HcclError):
    """A plan does not compute its collective, deadlocks, is out of bounds, or is forbidden here."""


class TransportError(HcclError, ConnectionError):
    """A wire failed."""


class TransportUnavailableError(TransportError):
    """A transport was asked for that this machine or build does not have."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class PeerLostError(TransportError):
    """A peer closed its connection or died. The group is broken."""

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class CollectiveTimeoutError(HcclError, TimeoutError):
    """A collective did not finish in time. The group is broken."""

    def __init__(self, message: str, rank: int = -1, peer: int = -1, step: int = -1, waited_s: float = 0.0) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.step = step
        self.waited_s = waited_s


class DesyncError(HcclError):
    """Ranks called different collectives, or the same one with different arguments.

    On one host nothing was written and the group stays usable. Between hosts the group is broken.
    """

    def __init__(self, message: str, ours: str = "", theirs: str = "", peer: int = -1) -> None:
        super().__init__(message)
        self.ours = ours
        self.theirs = theirs
        self.peer = peer


class BrokenGroupError(HcclError):
    """An earlier error left this group unusable; destroy it and make a new one."""


class InternalError(HcclError):
    """An invariant of hccl_py broke. Please report it."""
