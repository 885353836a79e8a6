"""The oracle: inputs of each rank, what must come out, and how far a result may be from it.

Canonical plans: the bits of one left fold over the ranks in the accumulation type (float64 for float64, float32 for all
other floats; an average scales each contribution first), rounded once to the element type.

Free plans add in any order and may round a partial result to the element type each time it is sent. With n ranks and
the unit roundoff u of the element type, a sum is off by at most (n + 2) u times the sum of the magnitudes, an average
by that of its n-th part, a product by (2 n + 2) u of itself; besides n times the smallest number. Integers wrap in any
order; MIN, MAX and bitwise operators are exact in any order.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hccl_py.core.types import DType, ReduceOp, allowed

Array = npt.NDArray[Any]

NUMPY: dict[DType, Any] = {
    DType.FLOAT64: np.float64,
    DType.FLOAT32: np.float32,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: ml_dtypes.bfloat16,
    DType.FLOAT8_E4M3: ml_dtypes.float8_e4m3fn,
    DType.FLOAT8_E5M2: ml_dtypes.float8_e5m2,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT8: np.uint8,
    DType.UINT16: np.uint16,
    DType.UINT32: np.uint32,
    DType.UINT64: np.uint64,
    DType.BOOL: np.bool_,
}
REDUCTIONS = [(dtype, op) for dtype in DType for op in ReduceOp if allowed(op, dtype)]


def accumulator(dtype: DType) -> Any:
    """The NumPy type in which the engine adds."""
    return np.float64 if dtype is DType.FLOAT64 else np.float32 if dtype.is_float else NUMPY[dtype]


def inputs(dtype: DType, op: ReduceOp, count: int, world: int, seed: int = 0) -> list[Array]:
    """What each rank gives: full range for integers; for floats, values whose results are in range and not zero."""
    rng = np.random.default_rng([seed, dtype, op is ReduceOp.PROD, count, world])
    kind = NUMPY[dtype]
    if dtype is DType.BOOL:
        return [rng.integers(0, 2, count).astype(kind) for _ in range(world)]
    if not dtype.is_float:
        unsigned = [rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8) for _ in range(world)]
        return [data.view(kind) for data in unsigned]
    low, high = (0.75, 1.5) if op is ReduceOp.PROD else (0.125, 4.0)
    return [(rng.uniform(low, high, count) * rng.choice([-1.0, 1.0], count)).astype(kind) for _ in range(world)]


def fold(dtype: DType, op: ReduceOp, given: list[Array]) -> Array:
    """The canonical result, bit for bit."""
    kind, wide = NUMPY[dtype], accumulator(dtype)
    if dtype is DType.BOOL:
        logical = {ReduceOp.SUM: np.logical_or, ReduceOp.MAX: np.logical_or, ReduceOp.BOR: np.logical_or,
                   ReduceOp.PROD: np.logical_and, ReduceOp.MIN: np.logical_and, ReduceOp.BAND: np.logical_and,
                   ReduceOp.BXOR: np.logical_xor}  # fmt: skip
        return np.asarray(reduce(logical[op], given))
    if len(given) == 1:
        return given[0].copy()  # nothing to fold: not even a NaN changes
    values = [value.astype(wide) for value in given]
    if op is ReduceOp.AVG:
        values = [value * wide(1.0 / len(given)) for value in values]
    combine: dict[ReduceOp, Any] = {
        ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(reduce(combine[op], values)).astype(kind)


def slack(dtype: DType, op: ReduceOp, given: list[Array]) -> Array | None:
    """By how much each element of a free plan's result may differ from the float64 result; None: not at all."""
    if not dtype.is_float or op in (ReduceOp.MIN, ReduceOp.MAX) or len(given) == 1:
        return None
    info = ml_dtypes.finfo(NUMPY[dtype])
    unit, smallest, n = float(info.eps) / 2, float(info.smallest_subnormal), len(given)
    values = [value.astype(np.float64) for value in given]
    if op is ReduceOp.PROD:
        bound = (2 * n + 2) * unit * np.abs(exact(op, given))
    else:
        bound = (n + 2) * unit * np.asarray(sum(np.abs(value) for value in values)) / (n if op is ReduceOp.AVG else 1)
    return np.asarray(bound + n * smallest)


def exact(op: ReduceOp, given: list[Array]) -> Array:
    """Sum, average or product in float64."""
    values = [value.astype(np.float64) for value in given]
    if op is ReduceOp.PROD:
        return np.asarray(reduce(np.multiply, values))
    return np.asarray(reduce(np.add, values)) / (len(given) if op is ReduceOp.AVG else 1)


class Expected:
    """The result of one reduction over all ranks, to be compared with what the engine made."""

    def __init__(self, dtype: DType, op: ReduceOp, given: list[Array]) -> None:
        self.given = given
        self.bits = bits(fold(dtype, op, given))
        self._slack = slack(dtype, op, given)
        self._exact = exact(op, given) if self._slack is not None else None

    def check(self, got: Array, canonical: bool, shift: int = 0) -> str:
        """ "" if ``got`` may be the result (rolled by ``shift`` elements), else what is wrong with it."""
        want = np.roll(self.bits, shift)
        same = bits(got) == want
        if same.all():
            return ""
        if not canonical and self._slack is not None and self._exact is not None:
            distance = np.abs(got.astype(np.float64) - np.roll(self._exact, shift))
            same = distance <= np.roll(self._slack, shift)  # False for a NaN, too
            if same.all():
                return ""
        first = int(np.argmin(same))
        return (
            f"{np.count_nonzero(~same)} of {got.size} elements are wrong, first [{first}]: {got[first]!r}, "
            f"want {want.view(got.dtype)[first]!r}" + (" exactly" if canonical else "")
        )


def bits(array: Array) -> Array:
    """The elements as unsigned integers, so that NaN equals NaN and 0 is not -0."""
    return array.view(f"u{array.dtype.itemsize}")
