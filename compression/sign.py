"""One bit an element, its sign, and the mean magnitude of the block as the size of all (Seide et al. 2014; Karimireddy
et al. 2019). Only with error feedback: alone it is biased."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BLOCK, INFINITY_BITS, BlockCodec, largest, magnitudes
from hccl_py.compression.codec import Array, CodecId

_LANES = 32  # in which a block is summed; the order decides the last bits


class Sign(BlockCodec):
    """1.1 bits an element."""

    id = CodecId.SIGN

    def block_bytes(self, count: int) -> int:
        """The scale and the bits."""
        return 4 + (count + 7) // 8

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """The mean, then the bits, the first element in the lowest."""
        lanes = (np.abs(blocks) * np.float32(1 / BLOCK)).reshape(len(blocks), BLOCK // _LANES, _LANES)
        total = lanes[:, 0]
        for row in range(1, lanes.shape[1]):
            total = total + lanes[:, row]
        while total.shape[1] > 1:
            half = total.shape[1] // 2
            total = total[:, :half] + total[:, half:]
        mean = np.minimum(total * (np.float32(BLOCK) / sizes.astype(np.float32)), np.finfo(np.float32).max)
        scale = np.where(magnitudes(blocks) >= INFINITY_BITS, np.float32(np.nan), mean).astype(np.float32)
        bits = np.packbits(np.signbit(blocks), axis=1, bitorder="little")
        return np.concatenate([scale.view(np.uint8), bits], axis=1)

    def decode_blocks(self, codes: Array) -> Array:
        """The mean with the signs."""
        scale = np.ascontiguousarray(codes[:, :4]).view(np.uint32) & np.uint32(0x7FFFFFFF)
        negative = np.unpackbits(codes[:, 4:], axis=1, bitorder="little").astype(np.uint32)
        values: Array = (scale | (negative << np.uint32(31))).view(np.float32)
        return values

    def error_bound(self, values: Array) -> Array:
        """The block's largest."""
        return largest(values)
