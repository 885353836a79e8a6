"""Top-k: the largest magnitudes of each parameter, exactly (Aji and Heafield 2017; Lin et al. 2018)."""

from __future__ import annotations

from hccl_py.compression.codec import Array, CodecId, kept
from hccl_py.compression.sparse import SparseCodec, top_indices
from hccl_py.core.errors import ConfigError


class TopK(SparseCodec):
    """Keeps ``fraction`` of the elements of each run, one at least; 64 bits for each."""

    id = CodecId.TOPK

    def __init__(self, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"topk: the fraction {fraction} is not in (0, 1]")
        self.fraction = self.number = fraction
        self.bits_per_element = 64 * fraction

    @property
    def text(self) -> str:
        """ "topk:0.01"."""
        return f"topk:{self.fraction!r}"

    def wire_bytes(self, count: int) -> int:
        """Exact."""
        return 8 * kept(self.fraction, count)

    def select(self, values: Array) -> Array:
        """The largest."""
        return top_indices(values, kept(self.fraction, len(values)))
