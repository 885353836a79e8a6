"""Structured block sparsity: whole blocks of 256, those with the largest element. One index a block, not an element."""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BLOCK, magnitudes
from hccl_py.compression.codec import Array, Codec, CodecId, bound_of_dropped, kept
from hccl_py.compression.counter import Draw
from hccl_py.compression.sparse import top_indices
from hccl_py.core.errors import ConfigError, TransportError

_ROW = 4 + 4 * BLOCK


class BlockSparse(Codec):
    """Keeps ``fraction`` of the blocks; an index and 256 floats for each, the last one filled with zeros."""

    id = CodecId.BLOCKSPARSE

    def __init__(self, fraction: float = 0.05) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"blocksparse: the fraction {fraction} is not in (0, 1]")
        self.fraction = self.number = fraction
        self.bits_per_element = 32 * fraction * _ROW / (4 * BLOCK)

    @property
    def text(self) -> str:
        """ "blocksparse:0.05"."""
        return f"blocksparse:{self.fraction!r}"

    def wire_bytes(self, count: int) -> int:
        """Exact."""
        return _ROW * kept(self.fraction, -(-count // BLOCK))

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """Rows of an index and the block."""
        num_blocks = -(-len(values) // BLOCK)
        blocks = np.zeros((num_blocks, BLOCK), np.float32)
        blocks.reshape(-1)[: len(values)] = values
        top = magnitudes(blocks).view(np.float32).reshape(-1)
        chosen = top_indices(top, kept(self.fraction, num_blocks))
        rows = np.concatenate([chosen.reshape(-1, 1).view(np.uint8), blocks[chosen].view(np.uint8)], axis=1)
        return rows.reshape(-1)

    def decode(self, code: Array, count: int) -> Array:
        """Zeros and the blocks."""
        num_blocks = -(-count // BLOCK)
        if len(code) != self.wire_bytes(count):
            raise TransportError(f"{self.text}: {len(code)} bytes are no code of {count} elements")
        rows = code.reshape(-1, _ROW)
        indices = np.ascontiguousarray(rows[:, :4]).view(np.uint32).reshape(-1)
        if len(indices) and (int(indices.max()) >= num_blocks or not (indices[1:] > indices[:-1]).all()):
            raise TransportError(f"{self.text}: blocks do not ascend below {num_blocks}")
        blocks = np.zeros((num_blocks, BLOCK), np.float32)
        blocks[indices] = np.ascontiguousarray(rows[:, 4:]).view(np.float32)
        return blocks.reshape(-1)[:count]

    def error_bound(self, values: Array) -> Array:
        """What is dropped is lost; the kept are exact."""
        return bound_of_dropped(values)
