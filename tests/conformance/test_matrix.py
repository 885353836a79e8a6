"""The conformance matrix: transport x world x elements x element type x operator x in place or not, all collectives.

Every buffer lies between guard elements, one element off its alignment; inputs must be unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from conformance_oracle import NUMPY, REDUCTIONS, Array, Expected, bits, inputs
from conformance_ranks import TRANSPORTS

from hccl_py.communicator import Communicator
from hccl_py.core.types import Collective, DType, Order, ReduceOp

WORLDS = (1, 2, 3, 4, 7)
ELEMENTS = (0, 1, 3, 1000, 65537)
MOVED = (DType.FLOAT64, DType.INT32, DType.BFLOAT16, DType.FLOAT8_E5M2, DType.BOOL)  # each size of element


class Case(NamedTuple):
    """One call: the arguments that are the same on all ranks."""

    collective: Collective
    dtype: DType
    op: ReduceOp
    in_place: bool


class Guarded:
    """An array with an element on either side that nobody may write."""

    def __init__(self, count: int, kind: Any) -> None:
        self._whole = np.zeros(count + 2, kind)
        self._whole.view(np.uint8)[:] = 0x5B if self._whole.dtype != np.bool_ else 1
        self.data = self._whole[1:-1]

    def broken(self) -> bool:
        """True if a guard element was written."""
        edges = np.ascontiguousarray(self._whole[[0, -1]]).view(np.uint8)
        return bool((edges != (0x5B if self._whole.dtype != np.bool_ else 1)).any())


@lru_cache(maxsize=1)  # the transports come one after the other, with the same world and elements
def expected(world: int, elements: int) -> dict[tuple[DType, ReduceOp], Expected]:
    """Inputs and results of all reductions."""
    made: dict[tuple[DType, ReduceOp], Expected] = {}
    for dtype, op in REDUCTIONS:
        twin = made.get((dtype, ReduceOp.SUM)) if op is not ReduceOp.PROD else None
        given = twin.given if twin is not None else inputs(dtype, op, elements, world)
        made[dtype, op] = Expected(dtype, op, given)
    return made


def cases(transport: str, world: int, elements: int) -> Iterator[Case]:
    """All calls for one world and number of elements. Each reduction both in place and not; where that would take
    long (over tcp, and large buffers in the largest world) either or, in turns.
    """
    brief = transport == "tcp" or (world == max(WORLDS) and elements == max(ELEMENTS))
    for number, (dtype, op) in enumerate(REDUCTIONS):
        for shift, collective in enumerate((Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)):
            for in_place in (False, True):
                if not brief or in_place == bool((number + number // 5 + shift) % 2):
                    yield Case(collective, dtype, op, in_place)
    for dtype in MOVED:
        for collective in Collective:
            if not collective.reduces and collective is not Collective.BARRIER:
                yield from (Case(collective, dtype, ReduceOp.SUM, in_place) for in_place in (False, True))


class Checker:
    """Runs cases on one rank and says what is wrong with what came out."""

    def __init__(self, comm: Communicator, elements: int, canonical: Callable[[Case], bool]) -> None:
        self._comm = comm
        self._rank, self._world, self._count = comm.rank, comm.size, elements
        self._root = comm.size // 2
        self._expected = expected(comm.size, elements)
        self._canonical = canonical

    def run(self, case: Case) -> str:
        """ "" if all is well."""
        reference = self._expected[case.dtype, case.op]
        run = {
            Collective.ALL_REDUCE: self._all_reduce,
            Collective.REDUCE: self._reduce,
            Collective.REDUCE_SCATTER: self._reduce_scatter,
            Collective.BROADCAST: self._broadcast,
            Collective.ALL_GATHER: self._all_gather,
            Collective.ALL_TO_ALL: self._all_to_all,
            Collective.GATHER: self._gather,
            Collective.SCATTER: self._scatter,
        }[case.collective]
        return run(case, reference)

    def _buffer(self, case: Case, blocks: int) -> Guarded:
        return Guarded(blocks * self._count, NUMPY[case.dtype])

    def _filled(self, case: Case, data: Array) -> Guarded:
        buffer = Guarded(data.size, NUMPY[case.dtype])
        buffer.data[:] = data
        return buffer

    def _blocks(self, reference: Expected, rank: int) -> Array:
        """``world`` different blocks of ``rank``: block b is its input rolled by b elements."""
        return np.concatenate([np.roll(reference.given[rank], b) for b in range(self._world)])

    def _all_reduce(self, case: Case, reference: Expected) -> str:
        send = self._filled(case, reference.given[self._rank])
        recv = send if case.in_place else self._buffer(case, 1)
        self._comm.all_reduce(send.data, None if case.in_place else recv.data, case.op)
        wrong = reference.check(recv.data, self._canonical(case))
        return wrong or self._untouched(case, send, recv, reference.given[self._rank])

    def _reduce(self, case: Case, reference: Expected) -> str:
        send = self._filled(case, reference.given[self._rank])
        root = self._rank == self._root
        recv = send if case.in_place or not root else self._buffer(case, 1)
        self._comm.reduce(send.data, None if recv is send else recv.data, case.op, self._root)
        wrong = reference.check(recv.data, self._canonical(case)) if root else ""
        return wrong or self._untouched(
            case._replace(in_place=case.in_place and root), send, recv, reference.given[self._rank]
        )

    def _reduce_scatter(self, case: Case, reference: Expected) -> str:
        blocks = self._blocks(reference, self._rank)
        send = self._filled(case, blocks)
        recv = self._buffer(case, 1)
        begin, end = self._rank * self._count, (self._rank + 1) * self._count
        out = send.data[begin:end] if case.in_place else recv.data
        self._comm.reduce_scatter(send.data, out, case.op)
        wrong = reference.check(out, self._canonical(case), shift=self._rank)
        if case.in_place and not wrong:
            blocks[begin:end] = send.data[begin:end]
        return wrong or self._untouched(case._replace(in_place=False), send, recv, blocks)

    def _broadcast(self, case: Case, reference: Expected) -> str:
        buffer = self._filled(case, reference.given[self._rank])
        self._comm.broadcast(buffer.data, self._root)
        return self._same(buffer, reference.given[self._root])

    def _all_gather(self, case: Case, reference: Expected) -> str:
        send, recv = self._filled(case, reference.given[self._rank]), self._buffer(case, self._world)
        self._comm.all_gather(self._own_block(case, send, recv), recv.data)
        return self._same(recv, np.concatenate(reference.given)) or self._untouched(
            case._replace(in_place=False), send, recv, reference.given[self._rank]
        )

    def _gather(self, case: Case, reference: Expected) -> str:
        send, recv = self._filled(case, reference.given[self._rank]), self._buffer(case, self._world)
        root = self._rank == self._root
        given = self._own_block(case, send, recv) if root else send.data
        self._comm.gather(given, recv.data if root else None, self._root)
        return (self._same(recv, np.concatenate(reference.given)) if root else "") or self._untouched(
            case._replace(in_place=False), send, recv, reference.given[self._rank]
        )

    def _own_block(self, case: Case, send: Guarded, recv: Guarded) -> Array:
        """The input: ``send``, or in place the block of this rank in ``recv``."""
        if not case.in_place:
            return send.data
        block = recv.data[self._rank * self._count : (self._rank + 1) * self._count]
        block[:] = send.data
        return block

    def _scatter(self, case: Case, reference: Expected) -> str:
        root = self._rank == self._root
        blocks = self._blocks(reference, self._root)
        send, recv = self._filled(case, blocks), self._buffer(case, 1)
        begin, end = self._rank * self._count, (self._rank + 1) * self._count
        out = send.data[begin:end] if case.in_place and root else recv.data
        self._comm.scatter(send.data if root else None, out, self._root)
        if not np.array_equal(bits(out), bits(blocks[begin:end])):
            return "the block is wrong"
        return self._untouched(case._replace(in_place=False), send, recv, blocks)

    def _all_to_all(self, case: Case, reference: Expected) -> str:
        blocks = self._blocks(reference, self._rank)
        send = self._filled(case, blocks)
        recv = send if case.in_place else self._buffer(case, self._world)
        self._comm.all_to_all(send.data, recv.data)
        want = np.concatenate([np.roll(given, self._rank) for given in reference.given])
        return self._same(recv, want) or self._untouched(case, send, recv, blocks)

    def _same(self, buffer: Guarded, want: Array) -> str:
        wrong = bits(buffer.data) != bits(want)
        if wrong.any():
            return f"{np.count_nonzero(wrong)} of {want.size} elements are wrong, first [{int(np.argmax(wrong))}]"
        return "written beyond its end" if buffer.broken() else ""

    def _untouched(self, case: Case, send: Guarded, recv: Guarded, given: Array) -> str:
        if not case.in_place and not np.array_equal(bits(send.data), bits(given)):
            return "the input was changed"
        return "written beyond its end" if send.broken() or recv.broken() else ""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("world", WORLDS)
def test_matrix(groups: Any, transport: str, world: int, elements: int) -> None:
    ranks = groups.get(transport, world)
    todo = list(cases(transport, world, elements))
    expected(world, elements)  # once, before the threads ask for it
    planner = ranks.comms[0].engine.planner
    canonical = {
        (collective, dtype): row.plan.order is Order.CANONICAL
        for collective in Collective
        if collective.reduces
        for table in [planner.table(collective, world // 2 if collective.rooted else 0)]
        for dtype in DType
        for row in [table.choose(elements * dtype.itemsize)]
    }

    def check(comm: Communicator) -> list[str]:
        checker = Checker(comm, elements, lambda case: canonical[case.collective, case.dtype])
        found = []
        for case in todo:
            wrong = checker.run(case)
            if wrong:
                place = "in place" if case.in_place else "out of place"
                what = f"{case.collective.name} {case.op.name} {case.dtype.name} {place}"
                found.append(f"rank {comm.rank}, {what}: {wrong}")
        comm.barrier()
        return found

    found = [wrong for wrongs in ranks.run(check) for wrong in wrongs]
    groups.covered(transport, len(todo))
    assert not found, f"{len(found)} wrong results:\n" + "\n".join(found[:20])


def test_every_reduction_is_in_every_part_of_the_matrix() -> None:
    for transport, world, elements in product(TRANSPORTS, WORLDS, ELEMENTS):
        todo = list(cases(transport, world, elements))
        assert len({(case.collective, case.dtype, case.op) for case in todo if case.collective.reduces}) == 3 * 93
        for collective in set(Collective) - {Collective.BARRIER}:
            assert {case.in_place for case in todo if case.collective is collective} == {False, True}
        for op in ReduceOp:
            assert {case.in_place for case in todo if case.op is op} == {False, True}
