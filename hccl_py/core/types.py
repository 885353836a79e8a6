"""The words that cross every border: collectives, element types, reduction operators.

The numbers are the same in native/include/hccl_py/types.hpp; tests/architecture/test_enum_parity.py compares them.
"""

from __future__ import annotations

from enum import IntEnum


class Collective(IntEnum):
    """What a plan computes. The comment gives the blocks of INPUT and OUTPUT (n = world size, "-" = none)."""

    ALL_REDUCE = 0  # one block in, one block out
    REDUCE = 1  # one in; one out at the root
    BROADCAST = 2  # one in at the root; one out everywhere
    ALL_GATHER = 3  # one in; n out
    REDUCE_SCATTER = 4  # n in; one out
    ALL_TO_ALL = 5  # n in; n out
    GATHER = 6  # one in; n out at the root
    SCATTER = 7  # n in at the root; one out
    BARRIER = 8  # - ; -

    @property
    def reduces(self) -> bool:
        """True if the collective combines elements with a :class:`ReduceOp`."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)

    @property
    def rooted(self) -> bool:
        """True if one rank plays a part of its own."""
        return self in (Collective.REDUCE, Collective.BROADCAST, Collective.GATHER, Collective.SCATTER)


class DType(IntEnum):
    """Element types of the engine."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4  # the "fn" variant: no infinity, overflow becomes NaN
    FLOAT8_E5M2 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    UINT8 = 10
    UINT16 = 11
    UINT32 = 12
    UINT64 = 13
    BOOL = 14

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        """True for the floating-point types, 8 to 64 bits wide."""
        return self <= DType.FLOAT8_E5M2


_ITEMSIZE = dict(zip(DType, (8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1), strict=True))


class ReduceOp(IntEnum):
    """Reduction operators. Which of them an element type admits: :func:`allowed`."""

    SUM = 0
    AVG = 1
    PROD = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


def allowed(op: ReduceOp, dtype: DType) -> bool:
    """True if ``op`` is defined on ``dtype``: AVG on floats only, bitwise on integers and bool only."""
    if op is ReduceOp.AVG:
        return dtype.is_float
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        return not dtype.is_float
    return True


class Order(IntEnum):
    """In which order a plan adds up: it decides whether results depend on sizes and partitions."""

    CANONICAL = 0  # left fold by rank, one rounding at the end
    FREE = 1  # any order; partial results may be rounded on the way
