"""Rendezvous under an MPI launcher: ``init_process_group`` without RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT.

``mpi://`` is a rendezvous of its own. ``env://``, torch's default, falls back to it where mpirun has started the
process and the variables of torch are not all set; otherwise it stays what it is. MPI starts no earlier than that.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import register_rendezvous_handler

from hccl_py.core.env import Launch, child_environ
from hccl_py.core.errors import ConfigError

Handler = Callable[..., Iterator[tuple[Store, int, int]]]

_TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def needs_mpi(environ: Mapping[str, str]) -> bool:
    """True if mpirun started this process as one of several ranks and torch's own variables are not all set."""
    launch = Launch.from_environ(environ)
    return (
        launch.launcher in ("openmpi", "mpich")
        and launch.size > 1
        and any(name not in environ for name in _TORCH_VARIABLES)
    )


def mpi_rendezvous(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """The handler of ``mpi://``: rank and size from MPI, a TCP store on rank 0, its address by an MPI broadcast.

    Raises:
        ConfigError: if mpi4py is not installed.
    """
    yield _mpi_store(timeout)
    raise ConfigError(f"{url}: an MPI job cannot meet a second time on the same handle; call init_process_group again")


def env_rendezvous(plain: Handler) -> Handler:
    """The handler of ``env://``: ``plain``, torch's own, or ``mpi://`` where only the launcher knows the ranks."""

    def handler(url: str, **arguments: Any) -> Iterator[tuple[Store, int, int]]:
        if needs_mpi(child_environ()):
            return mpi_rendezvous(url, **arguments)
        return plain(url, **arguments)

    return handler


def register_rendezvous() -> None:
    """Offer ``mpi://`` and the fallback of ``env://`` to ``init_process_group``."""
    register_rendezvous_handler("mpi", mpi_rendezvous)  # type: ignore[no-untyped-call]
    # torch has no public way to extend env://. As an attribute, torch.distributed.rendezvous is a function.
    handlers: dict[str, Handler] = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["env"] = env_rendezvous(handlers["env"])


def _mpi_store(timeout: timedelta) -> tuple[Store, int, int]:
    world = _world()
    rank, size = int(world.rank), int(world.size)
    store: Store | None = None
    address: tuple[str, int] | None = None
    if rank == 0:
        # port 0: the system picks a free one
        store = TCPStore("0.0.0.0", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    one_host = _on_one_host(world)
    if rank == 0:
        host = child_environ().get("MASTER_ADDR") or ("127.0.0.1" if one_host else _address_of_this_host())
        address = (host, store.port)  # type: ignore[union-attr]
    host, port = world.bcast(address)
    if store is None:
        store = TCPStore(host, port, size, is_master=False, timeout=timeout)
    return store, rank, size


def _world() -> Any:
    started_here = "mpi4py.MPI" not in sys.modules
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            "init_process_group under mpirun needs mpi4py to agree on an address: install it (hccl-py[mpi]), "
            "or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        ) from error
    if started_here:
        _abort_on_uncaught_error()
    return MPI.COMM_WORLD


def _abort_on_uncaught_error() -> None:
    """Let a rank that dies of an exception end the job: in MPI_Finalize, at exit, it would wait for the others."""
    from mpi4py.run import set_abort_status

    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        previous(kind, error, trace)
        set_abort_status(error)

    sys.excepthook = hook


def _on_one_host(world: Any) -> bool:
    """True if all ranks share a loopback interface: one host name, one network namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    words: list[str] = world.allgather(f"{socket.gethostname()} {namespace}")
    return len(set(words)) == 1


def _address_of_this_host() -> str:
    """An address that other hosts can reach: that of the host name, else that of the default route.

    Raises:
        ConfigError: there is neither.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # a documentation address; connecting a datagram socket sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"rank 0 does not know by which address other hosts reach it ({error}); set MASTER_ADDR to one"
        ) from error
