"""mpi4py's names over hccl_py: ``from hccl_py import MPI`` in place of ``from mpi4py import MPI``.

Importing it does nothing; ``COMM_WORLD`` connects the ranks that the launcher started (mpirun, torchrun) when it is
first used. docs/MPI4PY.md says point by point what differs.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from hccl_py.bootstrap import SingleBootstrap
from hccl_py.communicator import init
from hccl_py.core.errors import HcclError as Exception
from hccl_py.mpistyle.comm import Comm
from hccl_py.mpistyle.constants import (
    ANY_SOURCE,
    ANY_TAG,
    BOTTOM,
    IN_PLACE,
    PROC_NULL,
    TAG_UB,
    UNDEFINED,
)
from hccl_py.mpistyle.datatype import Datatype, basic_datatypes
from hccl_py.mpistyle.op import Op, basic_ops
from hccl_py.mpistyle.place import refuse
from hccl_py.mpistyle.request import Request, Status

__all__ = [  # noqa: RUF022 - sorted as the rest of the package sorts
    "ANY_SOURCE",
    "ANY_TAG",
    "BOTTOM",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_WORLD",
    "Comm",
    "Datatype",
    "Exception",
    "Finalize",
    "Get_processor_name",
    "Get_version",
    "IN_PLACE",
    "Init",
    "Intracomm",
    "Is_initialized",
    "MAX_PROCESSOR_NAME",
    "Op",
    "PROC_NULL",
    "Query_thread",
    "REQUEST_NULL",
    "Request",
    "SUCCESS",
    "Status",
    "TAG_UB",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "UNDEFINED",
    "Wtick",
    "Wtime",
]

Intracomm = Comm
COMM_WORLD = Comm(init, "MPI_COMM_WORLD")
COMM_SELF = Comm(lambda: init(SingleBootstrap()), "MPI_COMM_SELF")
COMM_NULL = None
REQUEST_NULL = Request()
SUCCESS = 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
MAX_PROCESSOR_NAME = 256

_NAMES: dict[str, Any] = {**basic_datatypes(), **basic_ops()}
_ABSENT = {
    "Win": "there is no one-sided communication", "File": "there is no file access",
    "Group": "Comm.Split makes groups", "Cartcomm": "there are no topologies of processes",
    "Graphcomm": "there are no topologies of processes", "Intercomm": "there are no inter-communicators",
    "Message": "messages cannot be looked at before they are received", "Info": "settings are HCCL_PY_* variables",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    if name.startswith("__"):
        raise AttributeError(name)
    return refuse("hccl_py.MPI", name, _ABSENT.get(name, "it is not built"))


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


def Wtime() -> float:
    """Seconds on a clock that never goes back."""
    return time.perf_counter()


def Wtick() -> float:
    """Resolution of that clock in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Name of this host."""
    return socket.gethostname()


def Get_version() -> tuple[int, int]:
    """Of the MPI standard whose names these are."""
    return 4, 0


def Init() -> None:
    """Connect now, and not when COMM_WORLD is first used."""
    COMM_WORLD.Get_rank()


def Is_initialized() -> bool:
    """Always true: what is needed is made when it is needed."""
    return True


def Finalize() -> None:
    """Leave COMM_WORLD, where it was used; done at exit anyway. Idempotent."""
    COMM_WORLD.Free()


def Query_thread() -> int:
    """One thread at a time may call."""
    return THREAD_SERIALIZED
