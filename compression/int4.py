"""int4: a float scale for each block, then two elements a byte, the even one in the lower half; stochastic rounding."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BLOCK, BlockCodec
from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.quantize import quantization_bound, quantize

_LIMIT = 7


class Int4(BlockCodec):
    """4.1 bits an element; unbiased."""

    id = CodecId.INT4

    def block_bytes(self, count: int) -> int:
        """The scale and the codes."""
        return 4 + (count + 1) // 2

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """Scale, then pairs of integers."""
        scale, codes = quantize(blocks, units, _LIMIT)
        pairs = (codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)
        return np.concatenate([scale.view(np.uint8), pairs.astype(np.uint8)], axis=1)

    def decode_blocks(self, codes: Array) -> Array:
        """Integers times scale."""
        scale = np.ascontiguousarray(codes[:, :4]).view(np.float32)
        pairs = codes[:, 4:]
        both = np.stack([(pairs << np.uint8(4)).view(np.int8) >> 4, pairs.view(np.int8) >> 4], axis=2)
        return scale * both.reshape(len(codes), BLOCK).astype(np.float32)

    def error_bound(self, values: Array) -> Array:
        """1/7 of the block's largest."""
        return quantization_bound(values, _LIMIT)
