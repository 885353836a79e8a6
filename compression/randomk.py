"""Random-k: one element, drawn anew each step, of every ``group`` in a row (stratified; Wangni et al. 2018).

All ranks draw the same, so indices do not travel and codes can be summed as they are.
"""

from __future__ import annotations

import numpy as np

from hccl_py.compression.codec import Array, Codec, CodecId, bound_of_dropped
from hccl_py.compression.counter import OWNER, Draw, bits
from hccl_py.core.errors import ConfigError, TransportError


class RandomK(Codec):
    """Keeps one of every ``group`` elements; 32 bits for each. The decoder must be given the same draw."""

    id = CodecId.RANDOMK
    sums_encoded = True

    def __init__(self, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"randomk: the fraction {fraction} is not in (0, 1]")
        self.fraction = self.number = fraction
        self.group = max(1, round(1 / fraction))
        self.bits_per_element = 32 / self.group

    @property
    def text(self) -> str:
        """ "randomk:0.01"."""
        return f"randomk:{self.fraction!r}"

    def wire_bytes(self, count: int) -> int:
        """Exact."""
        return 4 * -(-count // self.group)

    def indices(self, count: int, draw: Draw, offset: int = 0) -> Array:
        """What is kept of ``count`` elements, int64, ascending: a function of the draw but for its rank."""
        first = np.arange(0, count, self.group)
        sizes = np.minimum(self.group, count - first)
        key = Draw(draw.seed, draw.parameter, draw.step, OWNER).key
        numbers = bits(key, offset, count)[first] if count else np.zeros(0, np.uint32)
        return first + numbers % sizes.astype(np.uint32)

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """The values."""
        return values[self.indices(len(values), draw, offset)].astype(np.float32).view(np.uint8)

    def decode(self, code: Array, count: int, draw: Draw | None = None, offset: int = 0) -> Array:
        """Zeros and the values."""
        if len(code) != self.wire_bytes(count):
            raise TransportError(f"{self.text}: {len(code)} bytes are no code of {count} elements")
        out = np.zeros(count, np.float32)
        out[self.indices(count, draw or Draw(), offset)] = np.ascontiguousarray(code).view(np.float32)
        return out

    def error_bound(self, values: Array) -> Array:
        """What is dropped is lost; the kept are exact."""
        return bound_of_dropped(values)
