"""The exchange of the lossless codec: the exact sum, in rank order, with fewer bytes on the way.

Shards go to their owners as codes, whose size their elements decide; an owner adds them up in rank order, and sends the
result as one more code. Nothing is lost, so parameters, blocks and chance do not matter, and no errors are kept. Shards
travel in pieces: while some are on their way, those that have arrived are added up and encoded.
"""

from __future__ import annotations

import numpy as np

from hccl_py.buffers import Buffer
from hccl_py.codecs import decode_lossless, encode_lossless, native_sums, open_frame, view
from hccl_py.communicator import Communicator
from hccl_py.compression import frame as frames
from hccl_py.compression.blocks import BLOCK
from hccl_py.compression.codec import Array
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.frame import HEADER_BYTES
from hccl_py.compression.lossless import Lossless, stored_of, words_of
from hccl_py.compression.span import Spans
from hccl_py.core.errors import TransportError
from hccl_py.core.types import DType

PIECE_BLOCKS = 256  # of a shard, at least: 256 KiB
MOST_PIECES = 32


class LosslessExchange:
    """Runs exact all-reduces; see :class:`~hccl_py.compressed.CompressedAllReduce`.

    Elements of 16 bits are added up in float32 and rounded once. Errors that other codecs have left in ``feedback`` are
    added to what is sent.
    """

    def __init__(self, comm: Communicator, codec: Lossless, feedback: ErrorFeedback | None) -> None:
        self._comm, self._codec, self._feedback = comm, codec, feedback
        self._boxes: dict[int, tuple[Array, Array]] = {}  # by their bytes
        self.sent_bytes = 0

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        size, rank, dtype = self._comm.size, self._comm.rank, data.dtype
        words = words_of(self._contribution(data, spans, factor), dtype)
        places = _places(data.size, size)
        outbox, inbox, room = self._room(places)
        # Contributions to their owners.
        sizes = np.zeros((len(places), size), np.int64)
        for piece, shards in enumerate(places):
            for shard, place in enumerate(shards):
                if shard != rank:
                    sizes[piece, shard] = self._seal(words[place], dtype, outbox[piece, shard * room :][:room])
        known, box_bytes = self._agree(sizes, room)
        arriving = []
        for piece, num_bytes in enumerate(box_bytes):
            for shard in range(1, size):
                used = sizes[piece, shard]
                outbox[piece, shard * num_bytes :][:used] = outbox[piece, shard * room :][:used]
            end = size * num_bytes
            arriving.append(self._comm.iall_to_all(outbox[piece, :end], inbox[piece, :end]))
        results = []
        for piece, (shards, num_bytes) in enumerate(zip(places, box_bytes, strict=True)):
            arriving[piece].wait()
            boxes = [inbox[piece, peer * num_bytes :][: known[peer, piece, rank]] for peer in range(size)]
            results.append(self._sum(words[shards[rank]], boxes, dtype, factor))
            sizes[piece] = self._seal(results[-1], dtype, outbox[piece, :room])
        # Results, as one more code, to all.
        known, box_bytes = self._agree(sizes, room)
        gathering = [
            self._comm.iall_gather(outbox[piece, :num_bytes], inbox[piece, : size * num_bytes])
            for piece, num_bytes in enumerate(box_bytes)
        ]
        total = view(out) if dtype is DType.FLOAT32 else np.empty(data.size, np.float32)
        for piece, (shards, num_bytes) in enumerate(zip(places, box_bytes, strict=True)):
            total[shards[rank]] = results[piece]
            gathering[piece].wait()
            for shard, place in enumerate(shards):
                if shard != rank:
                    box = inbox[piece, shard * num_bytes :][: known[shard, piece, rank]]
                    self._open(box, total[place], dtype, shard)
        if dtype is not DType.FLOAT32:
            view(out)[:] = stored_of(total, dtype)

    def _contribution(self, data: Buffer, spans: Spans, factor: float) -> Array:
        """The elements, as STORED says, and with them what other codecs have lost."""
        feedback, elements = self._feedback, view(data)
        held = [] if feedback is None else [stage for stage in ("send", "host", "owner") if feedback.holds(stage)]
        if feedback is None or not held:
            return elements
        values = np.array(widen(elements, data.dtype), np.float32)
        for stage in held:
            values += feedback.take(stage, spans) * np.float32(1 / factor if stage == "owner" else 1)
        return narrow(values, data.dtype)

    def _sum(self, own: Array, boxes: list[Array], dtype: DType, factor: float) -> Array:
        """Of a piece of this rank's shard, as words: what all ranks have, in their order."""
        total = np.empty(len(own), np.float32)
        part = np.empty(0 if dtype is DType.FLOAT32 else len(own), np.float32)
        for peer, box in enumerate(boxes):
            if dtype is not DType.FLOAT32:
                if peer != self._comm.rank:
                    self._open(box, part, dtype, peer)
                addend = widen(stored_of(own if peer == self._comm.rank else part, dtype), dtype)
                total[:] = addend if peer == 0 else total + addend
            elif peer != self._comm.rank:
                self._open(box, total, dtype, peer, add=peer > 0)
            elif peer == 0:
                total[:] = own
            else:
                total += own
        if factor != 1.0:
            total *= np.float32(factor)
        return total if dtype is DType.FLOAT32 else words_of(narrow(total, dtype), dtype)

    def _seal(self, words: Array, dtype: DType, box: Array) -> int:
        """A frame of the words; its bytes."""
        end = HEADER_BYTES + encode_lossless(words, box[HEADER_BYTES:])
        frames.write_header(box[:end], self._codec, dtype, len(words), native_sums)
        return end

    def _open(self, box: Array, out: Array, dtype: DType, peer: int, add: bool = False) -> None:
        code = open_frame(box, self._codec, len(out), peer, None, dtype)
        decode_lossless(code, out, add, who=f"rank {peer}")

    def _agree(self, sizes: Array, room: int) -> tuple[Array, list[int]]:
        """Bytes of frames by sender, piece and receiver, and by piece those of a box into which the largest fits."""
        size = self._comm.size
        gathered = np.zeros(size * sizes.size, np.int64)
        self._comm.all_gather(sizes.reshape(-1), gathered)
        if gathered.min() < 0 or gathered.max() > room:
            raise TransportError(f"lossless: frames of {gathered.min()} to {gathered.max()} bytes; at most {room} fit")
        known = gathered.reshape(size, *sizes.shape)
        box_bytes = [-(-int(largest) // 8) * 8 for largest in known.max(axis=(0, 2))]
        self.sent_bytes += (size - 1) * sum(box_bytes)
        return known, box_bytes

    def _room(self, places: list[list[slice]]) -> tuple[Array, Array, int]:
        """What is sent and what arrives, uint8 [pieces, ranks * room], and the bytes for one frame."""
        most = max(place.stop - place.start for shards in places for place in shards)
        room = -(-(HEADER_BYTES + self._codec.wire_bytes(most)) // 8) * 8
        width = room * self._comm.size
        if len(places) * width not in self._boxes:
            out, into = (np.zeros(len(places) * width, np.uint8) for _ in range(2))
            self._boxes[len(places) * width] = out, into
        outbox, inbox = self._boxes[len(places) * width]
        return outbox.reshape(-1, width), inbox.reshape(-1, width), room


def _places(count: int, size: int) -> list[list[slice]]:
    """By piece and shard, which elements they are, in whole blocks.

    Shards lie side by side in each piece: neighbours in an array are alike, and so are the sizes of their codes.
    """
    blocks = -(-count // BLOCK)
    pieces = min(max(blocks // size // PIECE_BLOCKS, 1), MOST_PIECES)
    cells = size * pieces
    ends = [min(blocks * cell // cells * BLOCK, count) for cell in range(cells + 1)]
    return [[slice(*ends[piece * size + shard :][:2]) for shard in range(size)] for piece in range(pieces)]
