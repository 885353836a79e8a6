"""What the sparse codecs share: a code of k indices, uint32, ascending, and then k values, float32."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hccl_py.compression.codec import Array, Codec, bound_of_dropped
from hccl_py.compression.counter import Draw
from hccl_py.core.errors import ConfigError, TransportError

MOST_ELEMENTS = 1 << 32


class SparseCodec(Codec):
    """A codec that keeps some elements as they are and drops the others; ``select`` says which."""

    @abstractmethod
    def select(self, values: Array) -> Array:
        """Indices of what is kept of float32 [n], uint32, ascending."""

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """Indices, then values."""
        if len(values) > MOST_ELEMENTS:
            raise ConfigError(f"{self.text}: {len(values)} elements in one run; the most is {MOST_ELEMENTS}")
        indices = self.select(values).astype(np.uint32)
        return np.concatenate([indices.view(np.uint8), values[indices].astype(np.float32).view(np.uint8)])

    def decode(self, code: Array, count: int) -> Array:
        """Zeros and the values."""
        indices, values = split_code(code, count, self.text)
        out = np.zeros(count, np.float32)
        out[indices] = values
        return out

    def error_bound(self, values: Array) -> Array:
        """What is dropped is lost; the kept are exact."""
        return bound_of_dropped(values)


def split_code(code: Array, count: int, text: str) -> tuple[Array, Array]:
    """Indices and values of a sparse code. Raises TransportError if it cannot be one of ``count`` elements."""
    if len(code) % 8 or len(code) // 8 > count or count > MOST_ELEMENTS:
        raise TransportError(f"{text}: {len(code)} bytes are no code of {count} elements")
    half = len(code) // 2
    indices, values = code[:half].copy().view(np.uint32), code[half:].copy().view(np.float32)
    if half and (int(indices[-1]) >= count or not (indices[1:] > indices[:-1]).all()):
        raise TransportError(f"{text}: indices do not ascend below {count}")
    return indices, values


def top_indices(values: Array, k: int) -> Array:
    """The k largest magnitudes, ascending; of equal ones the first; NaN is larger than infinity."""
    size = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    order = np.argsort(~size, kind="stable")[:k]  # ~: the largest first
    return np.sort(order).astype(np.uint32)
