"""GradientReducer: buckets of gradients averaged over ranks, compressed where a policy says so, exact where not.

This is what the torch wrapper and hook call. Vectors, small parameters and everything that the guard holds back travel
exactly; errors of what does not are fed back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hccl_py.codecs import stored, view
from hccl_py.communicator import Communicator
from hccl_py.compressed import CompressedAllReduce
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import CONTRIBUTIONS, ErrorFeedback, merged
from hccl_py.compression.policy import Decision, Guard, Ramp, Switching, compressible
from hccl_py.compression.span import Span, Spans, check_spans, placed
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp
from hccl_py.gradient_choice import AUTO_CODECS, AutoChoice, budget

_log = logging.getLogger("hccl_py")


class GradientReducer:
    """Averages buckets over ranks. All ranks make it alike and call it in the same order.

    Args:
        comm: the ranks.
        compression: a codec or its text, a :class:`Switching`, or "auto": links and codecs are measured at the first
            call, and what is fastest within ``most_error`` is used, be it exact; after ten steps each parameter may get
            a codec of its own, under the same bound for all.
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
        self.auto: AutoChoice | None = None
        if compression == "auto":
            self.auto = AutoChoice(comm, budget(comm) if most_error is None else most_error)
        self._switching = compression if isinstance(compression, Switching) else None
        if isinstance(compression, str) and self.auto is None:
            compression = parse_codec(compression)
        self._codec = compression if isinstance(compression, Codec) else None
        self._comm, self._seed = comm, seed
        self._ramp = Ramp() if ramp is None else ramp
        self._guard = Guard() if guard is None else guard
        self._reducers: dict[Codec, CompressedAllReduce] = {}
        self._compressed = False  # ever: some rank may have errors
        self._held = ""  # why the last compression that was held back was
        self._squares = 0.0
        self._step = -1
        hosts = comm.engine.hosts
        self._per_host = hosts.count(hosts[comm.rank])
        self.feedback = ErrorFeedback()

    def decision(self, num_bytes: int) -> Decision:
        """What "auto" does with buckets of so many bytes of float32. Collective when first asked for a size."""
        if self.auto is None:
            raise ConfigError('decisions are made by compression "auto" only')
        return self.auto.decision(num_bytes)

    def codec(self, num_bytes: int, step: int) -> Codec | None:
        """What a bucket of so many bytes is compressed with in a step; None: nothing."""
        if self.auto is not None:
            wanted = self.auto.decision(num_bytes).codec
        else:
            wanted = self._codec if self._switching is None else self._switching.codec
        return self._ramp.codec(wanted, step)

    @property
    def codecs(self) -> list[Codec]:
        """All that may be used."""
        found = [self._codec, self._ramp.gentle]
        if self._switching is not None:
            found += self._switching.codecs
        if self.auto is not None:
            found += [parse_codec(text) for text in AUTO_CODECS]
        return [codec for codec in found if codec is not None]

    def is_plain(self, codec: Codec | None) -> bool:
        """True if a bucket for which there is this codec is an exact all_reduce and nothing else."""
        return codec is None and self._switching is None and not self._compressed

    def reduce(self, bucket: Any, spans: Sequence[Span], step: int) -> Codec | None:
        """Average ``bucket`` over all ranks, in place; return what most of it was compressed with, None if it is exact.

        Args:
            bucket: contiguous float64, float32, float16 or bfloat16 in host memory.
            spans: its parameters, in order; those of matrices are compressed, the others stay exact.
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
        if codec is not None and codec.exact and found.dtype is not DType.FLOAT32:
            codec = None  # widened it would be larger than it is
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
        if self._step >= 0:
            if self._switching is not None:
                self._switching.observe(math.sqrt(self._squares))
            if self.auto is not None:
                self.auto.end_step()
        self._step, self._squares = step, 0.0

    def _reduce_parts(self, values: Array, layout: Spans, codec: Codec | None, step: int) -> Codec | None:
        """Exact parts first: with them ranks agree on whether the rest may be compressed."""
        exact: list[tuple[slice, Span]] = []
        large: list[tuple[slice, Span]] = []
        for place, span in placed(layout):
            (large if span.part or compressible(span.count, span.dims) else exact).append((place, span))
        spans = tuple(span for _, span in large)
        gradient = math.fsum(float(np.dot(values[place], values[place])) for place, _ in large)
        errors = self.feedback.squares("send", spans) + self.feedback.squares("host", spans) / self._per_host
        shared = np.concatenate([*(values[place] for place, _ in exact), np.array([gradient, errors], np.float32)])
        self._comm.all_reduce(shared, op=ReduceOp.AVG)
        for (place, _), part in zip(exact, _cut(shared, exact), strict=True):
            values[place] = part
        gradient, errors = float(shared[-2]), float(shared[-1])
        if codec is not None and large:
            why = self._guard.look(gradient, errors, step, f"{spans[0].parameter}/{spans[0].offset}")
            if why:
                self._report(step, why)
                codec = None
        by_span = [codec] * len(large)
        if self.auto is not None and codec is not None and codec == self.auto.decision(4 * len(values)).codec:
            by_span = self.auto.codecs(spans, codec)
        for used in sorted(set(by_span), key=lambda each: each.text if each is not None else ""):
            group = [one for one, wanted in zip(large, by_span, strict=True) if wanted == used]
            self._reduce_group(values, group, used, step, finite=math.isfinite(gradient))
        if self.auto is not None and codec is not None:
            for place, span in large:
                self.auto.observe(values[place], (span,))
        return codec

    def _reduce_group(
        self, values: Array, group: list[tuple[slice, Span]], codec: Codec | None, step: int, finite: bool
    ) -> None:
        """Average some spans of a bucket with one codec."""
        spans = tuple(span for _, span in group)
        begin, end = group[0][0].start, group[-1][0].stop
        together = end - begin == sum(span.count for span in spans)
        body = values[begin:end] if together else np.concatenate([values[place] for place, _ in group])
        if codec is None:
            self._exactly(body, spans, finite)
        else:
            reduce = self._reducers.get(codec)
            if reduce is None:
                reduce = CompressedAllReduce(self._comm, codec, seed=self._seed, feedback=self.feedback)
                self._reducers[codec] = reduce
            self._compressed |= not codec.exact
            reduce(body, op=ReduceOp.AVG, spans=spans, step=step)
        if not together:
            for (place, _), part in zip(group, _cut(body, group), strict=True):
                values[place] = part

    def _exactly(self, body: Array, spans: Spans, finite: bool) -> None:
        """Average exactly; errors that were kept go along, unless the gradient is lost anyway."""
        if finite:
            if self.feedback.holds("owner"):
                body += self.feedback.take("owner", spans) * np.float32(self._comm.size)
            for stage in CONTRIBUTIONS:
                if self.feedback.holds(stage):
                    body += self.feedback.take(stage, spans)
        self._comm.all_reduce(body, op=ReduceOp.AVG)

    def _report(self, step: int, why: str) -> None:
        if self._held != why and self._comm.rank == 0:
            _log.warning("compression is off in step %d: %s", step, why)
        self._held = why

    def state_dict(self) -> dict[str, Any]:
        """Of this rank, between steps: errors, and what the policy has seen. Save one a rank."""
        return {
            "errors": self.feedback.state_dict(),
            "compressed": self._compressed,
            "guard": self._guard.state_dict(),
            "switching": None if self._switching is None else self._switching.state_dict(),
            "auto": None if self.auto is None else self.auto.state_dict(),
            "step": [self._step, self._squares],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take :meth:`state_dict` up; all ranks at the same step. Training goes on with the same bits.

        Raises:
            ConfigError: it is no such state, or of another kind of compression.
        """
        self._load([state], state.get("errors", {}))

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take up the states of all ranks of a world of any size, by rank. No error is lost."""
        self._load(states, merged([state.get("errors", {}) for state in states], self._comm.rank, self._comm.size))

    def _load(self, states: Sequence[Mapping[str, Any]], errors: Mapping[str, Any]) -> None:
        for state in states:
            missing = {"errors", "compressed", "guard", "switching", "auto", "step"} - set(state)
            if missing:
                raise ConfigError(f"state of compression: it lacks {', '.join(sorted(missing))}")
            for name, own in (("switching", self._switching), ("auto", self.auto)):
                if (state[name] is None) != (own is None):
                    raise ConfigError(f"state of compression: {name} is {'not ' if own is None else ''}in use here")
        self.feedback.load_state_dict(errors)
        first = states[0]
        self._compressed = bool(first["compressed"])
        self._guard.load_state_dict(first["guard"])
        if self._switching is not None:
            self._switching.load_state_dict(first["switching"])
        if self.auto is not None:
            self.auto.load_state_dict(first["auto"])
        self._step, self._squares = first["step"]


def _cut(joined: Array, group: Sequence[tuple[slice, Span]]) -> list[Array]:
    """The parts of an array that holds the spans one after the other, and perhaps more."""
    return [joined[place] for place, _ in placed(tuple(span for _, span in group))]
