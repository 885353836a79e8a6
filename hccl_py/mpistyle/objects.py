"""Messages and collectives of Python objects as mpi4py has them, in lower case: send, recv, bcast, gather, reduce, ...

An object travels as bytes (:mod:`hccl_py.mpistyle.plain`). A message is a head of up to 1 KiB with length and number,
which holds small objects whole; the bytes of a larger one follow under a tag of their own.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Work
from hccl_py.mpistyle.constants import ANY_SOURCE, ANY_TAG
from hccl_py.mpistyle.op import Op
from hccl_py.mpistyle.place import Place, is_nobody, tag_to_receive, tag_to_send
from hccl_py.mpistyle.plain import Objects
from hccl_py.mpistyle.request import Request, Status, fill, nothing_to_do

_HEAD = struct.Struct("<QQ")  # length in bytes, number of the message
_ROOM = 1024  # bytes of an object that go with the head
_HEADS, _BODIES = 1 << 40, 1 << 41  # spaces of tags


class ObjectMethods(Place):
    """Objects are plain data unless ``HCCL_PY_PICKLE=any``: see :mod:`hccl_py.mpistyle.plain`."""

    @cached_property
    def _objects(self) -> Objects:
        return Objects(self._here.engine.env.pickle == "any")

    @cached_property
    def _numbers(self) -> itertools.count[int]:
        return itertools.count()

    def barrier(self) -> None:
        """Return when all ranks have called."""
        self._here.barrier()

    # Messages

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object."""
        self.isend(obj, dest, tag).wait()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start send; the object may be changed at once."""
        if is_nobody(dest):
            return nothing_to_do()
        data, number = self._objects.dumps(obj), next(self._numbers)
        dest, small = self._peer(dest, "dest"), len(data) <= _ROOM
        head = np.frombuffer(_HEAD.pack(len(data), number) + (data if small else b""), np.uint8)
        works = [self._here.isend(head, dest, tag_to_send(tag, _HEADS))]
        if not small:
            works.append(self._here.isend(np.frombuffer(data, np.uint8), dest, _BODIES + number))
        return Request(works)

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receive an object. ``buf`` is there for mpi4py's sake and not used."""
        return self.irecv(buf, source, tag).wait(status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start recv; ``wait`` and ``test`` of the request give the object."""
        if is_nobody(source):
            return nothing_to_do(lambda status: fill(status, source, ANY_TAG, 0))
        number, wild = tag_to_receive(tag, _HEADS)
        head = np.empty(_HEAD.size + _ROOM, np.uint8)
        work = self._here.engine.start_recv(
            head.ctypes.data, head.nbytes, self._peer(source, "source", True), number, head, wild, True
        )
        return Request([work], lambda status: self._open(head, work, status))

    def _open(self, head: Any, work: Work, status: Status | None) -> Any:
        """The object whose head has come."""
        length, number = _HEAD.unpack_from(head)
        fill(status, work.source, work.tag - _HEADS, length)
        if length <= _ROOM:
            return self._objects.loads(head[_HEAD.size : _HEAD.size + length].tobytes())
        body = np.empty(length, np.uint8)
        self._here.recv(body, work.source, _BODIES + number)
        return self._objects.loads(body.tobytes())

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send one object and receive another."""
        sending = self.isend(sendobj, dest, sendtag)
        received = self.recv(recvbuf, source, recvtag, status)
        sending.wait()
        return received

    # Collectives

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """The root's object."""
        here = self._here
        data = np.frombuffer(self._objects.dumps(obj), np.uint8) if here.rank == root else np.empty(0, np.uint8)
        length = np.array([data.size])
        here.broadcast(length, root)
        if here.rank != root:
            data = np.empty(length[0], np.uint8)
        here.broadcast(data, root)
        return obj if here.rank == root else self._objects.loads(data.tobytes())

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """At the root the objects of all, in rank order; None elsewhere."""
        return self._collected(Collective.GATHER, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all, in rank order."""
        found = self._collected(Collective.ALL_GATHER, sendobj, 0)
        assert found is not None
        return found

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Rank r gets the r-th object of the root's sequence."""
        here, lengths, data = self._here, np.zeros(self._here.size, np.int64), np.empty(0, np.uint8)
        if here.rank == root:
            words = [self._objects.dumps(obj) for obj in self._one_each(sendobj)]
            lengths[:] = [len(word) for word in words]
            data = np.frombuffer(b"".join(words), np.uint8)
        here.broadcast(lengths, root)
        mine = np.empty(lengths[here.rank], np.uint8)
        self._bytes(Collective.SCATTER, data, lengths.tolist(), mine, [], root)
        return self._objects.loads(mine.tobytes())

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send the r-th object to rank r; the r-th of the result comes from rank r."""
        here = self._here
        words = [self._objects.dumps(obj) for obj in self._one_each(sendobj)]
        lengths, incoming = np.array([len(word) for word in words]), np.zeros(here.size, np.int64)
        here.all_to_all(lengths, incoming)
        out = np.empty(incoming.sum(), np.uint8)
        data = np.frombuffer(b"".join(words), np.uint8)
        self._bytes(Collective.ALL_TO_ALL, data, lengths.tolist(), out, incoming.tolist(), 0)
        return self._cut(out, incoming)

    def reduce(self, sendobj: Any, op: Op | ReduceOp | Any = ReduceOp.SUM, root: int = 0) -> Any:
        """At the root the objects of all combined by ``op`` in rank order; None elsewhere."""
        function, found = _function(op), self.gather(sendobj, root)
        return None if found is None else reduce(function, found)

    def allreduce(self, sendobj: Any, op: Op | ReduceOp | Any = ReduceOp.SUM) -> Any:
        """The objects of all combined by ``op``, in rank order."""
        return reduce(_function(op), self.allgather(sendobj))

    def scan(self, sendobj: Any, op: Op | ReduceOp | Any = ReduceOp.SUM) -> Any:
        """The objects of ranks up to this one combined by ``op``."""
        return reduce(_function(op), self.allgather(sendobj)[: self._here.rank + 1])

    def exscan(self, sendobj: Any, op: Op | ReduceOp | Any = ReduceOp.SUM) -> Any:
        """The objects of ranks before this one combined by ``op``; None on rank 0."""
        before = self.allgather(sendobj)[: self._here.rank]
        return reduce(_function(op), before) if before else None

    def _one_each(self, objects: Sequence[Any] | None) -> Sequence[Any]:
        size = self._here.size
        if objects is None or len(objects) != size:
            raise ConfigError(f"sendobj: a sequence of {size} objects is wanted, one for each rank")
        return objects

    def _collected(self, collective: Collective, obj: Any, root: int) -> list[Any] | None:
        here = self._here
        data = np.frombuffer(self._objects.dumps(obj), np.uint8)
        lengths = np.zeros(here.size, np.int64)
        here.all_gather(np.array([data.size]), lengths)
        receives = collective is Collective.ALL_GATHER or here.rank == root
        out = np.empty(lengths.sum() if receives else 0, np.uint8)
        self._bytes(collective, data, [], out, lengths.tolist(), root)
        return self._cut(out, lengths) if receives else None

    def _bytes(
        self, collective: Collective, data: Any, counts: list[int], out: Any, out_counts: list[int], root: int
    ) -> None:
        self._here.engine.start_v(
            collective, ReduceOp.SUM, DType.UINT8, root, data.ctypes.data, counts, out.ctypes.data, out_counts,
            keep=(data, out),
        ).wait()  # fmt: skip

    def _cut(self, data: Any, lengths: Any) -> list[Any]:
        ends = np.cumsum(lengths)
        return [
            self._objects.loads(data[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)
        ]


def _function(op: Any) -> Any:
    """What combines two objects."""
    if isinstance(op, ReduceOp):
        from hccl_py.mpistyle.op import basic_ops

        op = basic_ops().get(op.name, op)
    if not callable(op) or isinstance(op, ReduceOp):
        raise ConfigError(f"{op!r} is no operator of hccl_py.MPI")
    return op
