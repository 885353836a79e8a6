"""The libraries that are measured: hccl_py and its peers behind one small interface, so that all are timed alike."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from hccl_py.bench.cases import Buffers, Case
from hccl_py.bench.control import Control
from hccl_py.bench.dtypes import Array
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp

Call = Callable[[], object]


@dataclass(frozen=True)
class Bound:
    """A collective bound to its buffers: ``run`` does it once, ``received`` is where the result then lies.

    ``buffers``: those that it works on, where they are not those of the request.
    """

    run: Call
    received: Array | None
    buffers: Buffers | None = None


@dataclass(frozen=True)
class Request:
    """What a library is asked to prepare: one collective on given buffers."""

    case: Case
    dtype: DType
    op: ReduceOp
    root: int
    buffers: Buffers
    in_place: bool


class UnsupportedError(ConfigError):
    """A library has no such collective, element type, operator or form."""


class Library(Protocol):
    """A library in the benchmark, closed at the end: a LocalLibrary, or one that meters itself (meter.py)."""

    @property
    def name(self) -> str:
        """What --compare and the tables call it."""
        ...

    @property
    def version(self) -> str:
        """Its version, for the record."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


class LocalLibrary(Library, Protocol):
    """A library that is called from this process."""

    def prepare(self, request: Request) -> Bound:
        """Bind the collective to the buffers. Raises UnsupportedError."""
        ...


class HcclPy:
    """hccl_py itself, through a Communicator."""

    name = "hccl_py"

    def __init__(self, communicator: Any) -> None:
        self._comm = communicator
        self.version = importlib.import_module("importlib.metadata").version("hccl-py")

    def prepare(self, request: Request) -> Bound:
        """Bind one of the Communicator's methods to the buffers."""
        comm, op, root = self._comm, request.op, request.root
        send, recv = request.buffers.send, request.buffers.recv
        # no receive buffer is how these two spell "in place"
        target = None if request.in_place and request.case.name in ("all_reduce", "reduce") else recv
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(send, target, op=op),
            "reduce": lambda: comm.reduce(send, target, op=op, root=root),
            "broadcast": lambda: comm.broadcast(send, root=root),
            "all_gather": lambda: comm.all_gather(send, recv),
            "reduce_scatter": lambda: comm.reduce_scatter(send, recv, op=op),
            "all_to_all": lambda: comm.all_to_all(send, recv),
            "gather": lambda: comm.gather(send, recv, root=root),
            "scatter": lambda: comm.scatter(send, recv, root=root),
            "sendrecv": lambda: comm.sendrecv(send, after, recv, before),
            "barrier": comm.barrier,
        }
        return Bound(calls[request.case.name], recv)

    def close(self) -> None:
        """Close the Communicator."""
        self._comm.close()


class Gloo:
    """gloo, as PyTorch users call it: torch.distributed on tensors that share the buffers' memory."""

    name = "gloo"

    def __init__(self, control: Control, timeout_s: float) -> None:
        try:
            self._torch = torch = importlib.import_module("torch")
            self._dist = dist = importlib.import_module("torch.distributed")
        except ImportError as error:
            raise ConfigError(f"--compare gloo needs PyTorch: pip install 'hccl-py[torch]' ({error})") from None
        torch.set_num_threads(1)
        self._rank, self._size = control.rank, control.size
        self.version = f"torch {torch.__version__}"
        limit = timedelta(seconds=timeout_s)
        host = control.address() if control.rank == 0 else ""
        store = dist.TCPStore(host, 0, None, True, limit, wait_for_workers=False) if control.rank == 0 else None
        where = control.allgather(f"{host}:{store.port if store else 0}".encode())[0].decode()
        if store is None:
            host, _, port = where.rpartition(":")
            store = dist.TCPStore(host, int(port), None, False, limit)
        dist.init_process_group("gloo", store=store, rank=control.rank, world_size=control.size, timeout=limit)

    def prepare(self, request: Request) -> Bound:
        """Bind a function of torch.distributed; where it works in place only, out of place includes the copy."""
        dist, root = self._dist, request.root
        send, recv = self._tensor(request.buffers.send), self._tensor(request.buffers.recv)
        op = self._op(request) if request.case.reduces else None
        case, n, rank = request.case.name, self._size, self._rank
        if case == "all_to_all" and request.in_place:
            raise UnsupportedError("gloo has no in-place all_to_all")
        # all_reduce and reduce know one tensor, and reduce clobbers it on every rank
        target = send if request.in_place else self._torch.empty_like(send) if recv is None else recv
        gathered = list(recv.chunk(n)) if case == "gather" and recv is not None else None
        scattered = list(send.chunk(n)) if case == "scatter" and send is not None else None

        # torch 2.13 has renamed these two
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

        def copied(call: Callable[[], object]) -> Call:
            def run() -> None:
                target.copy_(send)
                call()

            return call if request.in_place else run

        def shift() -> None:
            sending = dist.isend(send, (rank + 1) % n)
            dist.recv(recv, (rank - 1) % n)
            sending.wait()

        calls: dict[str, Call] = {
            "all_reduce": copied(lambda: dist.all_reduce(target, op)),
            "reduce": copied(lambda: dist.reduce(target, root, op)),
            "broadcast": lambda: dist.broadcast(send, root),
            "all_gather": lambda: all_gather(recv, send),
            "reduce_scatter": lambda: reduce_scatter(recv, send, op),
            "all_to_all": lambda: dist.all_to_all_single(recv, send),
            "gather": lambda: dist.gather(send, gathered, root),
            "scatter": lambda: dist.scatter(recv, scattered, root),
            "sendrecv": shift,
            "barrier": dist.barrier,
        }
        return Bound(calls[case], request.buffers.recv)

    def close(self) -> None:
        """Destroy the process group."""
        self._dist.destroy_process_group()

    def _tensor(self, array: Any) -> Any:
        if array is None:
            return None
        torch = self._torch
        views = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
        if array.dtype.name in views:  # NumPy's stand-ins, which torch does not know: the same bits
            return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(views[array.dtype.name])
        return torch.from_numpy(array)

    def _op(self, request: Request) -> Any:
        if request.op is ReduceOp.AVG:
            raise UnsupportedError("gloo has no AVG")
        ops = {ReduceOp.PROD: "PRODUCT"}
        return getattr(self._dist.ReduceOp, ops.get(request.op, request.op.name))


class Mpi:
    """The MPI library that this job runs under, through mpi4py's buffer calls."""

    def __init__(self, name: str, control: Control) -> None:
        try:
            self._mpi = mpi = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:
            raise ConfigError(f"--compare {name} needs mpi4py and an MPI library: {error}") from None
        self.name = name
        self.version = mpi.Get_library_version().split(",")[0].replace("\n", " ").strip()
        running = next((known for known, mark in MPI_MARKS.items() if mark in self.version.lower()), self.version)
        if running != name:
            raise ConfigError(
                f"--compare {name}: this process has loaded {self.version}; start it with {name}'s mpirun"
            )
        if mpi.COMM_WORLD.size != control.size:
            raise ConfigError(
                f"--compare {name}: MPI sees {mpi.COMM_WORLD.size} rank(s), the benchmark {control.size}; "
                f"start it with {name}'s mpirun"
            )
        self._comm = mpi.COMM_WORLD.Dup()

    def prepare(self, request: Request) -> Bound:
        """Bind a buffer method of the communicator, in place by MPI.IN_PLACE."""
        comm, root, rank, n = self._comm, request.root, self._comm.rank, self._comm.size
        send, recv = self._message(request.buffers.send), self._message(request.buffers.recv)
        op = self._op(request) if request.case.reduces else None
        case, here, received = request.case.name, self._mpi.IN_PLACE, request.buffers.recv
        if request.in_place:
            if case in ("all_reduce", "all_gather", "all_to_all"):
                send = here
            elif case == "reduce_scatter":  # MPI takes the whole buffer and leaves the result in its first block
                assert request.buffers.send is not None and received is not None
                received = request.buffers.send[: received.size]
                send, recv = here, send
            elif rank == root and case in ("reduce", "gather"):
                send = here
            elif rank == root and case == "scatter":
                recv = here
        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(send, recv, op),
            "reduce": lambda: comm.Reduce(send, recv, op, root),
            "broadcast": lambda: comm.Bcast(send, root),
            "all_gather": lambda: comm.Allgather(send, recv),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(send, recv, op),
            "all_to_all": lambda: comm.Alltoall(send, recv),
            "gather": lambda: comm.Gather(send, recv, root),
            "scatter": lambda: comm.Scatter(send, recv, root),
            "sendrecv": lambda: comm.Sendrecv(send, (rank + 1) % n, 0, recv, (rank - 1) % n, 0),
            "barrier": comm.Barrier,
        }
        return Bound(calls[case], received)

    def close(self) -> None:
        """Free the communicator; MPI itself is finalised by mpi4py at exit."""
        self._comm.Free()

    def _message(self, array: Any) -> Any:
        if array is None:
            return None
        kinds = {"float64": "DOUBLE", "float32": "FLOAT", "bool": "C_BOOL"}
        kinds |= {f"{sign}int{bits}": f"{sign}int{bits}_t".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}
        if array.dtype.name not in kinds:
            raise UnsupportedError(f"{self.name} has no element type {array.dtype.name} in mpi4py")
        return [array, getattr(self._mpi, kinds[array.dtype.name])]

    def _op(self, request: Request) -> Any:
        if request.op is ReduceOp.AVG:
            raise UnsupportedError(f"{self.name} has no AVG")
        if request.dtype is DType.BOOL:
            logical = {
                "PROD": "LAND",
                "MIN": "LAND",
                "BAND": "LAND",
                "SUM": "LOR",
                "MAX": "LOR",
                "BOR": "LOR",
                "BXOR": "LXOR",
            }
            return getattr(self._mpi, logical[request.op.name])
        return getattr(self._mpi, request.op.name)


MPI_MARKS = {"openmpi": "open mpi", "mpich": "mpich"}
