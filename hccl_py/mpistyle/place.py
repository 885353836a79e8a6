"""What both halves of the MPI face stand on: the communicator behind, and who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hccl_py.core.errors import ConfigError
from hccl_py.mpistyle.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, TAG_UB

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator


class Place:
    """This rank's place in a group."""

    @property
    def _here(self) -> Communicator:
        """The communicator; connects where that is still to be done."""
        raise NotImplementedError

    def Get_rank(self) -> int:
        """This rank."""
        return self._here.rank

    def Get_size(self) -> int:
        """Number of ranks."""
        return self._here.size

    def _peer(self, rank: int, what: str, anybody: bool = False) -> int:
        """The rank itself. Raises ConfigError if there is none."""
        if 0 <= rank < self._here.size or (anybody and rank == ANY_SOURCE):
            return rank
        raise ConfigError(f"{what} {rank} is outside a world of {self._here.size}")


def tag_to_send(tag: int, space: int = 0) -> int:
    """The engine's tag. Raises ConfigError unless it is one of MPI's."""
    if 0 <= tag <= TAG_UB:
        return space + tag
    raise ConfigError(f"tag {tag} is outside 0 to MPI.TAG_UB, {TAG_UB}")


def tag_to_receive(tag: int, space: int = 0) -> tuple[int, int]:
    """The engine's tag, and which of its bits may be anything."""
    return (space, TAG_UB) if tag == ANY_TAG else (tag_to_send(tag, space), 0)


def is_nobody(rank: int) -> bool:
    """True for PROC_NULL, messages to and from which do nothing."""
    return rank == PROC_NULL


def refuse(owner: str, name: str, why: str) -> Any:
    """Raise AttributeError for what is left out, with its reason, so that ``hasattr`` tells."""
    raise AttributeError(f"{owner} has no {name}: {why} (docs/MPI4PY.md lists what differs)")
