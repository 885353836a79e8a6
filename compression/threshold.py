"""Threshold: every element of at least some magnitude. How many bytes that is depends on the values."""

from __future__ import annotations

import math

import numpy as np

from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.sparse import SparseCodec
from hccl_py.core.errors import ConfigError


class Threshold(SparseCodec):
    """Keeps what is at least ``least`` in magnitude, and NaN; 64 bits for each."""

    id = CodecId.THRESHOLD
    fixed_size = False

    def __init__(self, least: float) -> None:
        if not (least > 0 and math.isfinite(least)):
            raise ConfigError(f"threshold: {least} is not a positive number")
        self.least = self.number = least
        self.bits_per_element = 64.0  # at worst

    @property
    def text(self) -> str:
        """ "threshold:0.001"."""
        return f"threshold:{self.least!r}"

    def wire_bytes(self, count: int) -> int:
        """At most: all are kept."""
        return 8 * count

    def select(self, values: Array) -> Array:
        """All that are large enough."""
        least = np.float32(self.least).view(np.uint32)
        return np.flatnonzero((values.view(np.uint32) & np.uint32(0x7FFFFFFF)) >= least).astype(np.uint32)
