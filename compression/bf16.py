"""bfloat16: the nearest, to even. The range of float32, 8 bits of precision."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.elements import bf16_codes


class Bf16(BlockCodec):
    """Cast to bfloat16; 16 bits an element."""

    id = CodecId.BF16

    def block_bytes(self, count: int) -> int:
        """Two each."""
        return 2 * count

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """The casts."""
        return bf16_codes(blocks).view(np.uint8)

    def decode_blocks(self, codes: Array) -> Array:
        """The casts back, exact."""
        values: Array = (codes.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values

    def error_bound(self, values: Array) -> Array:
        """Half a unit of the last place: 2**-8 of the value, 2**-134 of a denormal."""
        size = np.abs(values.astype(np.float64))
        return np.where(size < 3.3961775e38, np.maximum(size * 2.0**-8, 2.0**-134), np.inf)
