"""Two levels: exact sums inside each host, one code of them between hosts, the same result to all ranks.

Every host has as many encoding ranks as the smallest one has ranks; each has a shard. A shard is summed exactly inside
the host (shared memory), goes through the exchange of its codec among the ranks that have it on the other hosts, and
the decoded result is handed out inside. So bytes between hosts are those of one rank a host, however many it has.
"""

from __future__ import annotations

import numpy as np

from hccl_py.buffers import Buffer, describe
from hccl_py.codecs import view
from hccl_py.communicator import Communicator
from hccl_py.compressed_blocks import BlockExchange, Rows, bring, cut
from hccl_py.compressed_lossless import LosslessExchange
from hccl_py.compressed_sparse import SparseExchange
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.lossless import Lossless
from hccl_py.compression.span import Spans, placed
from hccl_py.core.errors import HcclError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.hosts import HostParts


def whole_spans(spans: Spans, shards: int) -> list[Rows]:
    """The spans in shards of about as many elements each, none of them cut: what is sparse is chosen in a whole one."""
    total = max(1, sum(span.count for span in spans))
    out: list[Rows] = [[] for _ in range(shards)]
    for place, span in placed(spans):
        middle = place.start + span.count // 2
        out[min(middle * shards // total, shards - 1)].append((place.start, span))
    return out


class HostExchange:
    """Runs compressed all-reduces of a block, sparse or lossless codec between hosts of several ranks."""

    def __init__(
        self, comm: Communicator, parts: HostParts, codec: Codec, seed: int, feedback: ErrorFeedback | None
    ) -> None:
        self._comm, self._parts, self._feedback = comm, parts, feedback
        self._blocks, self._exact = isinstance(codec, BlockCodec), codec.exact
        self._between: BlockExchange | SparseExchange | LosslessExchange | None = None
        if parts.across is not None and isinstance(codec, BlockCodec):
            self._between = BlockExchange(parts.across, codec, seed, feedback, part=True)
        elif parts.across is not None and isinstance(codec, Lossless):
            self._between = LosslessExchange(parts.across, codec, feedback)
        elif parts.across is not None:
            self._between = SparseExchange(parts.across, codec, seed, feedback, part=True)

    @property
    def sent_bytes(self) -> int:
        """What this rank has sent to other hosts."""
        return 0 if self._between is None else self._between.sent_bytes

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        try:
            self._run(data, out, spans, factor, step)
        except HcclError as error:
            why = str(error)
            self._parts.abort(why)  # the others wait in one part or another
            self._comm.engine.abort(why)
            raise

    def _run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        local, deal = self._parts.local, cut if self._blocks or self._exact else whole_spans
        shards = deal(spans, self._parts.shards)
        mine = shards[local.rank] if self._between is not None else []
        counts = [sum(span.count for _, span in rows) for rows in shards] + [0] * (local.size - len(shards))
        values = self._contribution(data, spans, mine, factor)
        own = np.empty(counts[local.rank], np.float32)
        run_v, kind = local.engine.run_v, (ReduceOp.SUM, DType.FLOAT32, 0)
        run_v(Collective.REDUCE_SCATTER, *kind, values.ctypes.data, counts, own.ctypes.data, [])
        if self._between is not None and len(own):
            where = describe(own, "own")
            self._between.run(where, where, tuple(span for _, span in mine), factor, step)
        result = view(out) if out.dtype is DType.FLOAT32 else np.empty(out.size, np.float32)
        run_v(Collective.ALL_GATHER, *kind, own.ctypes.data, [], result.ctypes.data, counts)
        if out.dtype is not DType.FLOAT32:
            view(out)[:] = narrow(result, out.dtype)

    def _contribution(self, data: Buffer, spans: Spans, mine: Rows, factor: float) -> Array:
        """What this rank adds to its host's sum: its array, and errors that are nobody's at this level."""
        values = np.ascontiguousarray(widen(view(data), data.dtype), np.float32)
        feedback = self._feedback
        if feedback is None:
            return values
        if feedback.relaid(
            spans, "blocks" if self._blocks else "exact" if self._exact else "whole"
        ):  # shards may have changed hands
            bring(self._parts.local, feedback, "host", spans, mine)
            if self._blocks:
                bring(self._comm, feedback, "owner", spans, self._owned(mine))
        if feedback.holds("send"):
            values = values + feedback.take("send", spans)
        if not self._blocks and feedback.holds("owner"):
            values = values + feedback.take("owner", spans) * np.float32(1 / factor)
        return values

    def _owned(self, mine: Rows) -> Rows:
        """The rows, by their place in the whole array, of which this rank encodes the result."""
        if not isinstance(self._between, BlockExchange):
            return []
        first = mine[0][0] if mine else 0  # a shard is one run of the array
        return [(first + start, span) for start, span in self._between.owned(tuple(span for _, span in mine))]
