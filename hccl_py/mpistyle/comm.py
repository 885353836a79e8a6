"""Comm: a Communicator with mpi4py's methods, upper case on buffers and lower case on objects."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hccl_py.communicator import Communicator
from hccl_py.engine import Engine
from hccl_py.hosts import PartBootstrap
from hccl_py.mpistyle.collectives import BufferCollectives
from hccl_py.mpistyle.constants import UNDEFINED
from hccl_py.mpistyle.messages import BufferMessages
from hccl_py.mpistyle.objects import ObjectMethods
from hccl_py.mpistyle.place import refuse

_LEFT_OUT = {
    "Probe": "messages cannot be looked at before they are received", "Win": "there is no one-sided communication",
    "Ssend": "a send ends when its buffer is free", "Bsend": "a send ends when its buffer is free",
    "Spawn": "ranks come from the launcher", "Create": "Split makes groups", "Scan": "scan takes objects",
    "Alltoallw": "there are basic datatypes only", "Neighbor": "there are no neighbourhoods",
    "init": "prepare_all_reduce and the like of hccl_py.Communicator are persistent",
}  # fmt: skip


class Comm(ObjectMethods, BufferMessages, BufferCollectives):
    """A group of ranks, as mpi4py has it.

    Args:
        connect: makes the communicator, when it is first needed.
    """

    def __init__(self, connect: Callable[[], Communicator], name: str = "") -> None:
        self._connect = connect
        self._name = name
        self._lock = threading.Lock()
        self._made: Communicator | None = None

    @property
    def _here(self) -> Communicator:
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._connect()
                made = self._made
        return made

    @property
    def communicator(self) -> Communicator:
        """What lies below."""
        return self._here

    @property
    def rank(self) -> int:
        """This rank."""
        return self._here.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._here.size

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    def Get_name(self) -> str:
        """For people."""
        return self._name

    def Set_name(self, name: str) -> None:
        """For people."""
        self._name = name

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Groups of the ranks with the same color, in the order of their keys; None for color UNDEFINED. Collective.

        mpi4py has COMM_NULL for None.
        """
        mine = self.allgather((color, key))
        members = sorted(
            (rank for rank, (its_color, _) in enumerate(mine) if its_color == color),
            key=lambda rank: (mine[rank][1], rank),
        )
        return None if color == UNDEFINED else self._part(members)

    def Dup(self) -> Comm:
        """The same ranks once more, whose messages and collectives are apart from these. Collective."""
        return self._part(list(range(self.size)))

    Clone = Dup

    def _part(self, members: list[int]) -> Comm:
        """A group of some ranks, connected at once."""
        here, env = self._here, self._here.engine.env
        if len(members) != here.size:
            env = replace(env, topology=None)  # its file is for all ranks
        part = Comm(
            lambda: Communicator(Engine(PartBootstrap(here, members), env=env, timeout_s=here.engine.timeout_s))
        )
        part._here  # noqa: B018
        return part

    def Free(self) -> None:
        """Leave the group. Idempotent."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    Disconnect = Free

    def Abort(self, errorcode: int = 0) -> None:
        """End this process, and make everything of the group's other ranks fail; the launcher ends them."""
        self._here.engine.abort(f"Comm.Abort({errorcode})")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(errorcode)

    def Is_inter(self) -> bool:
        """Never: there are no inter-communicators."""
        return False

    def Is_intra(self) -> bool:
        """Always."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        why = next((why for word, why in _LEFT_OUT.items() if word.lower() in name.lower()), "it is not built")
        return refuse("a communicator of hccl_py.MPI", name, why)
