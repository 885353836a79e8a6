"""PowerSGD (Vogels, Karimireddy, Jaggi 2019): a matrix as the product of two thin ones, by one step of power iteration.

P = M Q, summed over ranks and made orthonormal; Q = M^T P, summed; the result is P Q^T. Q is kept for the next step
(warm start). Both sums are of the codes themselves. Everything after the sums is in a fixed order of elementwise
operations, so that all ranks get the same bits whatever their CPU.
"""

from __future__ import annotations

import math

import numpy as np

from hccl_py.compression.codec import Array, Codec, CodecId
from hccl_py.compression.counter import Draw, units
from hccl_py.core.errors import ConfigError, TransportError


class PowerSgd(Codec):
    """Rank ``rank`` of each matrix; 32 * rank * (1/rows + 1/columns) bits an element."""

    id = CodecId.POWERSGD
    sums_encoded = True  # of each factor, see above

    def __init__(self, rank: float = 4) -> None:
        if rank != int(rank) or not 1 <= rank <= 64:
            raise ConfigError(f"powersgd: the rank {rank} is not a whole number of 1 to 64")
        self.rank = int(rank)
        self.number = float(rank)
        self.bits_per_element = 64.0 * self.rank / 1024  # of a square matrix of a million elements

    @property
    def text(self) -> str:
        """ "powersgd:4"."""
        return f"powersgd:{self.rank}"

    def shape_of(self, count: int) -> tuple[int, int]:
        """Rows and columns of an array of ``count`` elements that says none: about square, filled with zeros."""
        rows = math.isqrt(count)
        return rows, -(-count // rows) if rows else 0

    def start(self, columns: int, draw: Draw) -> Array:
        """The first Q, float32 [columns, rank]: the same on all ranks."""
        key = Draw(draw.seed, draw.parameter, 0, -1).key
        first: Array = (units(key, 0, columns * self.rank) - np.float32(0.5)).reshape(columns, self.rank)
        return first

    def project(self, matrix: Array, q: Array) -> Array:
        """P = M Q, float32 [rows, rank]."""
        product: Array = matrix @ q
        return product

    def back(self, matrix: Array, p: Array) -> Array:
        """Q = M^T P, float32 [columns, rank]."""
        product: Array = matrix.T @ p
        return product

    def expand(self, p: Array, q: Array) -> Array:
        """P Q^T, float32 [rows, columns], summed column by column."""
        out = p[:, :1] * q[:, 0]
        for k in range(1, p.shape[1]):
            out = out + p[:, k : k + 1] * q[:, k]
        return out

    def wire_bytes(self, count: int) -> int:
        """Exact, of the shape that :meth:`shape_of` gives."""
        return 4 * self.rank * sum(self.shape_of(count))

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """P, then Q, of this rank alone."""
        rows, columns = self.shape_of(len(values))
        if not rows:
            return np.zeros(0, np.uint8)
        matrix = np.zeros((rows, columns), np.float32)
        matrix.reshape(-1)[: len(values)] = values
        with np.errstate(all="ignore"):
            p = orthonormal(self.project(matrix, self.start(columns, draw)))
            q = self.back(matrix, p)
        return np.concatenate([p.reshape(-1), q.reshape(-1)]).astype(np.float32).view(np.uint8)

    def decode(self, code: Array, count: int) -> Array:
        """The product."""
        if len(code) != self.wire_bytes(count):
            raise TransportError(f"{self.text}: {len(code)} bytes are no code of {count} elements")
        rows, columns = self.shape_of(count)
        if not rows:
            return np.zeros(0, np.float32)
        factors = np.ascontiguousarray(code).view(np.float32)
        p, q = factors[: rows * self.rank], factors[rows * self.rank :]
        with np.errstate(all="ignore"):
            return self.expand(p.reshape(rows, -1), q.reshape(columns, -1)).reshape(-1)[:count]

    def error_bound(self, values: Array) -> Array:
        """The norm of the matrix, and what float32 adds: a projection loses no more than all."""
        with np.errstate(all="ignore"):
            norm = float(np.sqrt(np.sum(values.astype(np.float64) ** 2))) * (1 + 1e-3)
        most = norm if math.isfinite(norm) and norm < 1e30 else math.inf
        return np.full(len(values), max(most, 1e-30))


def orthonormal(p: Array) -> Array:
    """The columns of P by modified Gram-Schmidt in float64, float32 [rows, k]; a column that vanishes becomes zero."""
    columns = p.astype(np.float64)
    for k in range(columns.shape[1]):
        before = _dot(columns[:, k], columns[:, k])
        for j in range(k):
            columns[:, k] -= _dot(columns[:, j], columns[:, k]) * columns[:, j]
        norm = math.sqrt(_dot(columns[:, k], columns[:, k]))
        columns[:, k] *= 1 / norm if norm > 1e-7 * math.sqrt(before) and norm > 1e-300 else 0.0
    return columns.astype(np.float32)


def _dot(a: Array, b: Array) -> float:
    """Summed from left to right: np.dot's order depends on the CPU."""
    return float(np.cumsum(a * b)[-1])
