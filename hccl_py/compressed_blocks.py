"""The exchange of block codecs: encoded shards to their owners, sums in rank order, one more code, to all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hccl_py.buffers import Buffer, describe
from hccl_py.codecs import RowTable, native_sums, open_frame
from hccl_py.communicator import Communicator
from hccl_py.compression import frame as frames
from hccl_py.compression.blocks import BLOCK, BlockCodec
from hccl_py.compression.codec import Array
from hccl_py.compression.counter import OWNER, Draw, keys
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.frame import HEADER_BYTES
from hccl_py.compression.span import Span, Spans, placed
from hccl_py.core.types import DType

Rows = list[tuple[int, Span]]  # (first element in the array, what it is)


def cut(spans: Spans, shards: int) -> list[Rows]:
    """The spans in shards of about as many blocks each.

    Cuts are at whole blocks of a parameter, so that codes do not depend on where they are.
    """
    total = sum(-(-span.count // BLOCK) for span in spans)
    out: list[Rows] = [[] for _ in range(shards)]
    begin = 0  # the span's first block of all
    for place, span in placed(spans):
        blocks = -(-span.count // BLOCK)
        for shard in range(shards):
            low = max(total * shard // shards - begin, 0) * BLOCK
            high = min(min(total * (shard + 1) // shards - begin, blocks) * BLOCK, span.count)
            if low < high:
                out[shard].append((place.start + low, Span(span.parameter, high - low, span.offset + low)))
        begin += blocks
    return out


def bring(comm: Communicator, feedback: ErrorFeedback, stage: str, spans: Spans, own: Rows) -> None:
    """Errors of ``spans`` that any rank has, to those who have the rows now: exact, each is zero but where it was."""
    everything = feedback.take(stage, spans)
    comm.all_reduce(everything)
    errors = feedback.memory(stage, tuple(span for _, span in own))
    at = 0
    for start, span in own:
        errors[at : at + span.count] = everything[start : start + span.count]
        at += span.count


@dataclass
class _Layout:
    """What is worked out once for a list of spans."""

    frame_bytes: int  # of the largest shard
    counts: list[int]  # elements by shard
    code_bytes: list[int]  # by shard
    own: Rows
    parameters: Array  # of the rows of `sending`
    own_parameters: Array
    sending: RowTable  # all rows, to and from frames one after the other
    arriving: RowTable  # own rows, of a single code, to and from the sum
    outbox: Array
    inbox: Array
    result: Array
    results: Array
    total: Array  # float32, of the own shard


class BlockExchange:
    """Runs compressed all-reduces of one block codec; see :class:`~hccl_py.compressed.CompressedAllReduce`.

    Args:
        part: ranks stand for hosts: errors are the host's, and whoever calls brings them where they belong.
    """

    def __init__(
        self, comm: Communicator, codec: BlockCodec, seed: int, feedback: ErrorFeedback | None, part: bool = False
    ) -> None:
        self._comm, self._codec, self._seed, self._feedback, self._part = comm, codec, seed, feedback, part
        self._layouts: dict[Spans, _Layout] = {}
        self.sent_bytes = 0

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        layout = self._layouts.get(spans) or self._layouts.setdefault(spans, self._lay_out(spans))
        size, rank = self._comm.size, self._comm.rank
        errors = owner_errors = None
        if self._feedback is not None:
            errors, owner_errors = self._errors(self._feedback, layout, spans)
        layout.sending.set_keys(keys(Draw(self._seed, 0, step, rank), layout.parameters))
        layout.sending.encode(data, layout.outbox, residual=errors)
        for shard in range(size):
            self._seal(layout, layout.outbox, shard * layout.frame_bytes, shard)
        self._comm.all_to_all(layout.outbox, layout.inbox)
        total = describe(layout.total, "total")
        for peer in range(size):
            code = self._open(layout, layout.inbox, peer * layout.frame_bytes, rank, peer)
            layout.arriving.decode(code, total, add=peer > 0)
        layout.arriving.set_keys(keys(Draw(self._seed, 0, step, OWNER), layout.own_parameters))
        layout.arriving.encode(total, layout.result[HEADER_BYTES:], factor, owner_errors)
        self._seal(layout, layout.result, 0, rank)
        self._comm.all_gather(layout.result, layout.results)
        for shard in range(size):
            self._open(layout, layout.results, shard * layout.frame_bytes, shard, shard)
        layout.sending.decode(layout.results, out)
        self.sent_bytes += 2 * (size - 1) * layout.frame_bytes

    def owned(self, spans: Spans) -> Rows:
        """Of which elements this rank encodes the result."""
        return cut(spans, self._comm.size)[self._comm.rank]

    def _errors(self, feedback: ErrorFeedback, layout: _Layout, spans: Spans) -> tuple[Array, Array]:
        """Of the whole array and of the own shard; where shards have changed hands, they are brought here first."""
        errors = feedback.memory("host" if self._part else "send", spans)
        if not self._part:
            if feedback.holds("host"):  # of an earlier group
                errors += feedback.take("host", spans)
            if feedback.relaid(spans):
                bring(self._comm, feedback, "owner", spans, layout.own)
        return errors, feedback.memory("owner", tuple(span for _, span in layout.own))

    def _lay_out(self, spans: Spans) -> _Layout:
        size, rank = self._comm.size, self._comm.rank
        shards = cut(spans, size)
        code_bytes = [sum(self._codec.wire_bytes(span.count) for _, span in shard) for shard in shards]
        # Frames begin at whole words: they are copied faster.
        frame_bytes = -(-(HEADER_BYTES + max(code_bytes)) // 8) * 8
        sending = []
        for shard, rows in enumerate(shards):
            at = shard * frame_bytes + HEADER_BYTES
            for start, span in rows:
                sending.append((start, span.count, at, span.offset, start))
                at += self._codec.wire_bytes(span.count)
        arriving, at, code_at = [], 0, 0
        for _, span in shards[rank]:
            arriving.append((at, span.count, code_at, span.offset, at))
            at += span.count
            code_at += self._codec.wire_bytes(span.count)
        return _Layout(
            frame_bytes=frame_bytes,
            counts=[sum(span.count for _, span in shard) for shard in shards],
            code_bytes=code_bytes,
            own=shards[rank],
            parameters=np.array([span.parameter for shard in shards for _, span in shard], np.int64),
            own_parameters=np.array([span.parameter for _, span in shards[rank]], np.int64),
            sending=self._table(sending),
            arriving=self._table(arriving),
            outbox=np.zeros(size * frame_bytes, np.uint8),
            inbox=np.zeros(size * frame_bytes, np.uint8),
            result=np.zeros(frame_bytes, np.uint8),
            results=np.zeros(size * frame_bytes, np.uint8),
            total=np.zeros(at, np.float32),
        )

    def _table(self, rows: list[tuple[int, int, int, int, int]]) -> RowTable:
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        return RowTable(self._codec, *columns)

    def _seal(self, layout: _Layout, box: Array, at: int, shard: int) -> None:
        frame = box[at : at + HEADER_BYTES + layout.code_bytes[shard]]
        frames.write_header(frame, self._codec, DType.FLOAT32, layout.counts[shard], native_sums)

    def _open(self, layout: _Layout, box: Array, at: int, shard: int, peer: int) -> Array:
        code_bytes = layout.code_bytes[shard]
        frame = box[at : at + HEADER_BYTES + code_bytes]
        return open_frame(frame, self._codec, layout.counts[shard], peer, code_bytes)
