"""hccl_py in the forms that a program chooses: on registered buffers, and by prepared calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hccl_py.bench.cases import Buffers
from hccl_py.bench.dtypes import numpy_dtype
from hccl_py.bench.peers import Bound, HcclPy, Request, UnsupportedError


class Registered(HcclPy):
    """On buffers from ``Communicator.empty``, which the other ranks of the host can load and store."""

    name = "registered"

    def prepare(self, request: Request) -> Bound:
        """As HcclPy, on registered buffers of its own."""
        comm, case = self._comm, request.case
        # reduced to elements a block, whichever buffers this rank has
        send, recv = request.buffers.send, request.buffers.recv
        if send is not None:
            count = send.size // (comm.size if case.sends_blocks else 1)
        else:
            count = 0 if recv is None else recv.size // (comm.size if case.receives_blocks else 1)
        kind = numpy_dtype(request.dtype)
        own = Buffers.allocate(
            case, kind, count, comm.rank, comm.size, request.root, request.in_place, zeros=self._zeros
        )
        bound = super().prepare(replace(request, buffers=own))
        return Bound(bound.run, bound.received, own)

    def _zeros(self, count: int, kind: Any) -> Any:
        array = self._comm.empty(count, kind)
        array.fill(0)  # so that its pages exist
        return array

    def close(self) -> None:
        """Nothing: the Communicator belongs to the first library."""


class Prepared(HcclPy):
    """By a call that was prepared once, on the same buffers as HcclPy."""

    name = "prepared"

    def prepare(self, request: Request) -> Bound:
        """Prepare the collective. Raises UnsupportedError where there is no prepared form of it."""
        if request.case.name not in PREPARED:
            raise UnsupportedError(f"there is no prepared {request.case.name} in the benchmark")
        send, recv = request.buffers.send, request.buffers.recv
        target = None if request.in_place else recv
        work = self._comm.prepare_all_reduce(send, target, op=request.op)
        return Bound(work.run, recv)

    def close(self) -> None:
        """Nothing: the Communicator belongs to the first library."""


PREPARED = ("all_reduce",)
