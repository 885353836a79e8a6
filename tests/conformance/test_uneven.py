"""Blocks of different sizes, by the Engine: run_v and start_v."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hccl_py import DesyncError
from hccl_py.communicator import Communicator
from hccl_py.core.types import Collective, DType, ReduceOp

COUNTS = {  # elements by rank
    "small": [2, 0, 5],
    "all in one": [0, 0, 40_000],
    "large": [30_000, 1, 70_001],
    "nothing": [0, 0, 0],
    "equal": [7, 7, 7],
}


def run(
    comm: Communicator,
    collective: Collective,
    a: Any,
    a_counts: list[int],
    b: Any,
    b_counts: list[int],
    root: int = 0,
    op: ReduceOp = ReduceOp.SUM,
    started: bool = False,
) -> None:
    """One call on float32 arrays; None where this rank has no buffer."""
    pointers = [0 if array is None else array.ctypes.data for array in (a, b)]
    arguments = (collective, op, DType.FLOAT32, root, pointers[0], a_counts, pointers[1], b_counts)
    if started:
        comm.engine.start_v(*arguments, keep=(a, b)).wait()
    else:
        comm.engine.run_v(*arguments)


def numbers(count: int, start: int) -> Any:
    return np.arange(start, start + count, dtype=np.float32)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=list(COUNTS))
def test_all_gather_and_gather(groups: Any, transport: str, counts: list[int], started: bool) -> None:
    def gather(comm: Communicator) -> None:
        mine = numbers(counts[comm.rank], 100 * comm.rank)
        want = np.concatenate([numbers(count, 100 * rank) for rank, count in enumerate(counts)])
        out = np.full(sum(counts), -1, np.float32)
        run(comm, Collective.ALL_GATHER, mine, [], out, counts, started=started)
        np.testing.assert_array_equal(out, want)
        out = np.full(sum(counts), -1, np.float32)
        begin = sum(counts[: comm.rank])
        block = out[begin : begin + counts[comm.rank]]
        block[:] = mine
        run(comm, Collective.ALL_GATHER, block, [], out, counts, started=started)  # in place
        np.testing.assert_array_equal(out, want)
        out[:] = -1
        run(comm, Collective.GATHER, mine, [], out if comm.rank == 2 else None, counts, root=2, started=started)
        if comm.rank == 2:
            np.testing.assert_array_equal(out, want)

    groups.get(transport, 3).run(gather)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=list(COUNTS))
def test_reduce_scatter_and_scatter(groups: Any, transport: str, counts: list[int], op: ReduceOp) -> None:
    def scatter(comm: Communicator) -> None:
        blocks = numbers(sum(counts), 0) % 64
        begin, end = sum(counts[: comm.rank]), sum(counts[: comm.rank + 1])
        out = np.full(counts[comm.rank], -1, np.float32)
        run(comm, Collective.REDUCE_SCATTER, blocks, counts, out, [], op=op)
        want = blocks[begin:end] * (3 if op is ReduceOp.SUM else 1)
        np.testing.assert_allclose(out, want, rtol=3e-7)
        out[:] = -1
        run(comm, Collective.SCATTER, blocks if comm.rank == 1 else None, counts, out, [], root=1)
        np.testing.assert_array_equal(out, blocks[begin:end])

    groups.get(transport, 3).run(scatter)


@pytest.mark.parametrize("scale", [1, 20_000])
def test_all_to_all(groups: Any, transport: str, scale: int) -> None:
    matrix = np.array([[1, 2, 0], [0, 0, 3], [4, 1, 1]]) * scale  # [from][to]

    def exchange(comm: Communicator) -> None:
        sends, receives = matrix[comm.rank].tolist(), matrix[:, comm.rank].tolist()
        data = np.concatenate([np.full(count, 10 * comm.rank + to, np.float32) for to, count in enumerate(sends)])
        out = np.full(sum(receives), -1, np.float32)
        run(comm, Collective.ALL_TO_ALL, data, sends, out, receives)
        want = np.concatenate(
            [np.full(count, 10 * rank + comm.rank, np.float32) for rank, count in enumerate(receives)]
        )
        np.testing.assert_array_equal(out, want)

    groups.get(transport, 3).run(exchange)


def test_other_sizes_than_the_others_think_are_an_error(groups: Any) -> None:
    def disagree(comm: Communicator) -> None:
        counts = [5, 6, 7] if comm.rank == 0 else [5, 7, 6]
        out = np.full(18, -1, np.float32)
        with pytest.raises(DesyncError):
            run(comm, Collective.ALL_GATHER, numbers(counts[comm.rank], 0), [], out, counts)
        assert (out == -1).all()

    groups.get("shm", 3).run(disagree)
