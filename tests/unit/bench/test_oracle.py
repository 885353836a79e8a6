"""The cases and the oracle against a plain NumPy implementation of every collective, and against planted mistakes."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

from hccl_py.bench.cases import CASES, Buffers
from hccl_py.bench.dtypes import numpy_dtype
from hccl_py.bench.oracle import PERIOD, Oracle
from hccl_py.core.types import DType, ReduceOp, allowed

FOLDS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip


def fold(inputs: list[Any], op: ReduceOp, dtype: DType) -> Any:
    wide = [value.astype(np.float64) for value in inputs] if dtype.is_float else inputs
    total = reduce(FOLDS[op], wide)
    return (total / len(inputs) if op is ReduceOp.AVG else total).astype(inputs[0].dtype)


def play(oracle: Oracle, in_place: bool) -> list[Buffers]:
    """Fill the buffers of all ranks and do the collective by hand."""
    case, n, root, count = oracle.case, oracle.n, oracle.root, oracle.count
    kind = numpy_dtype(oracle.dtype)
    ranks = [Buffers.allocate(case, kind, count, rank, n, root, in_place) for rank in range(n)]
    for rank, buffers in enumerate(ranks):
        oracle.fill(buffers, rank)
    sent = [None if buffers.send is None else buffers.send.copy() for buffers in ranks]
    for rank, buffers in enumerate(ranks):
        if buffers.recv is None or not case.has_output(rank, root):
            continue
        block = slice(rank * count, (rank + 1) * count)
        result = {
            "all_reduce": lambda: fold(sent, oracle.op, oracle.dtype),
            "reduce": lambda: fold(sent, oracle.op, oracle.dtype),
            "broadcast": lambda: sent[root],
            "all_gather": lambda: np.concatenate(sent),
            "gather": lambda: np.concatenate(sent),
            "reduce_scatter": lambda block=block: fold([value[block] for value in sent], oracle.op, oracle.dtype),
            "all_to_all": lambda block=block: np.concatenate([value[block] for value in sent]),
            "scatter": lambda block=block: sent[root][block],
            "sendrecv": lambda rank=rank: sent[(rank - 1) % n],
        }[case.name]()
        buffers.recv[:] = result
    return ranks


def wrong(oracle: Oracle, ranks: list[Buffers]) -> int:
    return sum(oracle.count_wrong(buffers.recv, rank) for rank, buffers in enumerate(ranks))


MOVERS = [name for name in CASES if name != "barrier"]


@pytest.mark.parametrize("name", MOVERS)
@pytest.mark.parametrize(("n", "count"), [(1, 5), (2, 1), (3, PERIOD + 3), (4, 5), (7, 1), (7, 50)])
def test_right_results_count_as_right(name: str, n: int, count: int) -> None:
    case = CASES[name]
    for in_place in (place for place, there in ((False, case.out_of_place), (True, case.in_place)) if there):
        oracle = Oracle(case, DType.FLOAT32, ReduceOp.SUM, n - 1 if case.rooted else 0, count, n)
        assert wrong(oracle, play(oracle, in_place)) == 0


@pytest.mark.parametrize(("dtype", "op"), [(dtype, op) for dtype in DType for op in ReduceOp if allowed(op, dtype)])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_types_and_operators(dtype: DType, op: ReduceOp, n: int) -> None:
    for name in ("all_reduce", "reduce_scatter"):
        oracle = Oracle(CASES[name], dtype, op, 0, 100, n)
        assert wrong(oracle, play(oracle, False)) == 0


@pytest.mark.parametrize("name", MOVERS)
def test_one_wrong_element_is_counted(name: str) -> None:
    case, count, n = CASES[name], PERIOD + 100, 3
    oracle = Oracle(case, DType.FLOAT32, ReduceOp.SUM, 1 if case.rooted else 0, count, n)
    ranks = play(oracle, not case.out_of_place)
    target = next(
        b.recv for rank, b in enumerate(ranks) if b.recv is not None and case.has_output(rank, oracle.root) and rank > 0
    )
    target[PERIOD + 7] += np.float32(0.125)
    assert wrong(oracle, ranks) == 1


@pytest.mark.parametrize("name", ["all_gather", "gather", "all_to_all"])
def test_swapped_blocks_are_wrong(name: str) -> None:
    oracle = Oracle(CASES[name], DType.INT32, ReduceOp.SUM, 0, 64, 3)
    ranks = play(oracle, False)
    first = ranks[0].recv
    assert first is not None
    first[:128] = np.concatenate([first[64:128], first[:64]])
    assert wrong(oracle, ranks) > 100


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX])
def test_nan_and_a_missing_contribution_are_wrong(dtype: DType, op: ReduceOp) -> None:
    oracle = Oracle(CASES["all_reduce"], dtype, op, 0, 1000, 2)
    ranks = play(oracle, False)
    first = ranks[0].recv
    assert first is not None and ranks[0].send is not None
    first[3] = np.nan
    assert wrong(oracle, ranks) == 1
    first[:] = ranks[0].send  # only its own part: as if nothing had come
    assert wrong(oracle, ranks) > 200


def test_untouched_receive_buffer_is_wrong() -> None:
    for name in MOVERS:
        case = CASES[name]
        oracle = Oracle(case, DType.FLOAT64, ReduceOp.SUM, 0, 1000, 3)
        buffers = Buffers.allocate(
            case, numpy_dtype(DType.FLOAT64), 1000, 0 if case.root_only_output else 1, 3, 0, not case.out_of_place
        )
        oracle.fill(buffers, 0 if case.root_only_output else 1)
        assert oracle.count_wrong(buffers.recv, 0 if case.root_only_output else 1) > 500


@pytest.mark.parametrize(
    ("name", "n", "algbw_bytes", "factor"),
    [
        # size and factor as nccl-tests has them: bytes that algbw counts for 1,024 B, and busbw / algbw
        ("all_reduce", 4, 1024, 1.5),
        ("reduce", 4, 1024, 1.0),
        ("broadcast", 4, 1024, 1.0),
        ("all_gather", 4, 1024, 0.75),
        ("reduce_scatter", 4, 1024, 0.75),
        ("all_to_all", 4, 1024, 0.75),
        ("gather", 4, 1024, 0.75),
        ("scatter", 4, 1024, 0.75),
        ("sendrecv", 4, 1024, 1.0),
        ("all_gather", 3, 1020, 2 / 3),
    ],
)
def test_sizes_and_factors_are_those_of_nccl_tests(name: str, n: int, algbw_bytes: int, factor: float) -> None:
    case = CASES[name]
    count = case.count(1024, 4, n)
    assert case.size_bytes(count, 4, n) == algbw_bytes
    assert case.bus_factor(n) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("name", "rank", "offset"),
    [
        ("all_gather", 2, "send"),
        ("gather", 2, "send"),
        ("reduce_scatter", 2, "recv"),
        ("scatter", 2, "recv"),
        ("all_reduce", 1, None),
    ],
)
def test_in_place_buffers_overlap_as_the_collective_has_it(name: str, rank: int, offset: str | None) -> None:
    buffers = Buffers.allocate(CASES[name], np.dtype(np.float32), 10, rank, 4, rank, True)
    send, recv = buffers.send, buffers.recv
    assert send is not None and recv is not None and np.shares_memory(send, recv)
    distance = {"send": send.ctypes.data - recv.ctypes.data, "recv": recv.ctypes.data - send.ctypes.data}
    assert (distance[offset] == rank * 40) if offset else send.ctypes.data == recv.ctypes.data
