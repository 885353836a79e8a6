"""How ranks find each other before anything is connected: somebody else's exchange (MPI, a c10d store), never our own.

A bootstrap has a rank, a size and one operation, :meth:`allgather`.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from hccl_py import _native
from hccl_py.core.env import Env, Launch
from hccl_py.core.errors import CollectiveTimeoutError, ConfigError


class Bootstrap(Protocol):
    """The ranks of a group to be."""

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def allgather(self, data: bytes) -> list[bytes]:
        """What each rank gave, in rank order. Collective."""
        ...


class SingleBootstrap:
    """A world of one."""

    rank = 0
    size = 1

    def allgather(self, data: bytes) -> list[bytes]:
        """Return ``[data]``."""
        return [data]


class MpiBootstrap:
    """The ranks of an mpi4py communicator."""

    def __init__(self, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f"started by mpirun, but mpi4py cannot be used here ({error}): pip install 'hccl-py[mpi]' and the MPI "
                "whose mpirun starts the ranks"
            ) from None
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def allgather(self, data: bytes) -> list[bytes]:
        """By MPI; waits as long as MPI does."""
        gathered: list[bytes] = self._comm.allgather(data)
        return gathered


class ThreadBootstrap:
    """The threads of one process: for tests, and for the reference transport."""

    class Meeting:
        """Where the threads of one group meet; made once, shared by all."""

        def __init__(self, size: int, timeout_s: float = 60.0) -> None:
            self.size = size
            self.barrier = threading.Barrier(size, timeout=timeout_s)
            self.board: list[bytes] = [b""] * size
            self.hub: _native.Hub | None = None

    def __init__(self, meeting: ThreadBootstrap.Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting

    def allgather(self, data: bytes) -> list[bytes]:
        """Through memory. Raises CollectiveTimeoutError if a thread does not come."""
        meeting = self._meeting
        try:
            meeting.board[self.rank] = data
            meeting.barrier.wait()
            gathered = list(meeting.board)
            meeting.barrier.wait()
        except threading.BrokenBarrierError:
            raise CollectiveTimeoutError(f"rank {self.rank}: a thread of this group did not come", self.rank) from None
        return gathered

    def new_hub(self) -> _native.Hub:
        """The hub of a new group of the reference transport. Collective."""
        if self.rank == 0:
            self._meeting.hub = _native.Hub(self.size)
        self.allgather(b"")
        hub = self._meeting.hub
        assert hub is not None
        return hub


def detect(env: Env, launch: Launch | None = None) -> Bootstrap:
    """The bootstrap that fits how this process was started.

    Under mpirun MPI; under torchrun, or with RANK, WORLD_SIZE and MASTER_ADDR set, torch's TCP store; else one rank.

    Raises:
        ConfigError: the launcher's library is not installed.
    """
    launch = Launch.from_environ() if launch is None else launch
    if launch.launcher in ("openmpi", "mpich", "slurm"):
        return MpiBootstrap()
    if launch.launcher in ("torchrun", "environment") and launch.size > 1:
        try:
            from hccl_py.torch.store import environment_bootstrap
        except ImportError as error:
            raise ConfigError(
                f"started by {launch.launcher}, which needs PyTorch: pip install 'hccl-py[torch]' ({error})"
            ) from None
        bootstrap: Bootstrap = environment_bootstrap(env.timeout_s)
        return bootstrap
    return SingleBootstrap()
