"""Collectives on buffers as mpi4py has them: Allreduce, Bcast, Gatherv, Iallgather, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hccl_py.buffers import describe
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, ReduceOp
from hccl_py.mpistyle.constants import IN_PLACE
from hccl_py.mpistyle.message import Blocks, array_of, blocks_of, is_plain, kind_in
from hccl_py.mpistyle.op import Op, buffer_op
from hccl_py.mpistyle.place import Place
from hccl_py.mpistyle.request import Request, Status

_SUM = ReduceOp.SUM
Ending = Callable[[Status | None], Any]


class BufferCollectives(Place):
    """Each takes mpi4py's forms of a buffer (:mod:`hccl_py.mpistyle.message`) and raises what the plain methods of
    :class:`~hccl_py.communicator.Communicator` raise. All ranks must agree on type, size, operator and root."""

    def Barrier(self) -> None:
        """Return when all ranks have called."""
        self._here.barrier()

    def Ibarrier(self) -> Request:
        """Start Barrier."""
        return Request([self._here.ibarrier()])

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Give every rank the root's buffer."""
        self._here.broadcast(array_of(buf, "buf"), root)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """Start Bcast."""
        return Request([self._here.ibroadcast(array_of(buf, "buf"), root)])

    # Reductions

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM) -> None:
        """Reduce over all ranks; all get the result."""
        self._here.all_reduce(*_reduced(sendbuf, recvbuf, op))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM) -> Request:
        """Start Allreduce."""
        return Request([self._here.iall_reduce(*_reduced(sendbuf, recvbuf, op))])

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM, root: int = 0) -> None:
        """Reduce over all ranks; the root gets the result."""
        self._here.reduce(*_reduced(sendbuf, recvbuf, op, self._here.rank == root), root)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM, root: int = 0) -> Request:
        """Start Reduce."""
        return Request([self._here.ireduce(*_reduced(sendbuf, recvbuf, op, self._here.rank == root), root)])

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM) -> None:
        """Reduce over all ranks; rank r gets the r-th of ``size`` equal blocks."""
        self.Ireduce_scatter_block(sendbuf, recvbuf, op).Wait()

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op | ReduceOp = _SUM) -> Request:
        """Start Reduce_scatter_block."""
        here = self._here
        if sendbuf is not IN_PLACE:
            return Request([here.ireduce_scatter(array_of(sendbuf, "sendbuf"), *_out_and_op(recvbuf, op))])
        data, operator = _out_and_op(recvbuf, op)
        data = _as_numpy(data, "recvbuf")
        if data.size % here.size:
            raise ConfigError(f"recvbuf: {data.size} elements are not {here.size} equal blocks")
        block = np.empty(data.size // here.size, data.dtype)
        return Request([here.ireduce_scatter(data, block, operator)], _copy_to(data[: block.size], block))

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op | ReduceOp = _SUM) -> None:
        """Reduce over all ranks; rank r gets ``recvcounts[r]`` elements (None: equal blocks)."""
        here = self._here
        if recvcounts is None:
            return self.Reduce_scatter_block(sendbuf, recvbuf, op)
        out, operator = _out_and_op(recvbuf, op)
        out = _as_numpy(out, "recvbuf")
        blocks = blocks_of(recvbuf if sendbuf is IN_PLACE else sendbuf, here.size, "sendbuf", recvcounts)
        mine = np.empty(blocks.counts[here.rank], blocks.flat.dtype)
        if mine.size > out.size:
            raise ConfigError(f"recvbuf: {mine.size} elements do not fit in its {out.size}")
        self._uneven(Collective.REDUCE_SCATTER, blocks, mine, operator).Wait()
        out[: mine.size] = mine

    # Blocks of equal size

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give every rank the buffers of all, in rank order."""
        self._here.all_gather(*self._gathered(sendbuf, recvbuf))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start Allgather."""
        return Request([self._here.iall_gather(*self._gathered(sendbuf, recvbuf))])

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give the root the buffers of all, in rank order."""
        self._here.gather(*self._gathered(sendbuf, recvbuf, self._here.rank == root), root)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start Gather."""
        return Request([self._here.igather(*self._gathered(sendbuf, recvbuf, self._here.rank == root), root)])

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give rank r the r-th block of the root's buffer."""
        self._here.scatter(*self._scattered(sendbuf, recvbuf, root), root)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start Scatter."""
        return Request([self._here.iscatter(*self._scattered(sendbuf, recvbuf, root), root)])

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send block r to rank r; block r comes from rank r."""
        self._here.all_to_all(*self._exchanged(sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start Alltoall."""
        return Request([self._here.iall_to_all(*self._exchanged(sendbuf, recvbuf))])

    # Blocks of different sizes

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As Allgather; all ranks give the same counts in ``recvbuf``."""
        self.Iallgatherv(sendbuf, recvbuf).Wait()

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start Allgatherv."""
        out = blocks_of(recvbuf, self._here.size, "recvbuf")
        own = out.block(self._here.rank)
        mine = own if sendbuf is IN_PLACE else _as_numpy(array_of(sendbuf, "sendbuf"), "sendbuf")
        _fits("sendbuf", mine.size, own.size)
        return self._uneven(Collective.ALL_GATHER, mine, out)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """As Gather; the root alone gives counts and displacements (it tells the others: one small broadcast)."""
        here, out = self._here, None
        if here.rank == root:
            out = blocks_of(recvbuf, here.size, "recvbuf")
        counts = self._told(out, root)
        if out is not None and sendbuf is IN_PLACE:
            mine = out.block(root)
        else:
            mine = _as_numpy(array_of(sendbuf, "sendbuf"), "sendbuf")
        _fits("sendbuf", mine.size, counts[here.rank])
        self._uneven(Collective.GATHER, mine, out, root=root, counts=counts).Wait()

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """As Scatter; the root alone gives counts and displacements (it tells the others: one small broadcast)."""
        here, data = self._here, None
        if here.rank == root:
            data = blocks_of(sendbuf, here.size, "sendbuf")
        counts = self._told(data, root)
        if data is not None and recvbuf is IN_PLACE:
            mine = data.block(root).copy()
        else:
            out = _as_numpy(array_of(recvbuf, "recvbuf"), "recvbuf")
            if counts[here.rank] > out.size:
                raise ConfigError(f"recvbuf: {counts[here.rank]} elements do not fit in its {out.size}")
            mine = out[: counts[here.rank]]
        self._uneven(Collective.SCATTER, data, mine, root=root, counts=counts).Wait()

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As Alltoall; what rank a sends to b is as long as b expects from a."""
        self.Ialltoallv(sendbuf, recvbuf).Wait()

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start Alltoallv."""
        size = self._here.size
        out = blocks_of(recvbuf, size, "recvbuf")
        data = Blocks(out.flat.copy(), out.counts, out.displs) if sendbuf is IN_PLACE else None
        return self._uneven(Collective.ALL_TO_ALL, data or blocks_of(sendbuf, size, "sendbuf"), out)

    # How

    def _gathered(self, sendbuf: Any, recvbuf: Any, receives: bool = True) -> tuple[Any, Any]:
        """Arrays of a gathering; in place this rank's block lies in the result already."""
        here = self._here
        out = array_of(recvbuf, "recvbuf", here.size) if receives else None
        if sendbuf is not IN_PLACE:
            return array_of(sendbuf, "sendbuf"), out
        if not receives:
            raise ConfigError("sendbuf: MPI.IN_PLACE is for the root")
        flat = _as_numpy(out, "recvbuf")
        block = flat.size // here.size
        return flat[here.rank * block : (here.rank + 1) * block], out

    def _scattered(self, sendbuf: Any, recvbuf: Any, root: int) -> tuple[Any, Any]:
        here = self._here
        data = array_of(sendbuf, "sendbuf", here.size) if here.rank == root else None
        if recvbuf is not IN_PLACE:
            return data, array_of(recvbuf, "recvbuf")
        if here.rank != root:
            raise ConfigError("recvbuf: MPI.IN_PLACE is for the root")
        flat = _as_numpy(data, "sendbuf")
        block = flat.size // here.size
        return data, flat[here.rank * block : (here.rank + 1) * block]

    def _exchanged(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
        out = array_of(recvbuf, "recvbuf", self._here.size)
        if sendbuf is IN_PLACE:
            return _as_numpy(out, "recvbuf").copy(), out
        return array_of(sendbuf, "sendbuf", self._here.size), out

    def _told(self, blocks: Blocks | None, root: int) -> list[int]:
        """The counts that the root gave."""
        counts = np.zeros(self._here.size, np.int64)
        if blocks is not None:
            counts[:] = blocks.counts
        self._here.broadcast(counts, root)
        return [int(count) for count in counts]

    def _uneven(
        self, collective: Collective, data: Any, out: Any, op: ReduceOp = _SUM, root: int = 0, counts: Any = ()
    ) -> Request:
        """Start a collective of which ``data``, ``out`` or both are Blocks; what is not in a row goes by a copy."""
        packed, received = data, out
        if isinstance(data, Blocks):
            packed = (
                data.flat if data.packed else np.concatenate([data.block(rank) for rank in range(len(data.counts))])
            )
        if isinstance(out, Blocks):
            received = out.flat if out.packed else np.empty(sum(out.counts), out.flat.dtype)
        looks = [
            None if array is None else describe(array, what, writable)
            for array, what, writable in ((packed, "sendbuf", False), (received, "recvbuf", True))
        ]
        ins, outs = (blocks.counts if isinstance(blocks, Blocks) else [] for blocks in (data, out))
        if collective is Collective.GATHER:
            outs = list(counts)
        if collective is Collective.SCATTER:
            ins = list(counts)
        kinds = {look.dtype for look in looks if look is not None}
        if len(kinds) != 1:
            raise ConfigError(f"sendbuf and recvbuf have different element types: {', '.join(map(str, kinds))}")
        pointers = [0 if look is None else look.ptr for look in looks]
        work = self._here.engine.start_v(
            collective, op, kinds.pop(), root, pointers[0], ins, pointers[1], outs, keep=(packed, received)
        )
        if isinstance(out, Blocks) and not out.packed:
            return Request([work], _unpack(out, received))
        return Request([work])


def _reduced(sendbuf: Any, recvbuf: Any, op: Op | ReduceOp, receives: bool = True) -> tuple[Any, Any, ReduceOp]:
    """Arrays and operator of a reduction."""
    if type(op) is Op and not op.logical and op.on_buffers is not None and is_plain(sendbuf) and is_plain(recvbuf):
        return sendbuf, recvbuf, op.on_buffers  # quick
    operator = buffer_op(op, kind_in(recvbuf if sendbuf is IN_PLACE else sendbuf))
    if sendbuf is IN_PLACE:
        if not receives:
            raise ConfigError("sendbuf: MPI.IN_PLACE is for the root")
        return array_of(recvbuf, "recvbuf"), None, operator
    return array_of(sendbuf, "sendbuf"), array_of(recvbuf, "recvbuf") if receives else None, operator


def _out_and_op(recvbuf: Any, op: Op | ReduceOp) -> tuple[Any, ReduceOp]:
    return array_of(recvbuf, "recvbuf"), buffer_op(op, kind_in(recvbuf))


def _as_numpy(data: Any, what: str) -> Any:
    """A plain array as one of NumPy, of one dimension."""
    return array_of([data], what)


def _fits(what: str, size: int, wanted: int) -> None:
    if size != wanted:
        raise ConfigError(f"{what}: {size} elements are not the {wanted} that recvbuf has for this rank")


def _copy_to(out: Any, data: Any) -> Ending:
    def end(_: Status | None) -> None:
        out[:] = data

    return end


def _unpack(out: Blocks, packed: Any) -> Ending:
    def end(_: Status | None) -> None:
        begin = 0
        for rank, count in enumerate(out.counts):
            out.block(rank)[:] = packed[begin : begin + count]
            begin += count

    return end
