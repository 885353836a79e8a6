"""What a codec is: an array of floats to fewer bytes and back. Each is a file of its own beside this one.

The NumPy code here is the definition. Codecs work in float32: other element types are widened first and narrowed last
(compression/elements.py). The engine's native code gives the same bits (native/kernels/codecs/, hccl_py/codecs.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np

from hccl_py.compression.counter import Draw

Array = np.ndarray[Any, Any]


class CodecId(IntEnum):
    """Numbers of the codecs in frames; those up to SIGN are in native/include/hccl_py/codecs.hpp as well."""

    FP16 = 1
    BF16 = 2
    FP8_E4M3 = 3
    FP8_E5M2 = 4
    INT8 = 5
    INT4 = 6
    SIGN = 7
    TOPK = 8
    RANDOMK = 9
    THRESHOLD = 10
    BLOCKSPARSE = 11
    POWERSGD = 12
    LOSSLESS = 13


class Codec(ABC):
    """One way to make floats smaller. Immutable; compared by its text, which is what users write ("topk:0.01")."""

    id: ClassVar[CodecId]
    sums_encoded: ClassVar[bool] = False  # the code of a sum is the sum of the codes
    fixed_size: ClassVar[bool] = True  # wire_bytes is exact
    exact: ClassVar[bool] = False  # what was encoded comes back bit for bit
    bits_per_element: float  # on the wire, about, of long arrays
    number: float = 0.0  # of its text, after the colon

    @property
    def text(self) -> str:
        """As :func:`hccl_py.compression.codecs.parse_codec` reads it."""
        return self.id.name.lower()

    @abstractmethod
    def wire_bytes(self, count: int) -> int:
        """Bytes of the code of ``count`` elements, without a frame; where it depends on the values, the most."""

    @abstractmethod
    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """The code of float32 [n], uint8 [at most ``wire_bytes(n)``].

        ``draw`` says what random numbers are for, ``offset`` where in its parameter the array begins.
        """

    @abstractmethod
    def decode(self, code: Array, count: int) -> Array:
        """What a code stands for, float32 [count]. Raises TransportError if it cannot be one of ``count`` elements."""

    def decode_add(self, code: Array, out: Array) -> None:
        """Add what a code stands for to ``out``, float32, in float32."""
        with np.errstate(all="ignore"):
            out += self.decode(code, len(out))

    @abstractmethod
    def error_bound(self, values: Array) -> Array:
        """The most by which an element may be wrong after encode and decode, float [n]; infinite where not finite."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Codec({self.text})"


def kept(fraction: float, count: int) -> int:
    """How many of ``count`` a fraction keeps: rounded up, and one at least where there is one."""
    return min(count, max(1, math.ceil(fraction * count))) if count else 0


def bound_of_dropped(values: Array) -> Array:
    """:meth:`Codec.error_bound` where an element is either kept or dropped, float64 [n]."""
    bound: Array = np.where(np.isfinite(values), np.abs(values.astype(np.float64)), np.inf)
    return bound
