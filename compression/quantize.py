"""What int8 and int4 share: a scale for each block, and integers by stochastic rounding.

As QSGD (Alistarh et al. 2017): an element is rounded down or up with the probability that makes the mean right. A block
with an infinity or a NaN is NaN altogether, so that it is seen; a block whose largest is under 2**-100 becomes zero.
"""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import INFINITY_BITS, largest, magnitudes
from hccl_py.compression.codec import Array

TINY = 2.0**-100


def quantize(blocks: Array, units: Array, limit: int) -> tuple[Array, Array]:
    """Scales, float32 [b, 1], and integers of -limit..limit, int32 [b, n], of float32 [b, n]."""
    top = magnitudes(blocks)
    most = top.view(np.float32)
    bad, tiny = top >= INFINITY_BITS, most < np.float32(TINY)
    one = np.float32(1) / np.float32(limit)
    scale = np.where(bad, np.float32(np.nan), np.where(tiny, np.float32(0), most * one)).astype(np.float32)
    inverse = np.where(bad | tiny, np.float32(0), np.float32(limit) / most).astype(np.float32)
    wanted = np.where(bad, np.float32(0), blocks) * inverse + units
    return scale, np.clip(np.floor(wanted).astype(np.int32), -limit, limit)


def quantization_bound(values: Array, limit: int) -> Array:
    """A step of the block's scale, and what float32 adds; TINY where the block becomes zero."""
    top = largest(values)
    sure = top < np.finfo(np.float32).max * (1 - 2.0**-20)  # else the largest may come back as an infinity
    return np.where(sure, np.maximum(top / limit * (1 + 2.0**-14), TINY), np.inf)
