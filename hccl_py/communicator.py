"""Communicator: the collectives on arrays in host memory, as MPI and NumPy users know them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py import _native
from hccl_py.arguments import Arguments, check_tag
from hccl_py.bootstrap import Bootstrap, detect
from hccl_py.buffers import describe
from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, DesyncError
from hccl_py.core.types import Collective, ReduceOp
from hccl_py.engine import Engine, Work
from hccl_py.gpu.arrays import on_device
from hccl_py.mpistyle.collectives import BufferCollectives
from hccl_py.mpistyle.messages import BufferMessages
from hccl_py.prepared import PreparedCollectives

if TYPE_CHECKING:
    from hccl_py.compressed import CompressedAllReduce
    from hccl_py.compression.codec import Codec
    from hccl_py.gpu.collectives import DeviceCollectives
    from hccl_py.hosts import HostParts


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


# As plain numbers: the short way is taken by every small message.
_SUM = int(ReduceOp.SUM)
_ALL_REDUCE, _REDUCE, _BROADCAST = int(Collective.ALL_REDUCE), int(Collective.REDUCE), int(Collective.BROADCAST)
_ALL_GATHER, _REDUCE_SCATTER = int(Collective.ALL_GATHER), int(Collective.REDUCE_SCATTER)
_ALL_TO_ALL, _GATHER, _SCATTER = int(Collective.ALL_TO_ALL), int(Collective.GATHER), int(Collective.SCATTER)
_BARRIER = int(Collective.BARRIER)


class Communicator(PreparedCollectives, BufferMessages, BufferCollectives):
    """The ranks of a group, and what they can do together.

    Every collective must be called by all ranks, in the same order, with the same element type, size, operator and
    root; ranks that disagree all get a :class:`DesyncError`. Buffers are contiguous, in host memory: NumPy arrays or
    anything with the buffer protocol or DLPack. Blocking calls return when this rank's part is done; each has a twin
    with ``i`` in front that returns a :class:`Work` at once, until whose ``wait()`` the buffers must be left alone, and
    one with ``prepare_`` in front for buffers that are used again and again.

    Blocking calls also take arrays in GPU memory, on all ranks of the call: CuPy's, or anything with
    ``__cuda_array_interface__``. They are in the order of streams, as NCCL's are and MPI's are not: a call is queued on
    the stream of its arrays (CuPy: the current one) and returns; what the kernels report is raised by a later call.
    See docs/GPU.md.

    Averages are taken in float32 (float64 for float64), integers wrap, MIN and MAX propagate NaN.

    ``Allreduce``, ``Bcast``, ``Send`` and so on are mpi4py's methods on buffers, with its forms of arguments;
    :mod:`hccl_py.MPI` has the rest of its names. See docs/MPI4PY.md.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rank = engine.rank
        self.size = engine.size
        self._arguments = Arguments(engine.rank, engine.size)
        self._native = engine.native
        self._codecs: dict[str, tuple[CompressedAllReduce, int]] = {}
        self._parts: tuple[HostParts | None] | None = None
        self._gpu: DeviceCollectives | None = None  # from the first array in GPU memory on
        self._quick = engine.native.run_arrays  # True: done; False, and nothing done: take the long way

    @property
    def engine(self) -> Engine:
        """What lies below."""
        return self._engine

    @property
    def _here(self) -> Communicator:
        return self

    def all_reduce(
        self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, codec: Codec | str | None = None
    ) -> Any:
        """Reduce over all ranks; every rank gets the result in ``recvbuf`` (None: in place). Returns it.

        ``codec``: what travels is encoded by it ("int8", "topk:0.01"); the result is the same on all ranks, but exact
        with "lossless" only. SUM and AVG of float64 (not lossless), float32, float16 and bfloat16. No error feedback:
        for training see :class:`~hccl_py.compressed.CompressedAllReduce`.
        """
        if codec is not None:
            return self._compressed(codec, sendbuf, recvbuf, op)
        out = sendbuf if recvbuf is None else recvbuf
        try:
            if self._quick(_ALL_REDUCE, op, 0, sendbuf, out, 1, 1):
                return out
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("all_reduce", sendbuf, recvbuf, op)
        return out

    def _run(self, name: str, *arguments: Any) -> None:
        """The long way of a collective: on GPUs, or what takes a second look."""
        if any(map(on_device, arguments)):
            self._on_gpu().run(name, arguments)
        else:
            self._engine.run(*getattr(self._arguments, name)(*arguments))

    def _on_gpu(self) -> DeviceCollectives:
        if self._gpu is None:
            from hccl_py.gpu.collectives import DeviceCollectives

            engine = self._engine
            self._gpu = DeviceCollectives(self.rank, self.size, self._exchange, engine.env, engine.timeout_s)
        return self._gpu

    def _exchange(self, word: bytes) -> list[bytes]:
        """The words of all ranks, in rank order."""
        lengths = np.zeros(self.size, np.int64)
        self.all_gather(np.array([len(word)], np.int64), lengths)
        mine, all_of_them = np.zeros(lengths.max(), np.uint8), np.zeros((self.size, lengths.max()), np.uint8)
        mine[: len(word)] = np.frombuffer(word, np.uint8)
        self.all_gather(mine, all_of_them)
        return [all_of_them[rank, :length].tobytes() for rank, length in enumerate(lengths)]

    def _compressed(self, codec: Codec | str, sendbuf: Any, recvbuf: Any, op: ReduceOp) -> Any:
        from hccl_py.compressed import CompressedAllReduce

        text = codec if isinstance(codec, str) else codec.text
        reduce, calls = self._codecs.get(text, (None, 0))
        if reduce is None:
            reduce = CompressedAllReduce(self, codec)
        result = reduce(sendbuf, recvbuf, op, step=calls)
        self._codecs[text] = (reduce, calls + 1)  # the step of the random numbers: alike on all ranks
        return result

    def iall_reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Start :meth:`all_reduce`."""
        return self._engine.start(*self._arguments.all_reduce(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Any:
        """Reduce to ``recvbuf`` of the root (None: in place); other ranks' ``recvbuf`` is not looked at."""
        out = sendbuf if recvbuf is None else recvbuf
        try:
            if self._quick(_REDUCE, op, root, sendbuf, out, 1, self.rank == root):
                return out
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("reduce", sendbuf, recvbuf, op, root)
        return out

    def ireduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Work:
        """Start :meth:`reduce`."""
        return self._engine.start(*self._arguments.reduce(sendbuf, recvbuf, op, root), keep=(sendbuf, recvbuf))

    def broadcast(self, buf: Any, root: int = 0) -> Any:
        """Give every rank the root's ``buf``, in place. Returns it."""
        try:
            if self._quick(_BROADCAST, _SUM, root, buf, buf, 1, 1):
                return buf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("broadcast", buf, root)
        return buf

    def ibroadcast(self, buf: Any, root: int = 0) -> Work:
        """Start :meth:`broadcast`."""
        return self._engine.start(*self._arguments.broadcast(buf, root), keep=buf)

    def all_gather(self, sendbuf: Any, recvbuf: Any) -> Any:
        """Put every rank's ``sendbuf`` in ``recvbuf``, one after the other in rank order. Returns ``recvbuf``."""
        try:
            if self._quick(_ALL_GATHER, _SUM, 0, sendbuf, recvbuf, 1, self.size):
                return recvbuf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("all_gather", sendbuf, recvbuf)
        return recvbuf

    def iall_gather(self, sendbuf: Any, recvbuf: Any) -> Work:
        """Start :meth:`all_gather`."""
        return self._engine.start(*self._arguments.all_gather(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
        """Reduce over all ranks; rank r gets the r-th of ``size`` equal blocks of the result. Returns ``recvbuf``."""
        try:
            if self._quick(_REDUCE_SCATTER, op, 0, sendbuf, recvbuf, self.size, 1):
                return recvbuf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("reduce_scatter", sendbuf, recvbuf, op)
        return recvbuf

    def ireduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Start :meth:`reduce_scatter`."""
        return self._engine.start(*self._arguments.reduce_scatter(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def all_to_all(self, sendbuf: Any, recvbuf: Any) -> Any:
        """Send block r of ``sendbuf`` to rank r; block r of ``recvbuf`` comes from rank r. Returns ``recvbuf``."""
        try:
            if self._quick(_ALL_TO_ALL, _SUM, 0, sendbuf, recvbuf, self.size, self.size):
                return recvbuf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("all_to_all", sendbuf, recvbuf)
        return recvbuf

    def iall_to_all(self, sendbuf: Any, recvbuf: Any) -> Work:
        """Start :meth:`all_to_all`."""
        return self._engine.start(*self._arguments.all_to_all(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> Any:
        """Put every rank's ``sendbuf`` in the root's ``recvbuf``, in rank order; others may pass None."""
        try:
            if self._quick(_GATHER, _SUM, root, sendbuf, recvbuf, 1, self.size if self.rank == root else 0):
                return recvbuf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("gather", sendbuf, recvbuf, root)
        return recvbuf

    def igather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> Work:
        """Start :meth:`gather`."""
        return self._engine.start(*self._arguments.gather(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        """Give rank r the r-th block of the root's ``sendbuf``; others may pass None. Returns ``recvbuf``."""
        try:
            if self._quick(_SCATTER, _SUM, root, sendbuf, recvbuf, self.size if self.rank == root else 0, 1):
                return recvbuf
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._run("scatter", sendbuf, recvbuf, root)
        return recvbuf

    def iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Work:
        """Start :meth:`scatter`."""
        return self._engine.start(*self._arguments.scatter(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def barrier(self) -> None:
        """Return when all ranks have called."""
        try:
            if self._quick(_BARRIER, _SUM, 0, None, None, 0, 0):
                return
        except DesyncError as error:
            raise self._engine.explain(error) from None
        self._engine.run(*self._arguments.barrier())

    def ibarrier(self) -> Work:
        """Start :meth:`barrier`."""
        return self._engine.start(*self._arguments.barrier())

    def send(self, buf: Any, dst: int, tag: int = 0) -> None:
        """Send to rank ``dst``; returns when ``buf`` may be changed."""
        if self._native.send_array(buf, dst, tag):
            return
        if on_device(buf):
            self._on_gpu().message((buf, dst), None, tag)
        else:
            self.isend(buf, dst, tag).wait()

    def isend(self, buf: Any, dst: int, tag: int = 0) -> Work:
        """Start :meth:`send`."""
        data = describe(buf, "buf")
        return self._engine.start_send(data.ptr, data.nbytes, dst, check_tag(tag), keep=buf)

    def recv(self, buf: Any, src: int = -1, tag: int = 0) -> int:
        """Receive from rank ``src`` (-1: anybody) a message of exactly the size of ``buf``; return who sent."""
        source = self._native.recv_array(buf, src, tag)
        if source >= 0:
            return source
        if on_device(buf):
            self._on_gpu().message(None, (buf, src), tag)
            return src
        work = self.irecv(buf, src, tag)
        work.wait()
        return work.source

    def irecv(self, buf: Any, src: int = -1, tag: int = 0) -> Work:
        """Start :meth:`recv`."""
        data = describe(buf, "buf", writable=True)
        return self._engine.start_recv(data.ptr, data.nbytes, src, check_tag(tag), keep=buf)

    def sendrecv(self, sendbuf: Any, dst: int, recvbuf: Any, src: int = -1, tag: int = 0) -> int:
        """Send to ``dst`` and receive from ``src`` at once, as :meth:`send` and :meth:`recv`; return who sent."""
        source = self._native.exchange_arrays(sendbuf, dst, recvbuf, src, tag)
        if source >= 0:
            return source
        if on_device(sendbuf) or on_device(recvbuf):
            self._on_gpu().message((sendbuf, dst), (recvbuf, src), tag)
            return src
        receiving = self.irecv(recvbuf, src, tag)
        self.isend(sendbuf, dst, tag).wait()
        receiving.wait()
        return receiving.source

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

    def by_host(self) -> HostParts | None:
        """Its ranks by host, as communicators of their own; None where that makes no parts. Collective at first."""
        if self._parts is None:
            from hccl_py.hosts import by_host

            self._parts = (by_host(self),)
        return self._parts[0]

    def resync(self) -> list[str]:
        """Go on after an error, or where ranks are no longer at the same place of their program. Collective.

        All ranks leave the group and connect anew: see :meth:`Engine.resync <hccl_py.engine.Engine.resync>`. What was
        prepared must be prepared anew.

        Returns:
            by rank, the line of its latest call at which ranks disagreed; "" where there was none.
        """
        self._leave_parts()
        self._codecs.clear()
        places = self._engine.resync()
        self._native = self._engine.native
        self._quick = self._native.run_arrays
        return places

    def _leave_parts(self) -> None:
        parts = self._parts[0] if self._parts is not None else None
        if parts is not None:
            parts.close()
        if self._gpu is not None:
            self._gpu.close()
        self._parts = self._gpu = None

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._leave_parts()
        self._engine.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._engine.abort(f"{type(error).__name__}: {error}")
        self.close()


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
