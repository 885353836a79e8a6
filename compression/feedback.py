"""Error feedback: what a code lost is added to what is encoded next (Seide et al. 2014; Karimireddy et al. 2019).

Errors are kept by stage, parameter, offset and count, and belong to whoever encoded: a rank ("send"), the rank that
encodes a shard of its host's sum ("host"), or the owner of a shard of the result ("owner"). Buckets do not matter:
asked for other spans, the memory is cut and joined, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hccl_py.compression.codec import Array
from hccl_py.compression.span import Span, Spans, placed
from hccl_py.core.errors import ConfigError

CONTRIBUTIONS = ("send", "host")  # stages whose errors are of what is added up; "owner": of a result

_Lease = tuple[str, Spans]


class _Piece:
    """Errors of a run of one parameter; ``lease``: of whose array they are a part, None: of none."""

    def __init__(self, offset: int, values: Array, lease: _Lease | None) -> None:
        self.offset, self.values, self.lease = offset, values, lease

    @property
    def end(self) -> int:
        return self.offset + len(self.values)


class ErrorFeedback:
    """The errors of one rank. ``memory`` gives arrays to encode with; everything else moves them about."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], list[_Piece]] = {}
        self._leases: dict[_Lease, Array] = {}
        # Of each parameter, the spans it was last encoded in, and how they were dealt out: alike on all ranks.
        self._layout: dict[int, tuple[str, Spans]] = {}
        self._loaded = False

    def memory(self, stage: str, spans: Spans) -> Array:
        """The errors of the spans, one after the other, float32: the same array until other spans overlap them."""
        lease = (stage, spans)
        if lease not in self._leases:
            array = self.take(stage, spans)
            for place, span in placed(spans):
                if span.count:
                    piece = _Piece(span.offset, array[place], lease)
                    self._pieces.setdefault((stage, span.parameter), []).append(piece)
            self._leases[lease] = array
        return self._leases[lease]

    def take(self, stage: str, spans: Spans) -> Array:
        """Move the errors of the spans out of here, into a new array; zero where there are none."""
        array = np.zeros(sum(span.count for span in spans), np.float32)
        for place, span in placed(spans):
            self._take(stage, span, array[place])
        return array

    def _take(self, stage: str, span: Span, out: Array) -> None:
        begin, end = span.offset, span.offset + span.count
        for piece in list(self._pieces.get((stage, span.parameter), ())):
            low, high = max(begin, piece.offset), min(end, piece.end)
            if low >= high:
                continue
            out[low - begin : high - begin] = piece.values[low - piece.offset : high - piece.offset]
            self._break(piece.lease)
            pieces = self._pieces[stage, span.parameter]
            pieces.remove(piece)
            if piece.offset < low:
                pieces.append(_Piece(piece.offset, piece.values[: low - piece.offset], None))
            if high < piece.end:
                pieces.append(_Piece(high, piece.values[high - piece.offset :], None))

    def _break(self, lease: _Lease | None) -> None:
        """Its parts go on without it."""
        if lease is not None and self._leases.pop(lease, None) is not None:
            for span in lease[1]:
                for piece in self._pieces.get((lease[0], span.parameter), ()):
                    if piece.lease == lease:
                        piece.lease = None

    def relaid(self, spans: Spans, way: str = "") -> bool:
        """True if owners may have changed since these parameters were last encoded. The same on all ranks.

        ``way``: how shards are dealt out, where there are several ways.
        """
        changed = False
        for span in spans:
            known = self._layout.get(span.parameter)
            changed |= known != (way, spans) and (known is not None or self._loaded)
            self._layout[span.parameter] = (way, spans)
        return changed

    def holds(self, stage: str) -> bool:
        """True if this rank has errors of the stage, zero or not."""
        return any(pieces for (of, _), pieces in self._pieces.items() if of == stage)

    def squares(self, stage: str, spans: Spans) -> float:
        """Sum of the squared errors of the spans."""
        sum_ = 0.0
        for span in spans:
            for piece in self._pieces.get((stage, span.parameter), ()):
                low, high = max(span.offset, piece.offset), min(span.offset + span.count, piece.end)
                if low < high:
                    part = piece.values[low - piece.offset : high - piece.offset]
                    sum_ += float(np.dot(part, part))
        return sum_

    def total(self, stage: str, parameter: int, count: int) -> Array:
        """A copy of a parameter's errors, float32 [count], zero where there are none."""
        out = np.zeros(count, np.float32)
        for piece in self._pieces.get((stage, parameter), ()):
            out[piece.offset : piece.end] = piece.values
        return out

    def clear(self) -> None:
        """Forget all errors, in place."""
        for pieces in self._pieces.values():
            for piece in pieces:
                piece.values[:] = 0

    def state_dict(self) -> dict[str, Array]:
        """A copy of all errors of this rank: "stage/parameter/offset" to float32."""
        return {
            f"{stage}/{parameter}/{piece.offset}": piece.values.copy()
            for (stage, parameter), pieces in sorted(self._pieces.items())
            for piece in sorted(pieces, key=lambda piece: piece.offset)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the errors of :meth:`state_dict` in place of those here. All ranks must do it at the same step.

        Raises:
            ConfigError: a key or an array is not such; nothing was changed.
        """
        pieces: dict[tuple[str, int], list[_Piece]] = {}
        for key, values in state.items():
            stage, parameter, offset = _parsed(key)
            array = np.array(values, np.float32)
            if array.ndim != 1:
                raise ConfigError(f'state of error feedback: "{key}" has {array.ndim} dimensions in place of one')
            pieces.setdefault((stage, parameter), []).append(_Piece(offset, array, None))
        self._pieces, self._leases, self._layout, self._loaded = pieces, {}, {}, True


def _parsed(key: str) -> tuple[str, int, int]:
    stage, *numbers = key.split("/")
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise ConfigError(f'state of error feedback: "{key}" is not "stage/parameter/offset"')
    return stage, int(numbers[0]), int(numbers[1])


def merged(states: Sequence[Mapping[str, Any]], rank: int, size: int, averages: bool = True) -> dict[str, Array]:
    """The state of one rank of a world of ``size``, from those of a world of another size, by rank.

    Rank r takes what ranks r, r + size, ... had; those beyond the old world begin with none. Results are sums over
    ranks, so the sum of the errors is what must stay; where results are averages (``averages``), what must stay is the
    sum over ranks divided by their number: errors of senders are then multiplied by size / len(states), and so
    are those of hosts. Errors of owners are of the result itself and stay as they are.
    """
    if not 0 <= rank < size or not states:
        raise ConfigError(f"error feedback: rank {rank} of {size} from {len(states)} states")
    out: dict[str, Array] = {}
    for state in states[rank::size]:
        for key, values in state.items():
            scale = np.float32(size / len(states)) if averages and _parsed(key)[0] in CONTRIBUTIONS else np.float32(1)
            array = np.asarray(values, np.float32) * scale
            known = out.get(key)
            if known is not None and len(known) != len(array):
                raise ConfigError(f'error feedback: "{key}" has {len(known)} and {len(array)} elements in two states')
            out[key] = array if known is None else known + array
    return out
