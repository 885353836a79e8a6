"""The benchmark's own side channel between the ranks: it synchronises samples and collects times and counts.

It is not the library under test, and the same for all libraries in a run.
"""

from __future__ import annotations

import pickle
import socket
from typing import Any, Protocol

from hccl_py.core.env import Launch
from hccl_py.core.errors import ConfigError


class Bootstrap(Protocol):
    """What the channel needs: those of hccl_py.bootstrap have it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allgather(self, data: bytes) -> list[bytes]: ...


class Control:
    """Barrier and gathering over a bootstrap."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self.rank = bootstrap.rank
        self.size = bootstrap.size

    def allgather(self, data: bytes) -> list[bytes]:
        """Return what each rank gave, by rank."""
        return self._bootstrap.allgather(data)

    def gather(self, value: Any) -> list[Any]:
        """Return each rank's ``value`` (plain data), by rank."""
        return [pickle.loads(data) for data in self.allgather(pickle.dumps(value))]

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.allgather(b"")

    def address(self) -> str:
        """Return an address of this host that all ranks reach: the loopback if all are on this host."""
        return (
            "127.0.0.1" if Launch.from_environ().local_size >= self.size else socket.gethostbyname(socket.gethostname())
        )


def refuse_lonely_ranks(launch: Launch, size: int) -> None:
    """Raise ConfigError where a launcher started many ranks and each of them formed a world of its own."""
    if launch.size > 1 and size == 1:
        raise ConfigError(
            f"{launch.launcher} started {launch.size} ranks, but this one sees a world of 1: that would be "
            f"{launch.size} runs of one rank each. The launcher and the MPI library of this Python do not belong "
            "together: use the mpirun beside this Python (in its own bin folder), or torchrun."
        )
