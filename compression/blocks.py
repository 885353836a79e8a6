"""Codecs that work block by block: 256 elements in a row of one parameter, whatever else is around them.

Ends are filled with zeros, encoded as a whole block and cut: the code of the first n elements is the beginning of it.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.counter import Draw, units
from hccl_py.core.errors import TransportError

BLOCK = 256


class BlockCodec(Codec):
    """A codec of blocks; ``encode_blocks`` and ``decode_blocks`` are all that a codec adds."""

    @abstractmethod
    def block_bytes(self, count: int) -> int:
        """Bytes of the code of the first ``count`` elements of a block, 1 to BLOCK."""

    @abstractmethod
    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """Codes, uint8 [b, block_bytes(BLOCK)], of float32 [b, BLOCK]; sizes [b, 1]: elements that are no filling."""

    @abstractmethod
    def decode_blocks(self, codes: Array) -> Array:
        """float32 [b, BLOCK] of uint8 [b, block_bytes(BLOCK)]."""

    @property
    def bits_per_element(self) -> float:  # type: ignore[override]
        """On the wire, scale included."""
        return 8 * self.block_bytes(BLOCK) / BLOCK

    def wire_bytes(self, count: int) -> int:
        """Exact."""
        whole, rest = divmod(count, BLOCK)
        return whole * self.block_bytes(BLOCK) + (self.block_bytes(rest) if rest else 0)

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """The codes of the blocks one after the other."""
        count = len(values)
        num_blocks = -(-count // BLOCK)
        filled = np.zeros(num_blocks * BLOCK, np.float32)
        filled[:count] = values
        sizes = np.minimum(BLOCK, count - np.arange(num_blocks) * BLOCK).reshape(-1, 1)
        numbers = units(draw.key, offset, num_blocks * BLOCK).reshape(-1, BLOCK)
        with np.errstate(all="ignore"):
            codes = self.encode_blocks(filled.reshape(-1, BLOCK), sizes, numbers)
        return codes.reshape(-1)[: self.wire_bytes(count)]

    def decode(self, code: Array, count: int) -> Array:
        """As :meth:`Codec.decode`."""
        if len(code) != self.wire_bytes(count):
            raise TransportError(f"{self.text}: {len(code)} bytes are no code of {count} elements")
        num_blocks = -(-count // BLOCK)
        filled = np.zeros(num_blocks * self.block_bytes(BLOCK), np.uint8)
        filled[: len(code)] = code
        with np.errstate(all="ignore"):
            return self.decode_blocks(filled.reshape(num_blocks, self.block_bytes(BLOCK))).reshape(-1)[:count]


def magnitudes(blocks: Array) -> Array:
    """The largest magnitude of each block as bits, uint32 [b, 1]: infinity and NaN are larger than all."""
    if not len(blocks):
        return np.zeros((0, 1), np.uint32)
    top: Array = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, keepdims=True)
    return top


INFINITY_BITS = np.uint32(0x7F800000)


def largest(values: Array) -> Array:
    """The largest magnitude of the block of each element, float64 [n]; infinite where the block is not finite."""
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK)
    with np.errstate(all="ignore"):
        padded[: len(values)] = np.where(np.isfinite(values), np.abs(values), np.inf)
    return np.repeat(padded.reshape(-1, BLOCK).max(axis=1, initial=0), BLOCK)[: len(values)]
