"""int8: a float scale for each block, then a byte an element, by stochastic rounding."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.quantize import quantization_bound, quantize

_LIMIT = 127


class Int8(BlockCodec):
    """8.1 bits an element; unbiased."""

    id = CodecId.INT8

    def block_bytes(self, count: int) -> int:
        """The scale and the codes."""
        return 4 + count

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """Scale, then integers."""
        scale, codes = quantize(blocks, units, _LIMIT)
        return np.concatenate([scale.view(np.uint8), codes.astype(np.int8).view(np.uint8)], axis=1)

    def decode_blocks(self, codes: Array) -> Array:
        """Integers times scale."""
        scale = np.ascontiguousarray(codes[:, :4]).view(np.float32)
        return scale * codes[:, 4:].view(np.int8).astype(np.float32)

    def error_bound(self, values: Array) -> Array:
        """1/127 of the block's largest."""
        return quantization_bound(values, _LIMIT)
