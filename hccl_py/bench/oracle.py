"""The oracle: what each rank sends, what it must then receive, and how many elements are wrong.

The values repeat with a prime period, so that a block in the wrong place is noticed and yet the expected result of a
large buffer costs one period. Where the sum of all ranks is exact in the element type, the comparison is exact too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hccl_py.bench.cases import Buffers, Case
from hccl_py.bench.dtypes import Array, numpy_dtype, significant_bits
from hccl_py.core.types import DType, ReduceOp

PERIOD = 65_521
_FOLDS: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


@dataclass(frozen=True)
class Oracle:
    """Knows the inputs and outputs of one measurement: ``count`` elements a block, ``n`` ranks."""

    case: Case
    dtype: DType
    op: ReduceOp
    root: int
    count: int
    n: int

    def allocate(self, rank: int, in_place: bool) -> Buffers:
        """Make the buffers of ``rank``, in memory of this process alone."""
        return Buffers.allocate(self.case, numpy_dtype(self.dtype), self.count, rank, self.n, self.root, in_place)

    def fill(self, buffers: Buffers, rank: int) -> None:
        """Write the input of ``rank`` into its send buffer and nonsense into the rest of its receive buffer."""
        if buffers.recv is not None:
            buffers.recv.fill(1)
        if buffers.send is not None and self.case.has_input(rank, self.root):
            buffers.send[:] = np.resize(self._input(rank, 0, buffers.send.size), buffers.send.size)
        if self.case.name == "broadcast" and rank != self.root and buffers.send is not None:
            buffers.send.fill(1)

    def count_wrong(self, received: Array | None, rank: int) -> int:
        """Return how many elements of what ``rank`` received are not what they must be."""
        if self.case.name == "barrier" or received is None or not self.case.has_output(rank, self.root):
            return 0
        wrong = 0
        for block, (want, slack) in enumerate(self._expected(rank)):
            got = received[block * self.count : (block + 1) * self.count]
            for start in range(0, self.count, PERIOD):
                piece = got[start : start + PERIOD]
                wrong += _differ(piece, want[: piece.size], slack[: piece.size])
        return wrong

    def _input(self, rank: int, start: int, count: int) -> Array:
        """Return elements ``start`` to ``start + count`` (one period at most) of what ``rank`` sends."""
        index = (start + np.arange(min(count, PERIOD), dtype=np.int64)) % PERIOD
        kind = numpy_dtype(self.dtype)
        if self.dtype is DType.BOOL:
            return ((index * 5 + rank * 3) % 7 < 3).astype(kind)
        if not self.dtype.is_float:
            return (index * 2_654_435_761 + (rank + 1) * 40_503).astype(np.uint64).astype(kind)
        if self.op is ReduceOp.PROD and self.case.reduces:
            return np.exp2((index + rank) % 3 - 1).astype(kind)
        hashed = (index * 7 + (index >> 4) * 3 + rank * 5) % 17
        if significant_bits(self.dtype) < 8:
            return (hashed % 3 - 1).astype(kind)
        return ((hashed - 8) / 8).astype(kind)

    def _expected(self, rank: int) -> list[tuple[Array, Array]]:
        """Return for each block that ``rank`` receives one period of its values and of the slack they may have."""
        name, count = self.case.name, self.count
        if name in ("all_reduce", "reduce"):
            return [self._folded(0)]
        if name == "reduce_scatter":
            return [self._folded(rank * count)]
        moved = {
            "broadcast": [(self.root, 0)],
            "all_gather": [(source, 0) for source in range(self.n)],
            "gather": [(source, 0) for source in range(self.n)],
            "all_to_all": [(source, rank * count) for source in range(self.n)],
            "scatter": [(self.root, rank * count)],
            "sendrecv": [((rank - 1) % self.n, 0)],
        }[name]
        values = [self._input(source, start, count) for source, start in moved]
        return [(value, np.zeros(value.size)) for value in values]

    def _folded(self, start: int) -> tuple[Array, Array]:
        inputs = [self._input(rank, start, self.count) for rank in range(self.n)]
        if not self.dtype.is_float:
            return reduce(_FOLDS[self.op], inputs), np.zeros(inputs[0].size)
        wide = [value.astype(np.float64) for value in inputs]
        total = reduce(_FOLDS[self.op], wide)
        unit = 2.0 ** -significant_bits(self.dtype)  # of rounding, relative
        if self.op is ReduceOp.AVG:
            # scaled before it is added: n roundings of the products and n of the sums, at worst
            magnitude = reduce(np.add, [np.abs(value) for value in wide]) / self.n
            return total / self.n, 2 * self.n * unit * magnitude
        if self.op is ReduceOp.SUM:
            grid = 1 if significant_bits(self.dtype) < 8 else 8
            if grid * self.n > 2 ** significant_bits(self.dtype):
                return total, self.n * unit * reduce(np.add, [np.abs(value) for value in wide])
        return total, np.zeros(total.size)


def _differ(got: Array, want: Array, slack: Array) -> int:
    if not slack.any() and got.dtype == want.dtype:
        return int(np.count_nonzero(got != want))
    distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return int(np.count_nonzero(~(distance <= slack)))  # so that NaN is wrong too
