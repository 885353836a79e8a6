"""The exchanges of sparse and low-rank codes: all ranks get all codes, or sums of codes, and decode the same.

What is corrected (gradient and error memory) is made in place, in the memory; what is sent is then taken out of it.
"""

from __future__ import annotations

import numpy as np

from hccl_py import _native
from hccl_py.buffers import Buffer
from hccl_py.codecs import native_sums, open_frame, select, view
from hccl_py.communicator import Communicator
from hccl_py.compression import frame as frames
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.counter import Draw
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.frame import HEADER_BYTES
from hccl_py.compression.powersgd import PowerSgd, orthonormal
from hccl_py.compression.randomk import RandomK
from hccl_py.compression.span import Span, Spans, placed
from hccl_py.compression.sparse import MOST_ELEMENTS, SparseCodec, split_code
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType


def corrected(data: Buffer, spans: Spans, feedback: ErrorFeedback | None, factor: float, stage: str = "send") -> Array:
    """The array plus its errors, float32 [n]: the memory itself, or a copy where there is none.

    Errors of owners, of an earlier block codec, go back to the ranks that have them: a result's error over ``factor``
    is that of a contribution.
    """
    values = widen(view(data), data.dtype)
    if feedback is None:
        return np.array(values, np.float32)
    memory = feedback.memory(stage, spans)
    if stage == "send" and feedback.holds("host"):  # of an earlier group
        memory += feedback.take("host", spans)
    if feedback.holds("owner"):
        memory += feedback.take("owner", spans) * np.float32(1 / factor)
    memory += values
    return memory


def forget(lost: Array) -> None:
    """What is not finite is no error to be fed back."""
    lost[~np.isfinite(lost)] = 0


def put(values: Array, out: Buffer) -> None:
    """float32 to where the result goes."""
    view(out)[:] = narrow(values, out.dtype)


class _Exchange:
    def __init__(self, comm: Communicator, codec: Codec, seed: int, feedback: ErrorFeedback | None) -> None:
        self._comm, self._seed, self._feedback = comm, seed, feedback
        self._name = codec.text
        self.sent_bytes = 0

    def _hops(self, num_bytes: int) -> int:
        """Bytes that a rank sends in an all_reduce of so many."""
        return 2 * (self._comm.size - 1) * num_bytes // self._comm.size


class SparseExchange(_Exchange):
    """Top-k, threshold and blocks: an all_gather of frames, added up in rank order."""

    def __init__(
        self, comm: Communicator, codec: Codec, seed: int, feedback: ErrorFeedback | None, part: bool = False
    ) -> None:
        super().__init__(comm, codec, seed, feedback)
        self._codec, self._stage = codec, "host" if part else "send"

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        if data.size > MOST_ELEMENTS:
            raise ConfigError(f"{self._name}: {data.size} elements in one call; the most is {MOST_ELEMENTS}")
        # What is not kept for later may stay where it is: nothing is taken out of it.
        borrows = self._feedback is None and data.dtype is DType.FLOAT32 and isinstance(self._codec, SparseCodec)
        work = corrected(data, spans, self._feedback, factor, self._stage) if not borrows else view(data)
        code = self._encode(work, spans, step, not borrows)
        sizes = np.full(self._comm.size, len(code), np.int64)
        if not self._codec.fixed_size:
            self._comm.all_gather(np.array([len(code)], np.int64), sizes)
        room = HEADER_BYTES + int(sizes.max())
        box, boxes = np.zeros(room, np.uint8), np.empty(room * self._comm.size, np.uint8)
        box[HEADER_BYTES : HEADER_BYTES + len(code)] = code
        frames.write_header(box[: HEADER_BYTES + len(code)], self._codec, DType.FLOAT32, data.size, native_sums)
        self._comm.all_gather(box, boxes)
        self.sent_bytes += (self._comm.size - 1) * room
        total = view(out) if out.dtype is DType.FLOAT32 else np.empty(data.size, np.float32)
        total[:] = 0
        for peer in range(self._comm.size):
            box = boxes[peer * room : (peer + 1) * room]
            self._add(open_frame(box, self._codec, data.size, peer, int(sizes[peer])), spans, total, peer)
        if factor != 1.0:
            total *= np.float32(factor)
        if out.dtype is not DType.FLOAT32:
            put(total, out)

    def _encode(self, work: Array, spans: Spans, step: int, keeps: bool) -> Array:
        """The code of all spans; with ``keeps``, what it sends is taken out of ``work``."""
        if isinstance(self._codec, SparseCodec):
            parts = [select(self._codec, work[place]) + np.uint32(place.start) for place, _ in placed(spans)]
            indices = np.concatenate(parts)
            values = work[indices]
            if keeps:
                work[indices] = 0
            return np.concatenate([indices.view(np.uint8), values.view(np.uint8)])
        codes = []
        for place, span in placed(spans):
            own = work[place]
            codes.append(self._codec.encode(own, Draw(self._seed, span.parameter, step, self._comm.rank), span.offset))
            own -= self._codec.decode(codes[-1], span.count)
        forget(work)
        return np.concatenate(codes)

    def _add(self, code: Array, spans: Spans, total: Array, peer: int) -> None:
        if isinstance(self._codec, SparseCodec):
            indices, values = split_code(code, len(total), f"{self._name} from rank {peer}")
            n = len(indices)
            _native.scatter_add(total.ctypes.data, len(total), indices.ctypes.data, values.ctypes.data, n)
            return
        at = 0
        for place, span in placed(spans):
            size = self._codec.wire_bytes(span.count)
            self._codec.decode_add(code[at : at + size], total[place])
            at += size


class SumExchange(_Exchange):
    """Random-k: all ranks draw the same elements, whose values are summed as they are."""

    def __init__(self, comm: Communicator, codec: RandomK, seed: int, feedback: ErrorFeedback | None) -> None:
        super().__init__(comm, codec, seed, feedback)
        self._codec = codec

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        work = corrected(data, spans, self._feedback, factor)
        parts = []
        for place, span in placed(spans):
            draw = Draw(self._seed, span.parameter, step, 0)
            parts.append(self._codec.indices(span.count, draw, span.offset) + place.start)
        indices = np.concatenate(parts)
        values = work[indices]
        work[indices] = 0
        self._comm.all_reduce(values)
        self.sent_bytes += self._hops(values.nbytes)
        total = np.zeros(data.size, np.float32)
        total[indices] = values * np.float32(factor)
        put(total, out)


class LowRankExchange(_Exchange):
    """PowerSGD: two all_reduces of thin matrices; what is no matrix is reduced exactly beside the first."""

    def __init__(self, comm: Communicator, codec: PowerSgd, seed: int, feedback: ErrorFeedback | None) -> None:
        super().__init__(comm, codec, seed, feedback)
        self._codec = codec
        # Q of the last step is kept beside the errors: it is saved and moves with them.
        self._starts = ErrorFeedback() if feedback is None else feedback

    def run(self, data: Buffer, out: Buffer, spans: Spans, factor: float, step: int) -> None:
        """As ``CompressedAllReduce.__call__``; arguments are checked."""
        work = corrected(data, spans, self._feedback, factor)
        mean = np.float32(1 / self._comm.size)  # of the factors; `ratio` makes the result of it
        ratio = np.float32(factor * self._comm.size)
        total, matrices, plain = np.zeros(data.size, np.float32), [], []
        for place, span in placed(spans):
            if self._pays(span):
                matrix = work[place].reshape(span.rows, -1)
                matrices.append((place, matrix, self._start(span, matrix.shape[1])))
            else:
                plain.append(place)
        first = [self._codec.project(matrix, q) for _, matrix, q in matrices]
        summed = self._sum([*first, *(work[place] for place in plain)], mean)
        left = [orthonormal(p.reshape(shape.shape)) for p, shape in zip(summed, first, strict=False)]
        for place, values in zip(plain, summed[len(first) :], strict=True):
            total[place] = values * ratio
            work[place] = 0
        back = [self._codec.back(matrix, p) for (_, matrix, _), p in zip(matrices, left, strict=True)]
        for (place, matrix, q), p, values in zip(matrices, left, self._sum(back, mean), strict=True):
            q[:] = values.reshape(q.shape)
            result = self._codec.expand(p, q)
            matrix -= result
            total[place] = result.reshape(-1) * ratio
        forget(work)
        put(total, out)

    def _pays(self, span: Span) -> bool:
        """True if two thin matrices are smaller than half of it."""
        columns = span.count // span.rows if span.rows else 0
        return span.rows > 1 and columns > 1 and 2 * self._codec.rank * (span.rows + columns) < span.count

    def _start(self, span: Span, columns: int) -> Array:
        q = self._starts.memory("q", (Span(span.parameter, columns * self._codec.rank),)).reshape(columns, -1)
        if not q.any():
            q[:] = self._codec.start(columns, Draw(self._seed, span.parameter))
        return q

    def _sum(self, arrays: list[Array], mean: np.float32) -> list[Array]:
        """Each summed over ranks, exactly, times ``mean``, flat."""
        if not arrays:
            return []
        joined = np.concatenate([array.reshape(-1) for array in arrays])
        self._comm.all_reduce(joined)
        self.sent_bytes += self._hops(joined.nbytes)
        joined *= mean
        ends = np.cumsum([array.size for array in arrays])
        return np.split(joined, ends[:-1])
