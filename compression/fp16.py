"""float16: the nearest, to even; what is over 65504 becomes infinity (and the guard of the policy sees it)."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.elements import fp16_codes


class Fp16(BlockCodec):
    """Cast to float16; 16 bits an element."""

    id = CodecId.FP16

    def block_bytes(self, count: int) -> int:
        """Two each."""
        return 2 * count

    def encode_blocks(self, blocks: Array, sizes: Array, units: Array) -> Array:
        """The casts."""
        return fp16_codes(blocks).view(np.uint8)

    def decode_blocks(self, codes: Array) -> Array:
        """The casts back, exact."""
        return codes.view(np.float16).astype(np.float32)

    def error_bound(self, values: Array) -> Array:
        """Half a unit of the last place: 2**-11 of the value, 2**-25 of a denormal."""
        size = np.abs(values.astype(np.float64))
        return np.where(size < 65520, np.maximum(size * 2.0**-11, 2.0**-25), np.inf)
