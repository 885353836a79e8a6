"""GradientReducer: buckets of gradients averaged over ranks, compressed where a policy says so, exact where not.

This is what the torch hook and other wrappers call. Vectors, small parameters and everything that the guard holds back
travel exactly; errors of what does not are fed back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl_py.buffers import describe
from hccl_py.codecs import encode_values, stored, view, whole
from hccl_py.communicator import Communicator
from hccl_py.compressed import CompressedAllReduce
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import Draw
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.policy import CodecSpeed, Decision, Guard, Link, Ramp, Switching, choose, compressible
from hccl_py.compression.span import Span, Spans, check_spans
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp

_log = logging.getLogger("hccl_py")
AUTO_CODECS = ("bf16", "int8", "int4")
AUTO_ERROR = 0.2  # without a cluster file that says it: int4
_PROBE_ELEMENTS = 1 << 18  # 1 MiB


class GradientReducer:
    """Averages buckets over ranks. All ranks make it alike and call it in the same order.

    Args:
        comm: the ranks.
        compression: a codec or its text, a :class:`Switching`, or "auto": links and codecs are measured at the first
            call, and what is fastest within ``most_error`` is used, be it exact.
        ramp: how compression begins (None: at once).
        guard: when to fall back to exact (None: the usual one).
        seed: of the run, for stochastic rounding.
        most_error: of "auto": the largest relative error of a gradient, before feedback. None: what the policy of the
            cluster file says (HCCL_PY_TOPOLOGY; nothing said: none is allowed), without such a file that of int4.

    Raises:
        ConfigError: there is no such codec.
    """

    def __init__(
        self,
        comm: Communicator,
        compression: Codec | Switching | str = "auto",
        *,
        ramp: Ramp | None = None,
        guard: Guard | None = None,
        seed: int = 0,
        most_error: float | None = None,
    ) -> None:
        if not isinstance(compression, (str, Codec, Switching)):
            raise ConfigError(f'compression is a {type(compression).__name__}; give a codec, its text, or "auto"')
        self._auto = compression == "auto"
        self._switching = compression if isinstance(compression, Switching) else None
        if isinstance(compression, str) and not self._auto:
            compression = parse_codec(compression)
        self._codec = compression if isinstance(compression, Codec) else None
        self._comm, self._seed = comm, seed
        self._most_error = _budget(comm) if most_error is None else most_error
        self._ramp = Ramp() if ramp is None else ramp
        self._guard = Guard() if guard is None else guard
        self._reducers: dict[Codec, CompressedAllReduce] = {}
        self._measured: tuple[Link, dict[Codec, CodecSpeed]] | None = None
        self._decisions: dict[int, Decision] = {}
        self._held = ""  # why the last compression that was held back was
        self._squares = 0.0
        self._step = -1
        self.feedback = ErrorFeedback()

    def decision(self, num_bytes: int) -> Decision:
        """What "auto" does with buckets of so many bytes of float32. Collective when first asked for a size."""
        if num_bytes not in self._decisions:
            if self._measured is None:
                self._measured = measure(self._comm, [parse_codec(text) for text in AUTO_CODECS])
            link, speeds = self._measured
            decision = choose(num_bytes, self._comm.size, link, speeds, self._most_error)
            self._decisions[num_bytes] = decision
            if self._comm.rank == 0:
                _log.info("compression %s", decision.why)
        return self._decisions[num_bytes]

    def codec(self, num_bytes: int, step: int) -> Codec | None:
        """What a bucket of so many bytes is compressed with in a step; None: nothing."""
        if self._auto:
            wanted = self.decision(num_bytes).codec
        else:
            wanted = self._codec if self._switching is None else self._switching.codec
        return self._ramp.codec(wanted, step)

    def is_plain(self, codec: Codec | None) -> bool:
        """True if a bucket for which there is this codec is an exact all_reduce and nothing else."""
        return codec is None and self._switching is None and not self.feedback.holds("send")

    def reduce(self, bucket: Any, spans: Sequence[Span], step: int) -> Codec | None:
        """Average ``bucket`` over all ranks, in place; return what most of it was compressed with, None if it is exact.

        Args:
            bucket: contiguous float64, float32, float16 or bfloat16 in host memory.
            spans: its parameters, in order; ``rows`` of 2 and more are matrices, the others stay exact.
            step: of the training.

        Raises:
            ConfigError: the bucket is not such; nothing was sent.
        """
        found, _ = stored(bucket, "bucket")
        layout = check_spans(spans, found.size)
        if step != self._step:
            self._end_step(step)
        codec = self.codec(found.size * 4, step) if self._comm.size > 1 else None
        if self.is_plain(codec):
            self._comm.all_reduce(bucket, op=ReduceOp.AVG)
            return None
        values = view(found) if found.dtype is DType.FLOAT32 else widen(view(found), found.dtype)
        with np.errstate(all="ignore"):
            codec = self._reduce_parts(values, layout, codec, step)
            if self._switching is not None:
                self._squares += float(np.dot(values, values))
        if found.dtype is not DType.FLOAT32:
            view(found)[:] = narrow(values, found.dtype)
        return codec

    def _end_step(self, step: int) -> None:
        if self._switching is not None and self._step >= 0:
            self._switching.observe(math.sqrt(self._squares))
        self._step, self._squares = step, 0.0

    def _reduce_parts(self, values: Array, layout: Spans, codec: Codec | None, step: int) -> Codec | None:
        """Exact parts first: with them ranks agree on whether the rest may be compressed."""
        places, at = [], 0
        for span in layout:
            places.append(slice(at, at + span.count))
            at += span.count
        small = [not compressible(span.count, 2 if span.rows > 1 else 1) for span in layout]
        exact = [values[place] for place, is_small in zip(places, small, strict=True) if is_small]
        large = tuple(span for span, is_small in zip(layout, small, strict=True) if not is_small)
        parts = [values[place] for place, is_small in zip(places, small, strict=True) if not is_small]
        body = values if not exact else np.concatenate(parts) if parts else np.zeros(0, np.float32)
        memory = self.feedback.memory("send", large) if large else np.zeros(0, np.float32)
        squares = np.array([np.dot(body, body), np.dot(memory, memory)], np.float32)
        shared = np.concatenate([*exact, squares])
        self._comm.all_reduce(shared, op=ReduceOp.AVG)
        at = 0
        for part in exact:
            part[:] = shared[at : at + len(part)]
            at += len(part)
        why = self._guard.look(float(shared[-2]), float(shared[-1])) if codec is not None else ""
        if why:
            self._report(step, why)
            codec = None
        if not large:
            return codec
        if codec is None:
            self._exactly(body, memory, large, finite=bool(np.isfinite(shared[-2])))
        else:
            reduce = self._reducers.get(codec)
            if reduce is None:
                reduce = CompressedAllReduce(self._comm, codec, seed=self._seed, feedback=self.feedback)
                self._reducers[codec] = reduce
            reduce(body, op=ReduceOp.AVG, spans=large, step=step)
        if exact:
            at = 0
            for part in parts:
                part[:] = body[at : at + len(part)]
                at += len(part)
        return codec

    def _exactly(self, body: Array, memory: Array, spans: Spans, finite: bool) -> None:
        """Average exactly; errors that were kept go along, unless the gradient is lost anyway."""
        if finite:
            if self.feedback.holds("owner"):
                memory += self.feedback.take("owner", spans) * np.float32(self._comm.size)
            body += memory
            memory[:] = 0
        self._comm.all_reduce(body, op=ReduceOp.AVG)

    def _report(self, step: int, why: str) -> None:
        if self._held != why and self._comm.rank == 0:
            _log.warning("compression is off in step %d: %s", step, why)
        self._held = why


def _budget(comm: Communicator) -> float:
    """What "auto" may bring into a gradient if the caller does not say."""
    engine = comm.engine
    return AUTO_ERROR if engine.env.topology is None else engine.planner.policy.compression_error


def measure(comm: Communicator, codecs: Sequence[Codec]) -> tuple[Link, dict[Codec, CodecSpeed]]:
    """The link by exact all_reduces of two sizes, the codecs on 1 MiB; the slowest rank counts. Collective."""
    small, large = np.zeros(256, np.float32), np.zeros(4 * _PROBE_ELEMENTS, np.float32)
    times = []
    for array in (small, large):
        comm.all_reduce(array)
        best = math.inf
        for _ in range(3):
            comm.barrier()
            begin = time.perf_counter()
            comm.all_reduce(array)
            best = min(best, time.perf_counter() - begin)
        times.append(best)
    values = np.random.default_rng(0).standard_normal(_PROBE_ELEMENTS).astype(np.float32)
    out = np.zeros_like(values)
    for codec in codecs:
        code = encode_values(codec, values, Draw())
        encode_s = _best(lambda codec=codec: encode_values(codec, values, Draw()))
        decode_s = _best(lambda codec=codec, code=code: _decode_add(codec, code, out))
        times += [encode_s, decode_s]
    agreed = np.array(times)
    comm.all_reduce(agreed, op=ReduceOp.MAX)
    latency_s, transfer_s, *coding = (float(value) for value in agreed)
    share = 2 * (comm.size - 1) / comm.size
    wire_s = max(transfer_s - latency_s, 1e-9)
    link = Link(max(share * large.nbytes / wire_s, 1.0), latency_s / 2)
    rates = [values.nbytes / max(each, 1e-9) for each in coding]
    return link, {codec: CodecSpeed(*rates[2 * k : 2 * k + 2]) for k, codec in enumerate(codecs)}


def _decode_add(codec: Codec, code: Array, out: Array) -> None:
    if isinstance(codec, BlockCodec):
        whole(codec, len(out)).decode(code, describe(out, "out"), add=True)
    else:
        codec.decode_add(code, out)


def _best(call: Any) -> float:
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best
