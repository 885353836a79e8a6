"""Communicator: the collectives on arrays in host memory, as MPI and NumPy users know them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from hccl_py import _native
from hccl_py.bootstrap import Bootstrap, detect
from hccl_py.buffers import Buffer, describe
from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine, Work

CallArgs = tuple[Collective, ReduceOp, DType, int, int, int, int]  # of Engine.run and start


class Registration:
    """An array that was registered; see :meth:`Communicator.register`."""

    def __init__(self, segment: _native.Segment, array: Any) -> None:
        held = [segment]
        try:
            self._end = weakref.finalize(array, held.clear)  # before the memory goes back to the allocator
        except TypeError:  # it cannot say when it goes: keep it until then
            held.append(array)
            self._end = weakref.finalize(self, held.clear)
        self._end.atexit = False

    def release(self) -> None:
        """Make the array's memory private again. Idempotent."""
        self._end()


_NOTHING = Buffer(0, 0, DType.UINT8)


class Communicator:
    """The ranks of a group, and what they can do together.

    Every collective must be called by all ranks, in the same order, with the same element type, size, operator and
    root; ranks that disagree all get a :class:`DesyncError`. Buffers are contiguous, in host memory: NumPy arrays or
    anything with the buffer protocol or DLPack. Blocking calls return when this rank's part is done; each has a twin
    with ``i`` in front that returns a :class:`Work` at once, until whose ``wait()`` the buffers must be left alone.

    Averages are taken in float32 (float64 for float64), integers wrap, MIN and MAX propagate NaN.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rank = engine.rank
        self.size = engine.size
        self._quick = engine.run_arrays

    @property
    def engine(self) -> Engine:
        """What lies below."""
        return self._engine

    def all_reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM) -> Any:
        """Reduce over all ranks; every rank gets the result in ``recvbuf`` (None: in place). Returns it."""
        out = sendbuf if recvbuf is None else recvbuf
        if not self._quick(Collective.ALL_REDUCE, op, 0, sendbuf, out, 1, 1):
            self._engine.run(*self._all_reduce(sendbuf, recvbuf, op))
        return out

    def iall_reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Start :meth:`all_reduce`."""
        return self._engine.start(*self._all_reduce(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Any:
        """Reduce to ``recvbuf`` of the root (None: in place); other ranks' ``recvbuf`` is not looked at."""
        self._engine.run(*self._reduce(sendbuf, recvbuf, op, root))
        return sendbuf if recvbuf is None else recvbuf

    def ireduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Work:
        """Start :meth:`reduce`."""
        return self._engine.start(*self._reduce(sendbuf, recvbuf, op, root), keep=(sendbuf, recvbuf))

    def broadcast(self, buf: Any, root: int = 0) -> Any:
        """Give every rank the root's ``buf``, in place. Returns it."""
        self._check_root(root)
        if not self._quick(Collective.BROADCAST, ReduceOp.SUM, root, buf, buf, 1, 1):
            self._engine.run(*self._broadcast(buf, root))
        return buf

    def ibroadcast(self, buf: Any, root: int = 0) -> Work:
        """Start :meth:`broadcast`."""
        return self._engine.start(*self._broadcast(buf, root), keep=buf)

    def all_gather(self, sendbuf: Any, recvbuf: Any) -> Any:
        """Put every rank's ``sendbuf`` in ``recvbuf``, one after the other in rank order. Returns ``recvbuf``."""
        if not self._quick(Collective.ALL_GATHER, ReduceOp.SUM, 0, sendbuf, recvbuf, 1, self.size):
            self._engine.run(*self._all_gather(sendbuf, recvbuf))
        return recvbuf

    def iall_gather(self, sendbuf: Any, recvbuf: Any) -> Work:
        """Start :meth:`all_gather`."""
        return self._engine.start(*self._all_gather(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
        """Reduce over all ranks; rank r gets the r-th of ``size`` equal blocks of the result. Returns ``recvbuf``."""
        if not self._quick(Collective.REDUCE_SCATTER, op, 0, sendbuf, recvbuf, self.size, 1):
            self._engine.run(*self._reduce_scatter(sendbuf, recvbuf, op))
        return recvbuf

    def ireduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Start :meth:`reduce_scatter`."""
        return self._engine.start(*self._reduce_scatter(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def all_to_all(self, sendbuf: Any, recvbuf: Any) -> Any:
        """Send block r of ``sendbuf`` to rank r; block r of ``recvbuf`` comes from rank r. Returns ``recvbuf``."""
        if not self._quick(Collective.ALL_TO_ALL, ReduceOp.SUM, 0, sendbuf, recvbuf, self.size, self.size):
            self._engine.run(*self._all_to_all(sendbuf, recvbuf))
        return recvbuf

    def iall_to_all(self, sendbuf: Any, recvbuf: Any) -> Work:
        """Start :meth:`all_to_all`."""
        return self._engine.start(*self._all_to_all(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> Any:
        """Put every rank's ``sendbuf`` in the root's ``recvbuf``, in rank order; others may pass None."""
        self._engine.run(*self._gather(sendbuf, recvbuf, root))
        return recvbuf

    def igather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> Work:
        """Start :meth:`gather`."""
        return self._engine.start(*self._gather(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        """Give rank r the r-th block of the root's ``sendbuf``; others may pass None. Returns ``recvbuf``."""
        self._engine.run(*self._scatter(sendbuf, recvbuf, root))
        return recvbuf

    def iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Work:
        """Start :meth:`scatter`."""
        return self._engine.start(*self._scatter(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def barrier(self) -> None:
        """Return when all ranks have called."""
        self._engine.run(*self._barrier())

    def ibarrier(self) -> Work:
        """Start :meth:`barrier`."""
        return self._engine.start(*self._barrier())

    def send(self, buf: Any, dst: int, tag: int = 0) -> None:
        """Send to rank ``dst``; returns when ``buf`` may be changed."""
        self.isend(buf, dst, tag).wait()

    def isend(self, buf: Any, dst: int, tag: int = 0) -> Work:
        """Start :meth:`send`."""
        data = describe(buf, "buf")
        return self._engine.start_send(data.ptr, data.nbytes, dst, _tag(tag), keep=buf)

    def recv(self, buf: Any, src: int = -1, tag: int = 0) -> int:
        """Receive from rank ``src`` (-1: anybody) a message of exactly the size of ``buf``; return who sent."""
        work = self.irecv(buf, src, tag)
        work.wait()
        return work.source

    def irecv(self, buf: Any, src: int = -1, tag: int = 0) -> Work:
        """Start :meth:`recv`."""
        data = describe(buf, "buf", writable=True)
        return self._engine.start_recv(data.ptr, data.nbytes, src, _tag(tag), keep=buf)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> np.ndarray[Any, Any]:
        """A new NumPy array in memory that all ranks of this host can reach.

        Large collectives on such arrays copy nothing: peers read the operands where they lie and write the results
        where they belong. Each array is a memory file of its own, which takes a while to make and to map: make few and
        keep them. The memory is zeroed, begins at a page, and goes back when the array and its views are gone.

        Args:
            shape: of the array.
            dtype: anything that ``numpy.dtype`` takes.

        Raises:
            ConfigError: there is not enough memory.
        """
        kind = np.dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(dim < 0 for dim in dims):
            raise ConfigError(f"empty: the shape {dims} has a negative extent")
        num_bytes = math.prod(dims) * kind.itemsize
        array: np.ndarray[Any, Any] = self._engine.allocate(num_bytes).view(kind).reshape(dims)
        return array

    def register(self, array: Any) -> Registration:
        """Make an ordinary array as reachable as one of :meth:`empty`, in place: its pages are swapped for shared ones.

        The contents are copied once; nobody may write to the array, or to anything on its first and last page, until
        this returns. Processes forked afterwards share these pages. It lasts until ``release()`` or until the array is
        gone.

        Args:
            array: a writable contiguous array in host memory, of at least one page to be worth it.

        Raises:
            ConfigError: the memory is not ordinary: a mapped file, read-only, or shared already.
        """
        data = describe(array, "array", writable=True)
        return Registration(self._engine.adopt(data.ptr, data.nbytes), array)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._engine.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._engine.abort(f"{type(error).__name__}: {error}")
        self.close()

    # Checks of one rank: what is wrong here is refused here.

    def _all_reduce(self, sendbuf: Any, recvbuf: Any, op: ReduceOp) -> CallArgs:
        if recvbuf is None:
            out = describe(sendbuf, "sendbuf", writable=True)
        else:
            out = describe(recvbuf, "recvbuf", writable=True)
        data = out if recvbuf is None else describe(sendbuf, "sendbuf")
        _same("all_reduce", data, out, 1)
        return Collective.ALL_REDUCE, op, data.dtype, 0, data.ptr, out.ptr, data.size

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: ReduceOp, root: int) -> CallArgs:
        self._check_root(root)
        data = describe(sendbuf, "sendbuf")
        out = _NOTHING
        if self.rank == root:
            out = describe(sendbuf, "sendbuf", True) if recvbuf is None else describe(recvbuf, "recvbuf", True)
            _same("reduce", data, out, 1)
        return Collective.REDUCE, op, data.dtype, root, data.ptr, out.ptr, data.size

    def _broadcast(self, buf: Any, root: int) -> CallArgs:
        self._check_root(root)
        data = describe(buf, "buf", writable=self.rank != root)
        return Collective.BROADCAST, ReduceOp.SUM, data.dtype, root, data.ptr, data.ptr, data.size

    def _all_gather(self, sendbuf: Any, recvbuf: Any) -> CallArgs:
        data, out = describe(sendbuf, "sendbuf"), describe(recvbuf, "recvbuf", writable=True)
        _same("all_gather", data, out, self.size)
        return Collective.ALL_GATHER, ReduceOp.SUM, data.dtype, 0, data.ptr, out.ptr, data.size

    def _reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp) -> CallArgs:
        data, out = describe(sendbuf, "sendbuf"), describe(recvbuf, "recvbuf", writable=True)
        _same("reduce_scatter", out, data, self.size)
        return Collective.REDUCE_SCATTER, op, data.dtype, 0, data.ptr, out.ptr, out.size

    def _all_to_all(self, sendbuf: Any, recvbuf: Any) -> CallArgs:
        data, out = describe(sendbuf, "sendbuf"), describe(recvbuf, "recvbuf", writable=True)
        _same("all_to_all", data, out, 1)
        if data.size % self.size:
            raise ConfigError(f"all_to_all: {data.size} elements cannot be cut in {self.size} equal blocks")
        return Collective.ALL_TO_ALL, ReduceOp.SUM, data.dtype, 0, data.ptr, out.ptr, data.size // self.size

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int) -> CallArgs:
        self._check_root(root)
        data, out = describe(sendbuf, "sendbuf"), _NOTHING
        if self.rank == root:
            out = describe(recvbuf, "recvbuf", writable=True)
            _same("gather", data, out, self.size)
        return Collective.GATHER, ReduceOp.SUM, data.dtype, root, data.ptr, out.ptr, data.size

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> CallArgs:
        self._check_root(root)
        data, out = _NOTHING, describe(recvbuf, "recvbuf", writable=True)
        if self.rank == root:
            data = describe(sendbuf, "sendbuf")
            _same("scatter", out, data, self.size)
        return Collective.SCATTER, ReduceOp.SUM, out.dtype, root, data.ptr, out.ptr, out.size

    def _barrier(self) -> CallArgs:
        return Collective.BARRIER, ReduceOp.SUM, DType.UINT8, 0, 0, 0, 0

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ConfigError(f"root {root} is outside a world of {self.size}")


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 64:
        raise ConfigError(f"tag {tag} is not a number of 0 to 2**64 - 1")
    return tag


def _same(name: str, small: Buffer, large: Buffer, blocks: int) -> None:
    """Raise unless ``large`` is ``blocks`` times ``small``."""
    if small.dtype is not large.dtype:
        types = f"{small.dtype.name.lower()} and {large.dtype.name.lower()}"
        raise ConfigError(f"{name}: the buffers have different element types, {types}")
    if small.size * blocks != large.size:
        raise ConfigError(
            f"{name}: {blocks} blocks of {small.size} elements are not the {large.size} elements of the other buffer"
        )


def init(bootstrap: Bootstrap | None = None, env: Env | None = None, timeout_s: float | None = None) -> Communicator:
    """Connect the ranks that the launcher started.

    Args:
        bootstrap: how they find each other (None: by the launcher: mpirun, torchrun; else this is the only rank).
        env: settings (None: HCCL_PY_* variables).
        timeout_s: of connecting and of each operation (None: as the settings say).

    Raises:
        ConfigError, TransportUnavailableError, CollectiveTimeoutError: see :class:`~hccl_py.engine.Engine`.
    """
    env = Env.from_environ() if env is None else env
    return Communicator(Engine(detect(env) if bootstrap is None else bootstrap, env=env, timeout_s=timeout_s))
