"""What reductions do with special values: NaN, infinity, overflow, zero, bool."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance_oracle import NUMPY, bits

from hccl_py import ConfigError
from hccl_py.communicator import Communicator
from hccl_py.core.types import DType, ReduceOp

FLOATS = [dtype for dtype in DType if dtype.is_float]
SIZES = (1, 5, 70, 40_000)  # one element, a tail, vectors, and more than goes by shared slots


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_any_rank_propagates(groups: Any, transport: str, dtype: DType, op: ReduceOp) -> None:
    def reduce(comm: Communicator) -> bool:
        good = True
        for size in SIZES:
            for culprit in range(comm.size):
                data = np.full(size, comm.rank + 1, NUMPY[dtype])
                if comm.rank == culprit:
                    data[size // 2] = np.nan
                comm.all_reduce(data, op=op)
                wide = data.astype(np.float64)
                want = np.full(size, 1.0 if op is ReduceOp.MIN else float(comm.size))
                want[size // 2] = np.nan
                good &= np.array_equal(wide, want, equal_nan=True)
        return good

    assert all(groups.get(transport, 3).run(reduce))


def test_average_of_large_half_floats_does_not_overflow(groups: Any, transport: str) -> None:
    def average(comm: Communicator) -> set[float]:
        seen: set[float] = set()
        for size in SIZES:
            data = np.full(size, 60000, np.float16)
            comm.all_reduce(data, op=ReduceOp.AVG)
            seen.update(data.astype(np.float64))
            out = np.zeros(size, np.float16)
            comm.reduce_scatter(np.full(3 * size, 60000, np.float16), out, op=ReduceOp.AVG)
            seen.update(out.astype(np.float64))
        return seen

    assert groups.get(transport, 3).run(average) == [{60000.0}] * 3


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    [
        (np.float16, 40000, np.inf),
        (ml_dtypes.float8_e5m2, 50000, np.inf),
        (ml_dtypes.float8_e4m3fn, 400, np.nan),  # has no infinity
        (np.float32, 3e38, np.inf),
        (np.float64, -1.7e308, -np.inf),
    ],
)
def test_a_sum_out_of_range_is_infinite_or_nan(
    groups: Any, transport: str, kind: Any, value: float, want: float
) -> None:
    def add(comm: Communicator) -> list[float]:
        data = np.full(100, value, kind)
        comm.all_reduce(data)
        return sorted(set(data.astype(np.float64)[:1]))

    for found in groups.get(transport, 2).run(add):
        np.testing.assert_equal(found, [want])


def test_integers_wrap(groups: Any, transport: str) -> None:
    def add(comm: Communicator) -> tuple[int, int, int]:
        small, large = np.full(9, 200, np.uint8), np.full(9, 2**63 - 1, np.int64)
        product = np.full(9, 2**40, np.uint64)
        comm.all_reduce(small)
        comm.all_reduce(large)
        comm.all_reduce(product, op=ReduceOp.PROD)
        return int(small[0]), int(large[0]), int(product[0])

    assert groups.get(transport, 2).run(add) == [(144, -2, 0)] * 2


def test_integers_are_ordered_by_their_sign(groups: Any, transport: str) -> None:
    def order(comm: Communicator) -> tuple[int, int]:
        signed = np.array([-1 if comm.rank else 1], np.int64)
        unsigned = np.array([2**63 + 5 if comm.rank else 1], np.uint64)
        comm.all_reduce(signed, op=ReduceOp.MAX)
        comm.all_reduce(unsigned, op=ReduceOp.MAX)
        return int(signed[0]), int(unsigned[0])

    assert groups.get(transport, 2).run(order) == [(1, 2**63 + 5)] * 2


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_float])
def test_average_of_integers_is_refused_and_nothing_changes(groups: Any, transport: str, dtype: DType) -> None:
    def average(comm: Communicator) -> tuple[str, bool]:
        data = np.ones(1000, NUMPY[dtype])
        before = data.copy()
        message = ""
        try:
            comm.all_reduce(data, op=ReduceOp.AVG)
        except ConfigError as error:
            message = str(error)
        comm.all_reduce(np.ones(3, np.float32), op=ReduceOp.AVG)  # the group goes on
        return message, np.array_equal(data, before)

    for message, untouched in groups.get(transport, 2).run(average):
        assert "avg is not defined on" in message and untouched


@pytest.mark.parametrize("op", [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR])
def test_bitwise_on_floats_is_refused(groups: Any, op: ReduceOp) -> None:
    def reduce(comm: Communicator) -> None:
        with pytest.raises(ConfigError, match="is not defined on float32"):
            comm.iall_reduce(np.ones(4, np.float32), op=op)

    groups.get("shm", 2).run(reduce)


@pytest.mark.parametrize(
    ("op", "table"),
    [
        (ReduceOp.SUM, [0, 1, 1, 1]),
        (ReduceOp.MAX, [0, 1, 1, 1]),
        (ReduceOp.BOR, [0, 1, 1, 1]),
        (ReduceOp.PROD, [0, 0, 0, 1]),
        (ReduceOp.MIN, [0, 0, 0, 1]),
        (ReduceOp.BAND, [0, 0, 0, 1]),
        (ReduceOp.BXOR, [0, 1, 1, 0]),
    ],
)
def test_bool_is_logical(groups: Any, transport: str, op: ReduceOp, table: list[int]) -> None:
    def reduce(comm: Communicator) -> list[int]:
        data = np.array([[0, 0, 1, 1], [0, 1, 0, 1]][comm.rank], np.bool_)
        comm.all_reduce(data, op=op)
        return bits(data).tolist()

    assert groups.get(transport, 2).run(reduce) == [table] * 2


def test_a_world_of_one_changes_nothing(groups: Any, transport: str) -> None:
    def reduce(comm: Communicator) -> bool:
        data = np.array([0.0, -0.0, np.nan, np.inf, 60000, 1e-8], np.float16)
        before = bits(data).copy()
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
            comm.all_reduce(data, op=op)
        return np.array_equal(bits(data), before)

    assert groups.get(transport, 1).run(reduce) == [True]
