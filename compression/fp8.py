"""float8, e4m3 and e5m2 (Micikevicius et al. 2022), with a power of two for each block so that nothing overflows.

The block's largest is moved to the binade below the format's largest; the shift is kept in one byte before the codes.
A block with an infinity or a NaN is NaN altogether, so that it is seen.
"""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import INFINITY_BITS, BlockCodec, largest, magnitudes
from hccl_py.compression.codec import Array, CodecId

_MOST_SHIFT = 120
_BAD = -128


class Fp8(BlockCodec):
    """8 bits an element, and a byte a block. ``exponent_bits``, ``mantissa_bits`` and ``top`` make the two formats."""

    def __init__(self, id: CodecId, mantissa_bits: int, top: int) -> None:
        self.id = id  # type: ignore[misc]
        self._mantissa_bits = mantissa_bits
        self._top = top  # exponent to which the block's largest is moved
        self._least = 1 - (15 if mantissa_bits == 2 else 7)  # exponent of the smallest normal number
        self._values = self._table()

    def _table(self) -> Array:
        """What each code of 0..255 stands for."""
        code = np.arange(256)
        exponent = (code & 127) >> self._mantissa_bits
        fraction = (code & ((1 << self._mantissa_bits) - 1)) / (1 << self._mantissa_bits)
        size = np.where(
            exponent == 0, fraction * 2.0**self._least, (1 + fraction) * 2.0 ** (exponent + self._least - 1.0)
        )
        if self._mantissa_bits == 2:
            size = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), size)
        else:
            size = np.where(code & 127 == 127, np.nan, size)
        return np.copysign(size, np.where(code < 128, 1.0, -1.0)).astype(np.float32)

    def block_bytes(self, count: int) -> int:
        """The shift and the codes."""
        return 1 + count

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """Shift, then the nearest code, to even."""
        top = magnitudes(blocks)
        bad = top >= INFINITY_BITS
        shift = np.minimum(self._top - ((top >> np.uint32(23)).astype(np.int32) - 127), _MOST_SHIFT)
        shift = np.where(bad, 0, shift)
        moved = np.where(bad, np.copysign(np.float32(0), np.float32(1)), blocks) * np.ldexp(np.float32(1), shift)
        size = np.abs(moved).astype(np.float64)
        # The unit of the last place of each number; dividing by it leaves an integer to round.
        exponent = np.where(size == 0, self._least, np.maximum(np.frexp(size)[1] - 1, self._least))
        unit = np.ldexp(1.0, exponent - self._mantissa_bits)
        steps = np.rint(size / unit).astype(np.int64)
        code = ((exponent - self._least) << self._mantissa_bits) + steps
        code |= np.where(np.signbit(moved), 128, 0)
        head = np.where(bad, _BAD, shift).astype(np.int8).view(np.uint8)
        return np.concatenate([head, code.astype(np.uint8)], axis=1)

    def decode_blocks(self, codes: Array) -> Array:
        """Look up and shift back."""
        shift = codes[:, :1].view(np.int8).astype(np.int32)
        bad = np.abs(shift) > _MOST_SHIFT
        factor = np.where(bad, np.float32(np.nan), np.ldexp(np.float32(1), np.where(bad, 0, -shift)))
        values: Array = self._values[codes[:, 1:]] * factor
        return values

    def error_bound(self, values: Array) -> Array:
        """Half a unit of the last place of the element, or of the smallest normal number after the shift."""
        top = largest(values)
        finite = np.isfinite(top)
        shift = np.minimum(self._top - np.frexp(np.where(finite, top, 1))[1] + 1, _MOST_SHIFT)
        size = np.maximum(np.abs(values.astype(np.float64)), np.ldexp(1.0, self._least - shift))
        bound = size * 2.0 ** -(self._mantissa_bits + 1.0) + 2.0**-149
        # What rounds up beyond the largest float comes back as an infinity.
        return np.where(finite & (size + bound < np.finfo(np.float32).max), bound, np.inf)


def fp8_e4m3() -> Fp8:
    """4 bits of exponent, 3 of mantissa: relative error 1/16."""
    return Fp8(CodecId.FP8_E4M3, 3, 7)


def fp8_e5m2() -> Fp8:
    """5 bits of exponent, 2 of mantissa: relative error 1/8, a wider range."""
    return Fp8(CodecId.FP8_E5M2, 2, 14)
