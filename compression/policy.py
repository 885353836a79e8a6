"""Whether to compress, and with what: pure functions of measured numbers that all ranks have agreed.

Compression pays where encode + send + decode is less than send. Most networks inside a machine room are too fast for
it; then the answer is exact, with a line that says so.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Codec, CodecId
from hccl_py.core.errors import ConfigError

_FLOAT_BYTES = 4
EXACT_GAIN = 1.03  # nothing but time is at stake


@dataclass(frozen=True)
class Link:
    """What one rank can send to the others while it receives as much: measured with exact all_reduces.

    ``per_host``: ranks that encode on each host, where hosts have several and are joined by codes; ``local_Bps``: what
    they send to each other.
    """

    bandwidth_Bps: float
    latency_s: float = 0.0
    per_host: int = 1
    local_Bps: float = math.inf

    def __post_init__(self) -> None:
        if not (self.bandwidth_Bps > 0 and self.latency_s >= 0 and self.per_host >= 1 and self.local_Bps > 0):
            raise ConfigError(f"link: {self.bandwidth_Bps} B/s and {self.latency_s} s are not measured values")


@dataclass(frozen=True)
class CodecSpeed:
    """Bytes of float32 per second that one rank encodes, and that it decodes."""

    encode_Bps: float
    decode_Bps: float


@dataclass(frozen=True)
class Decision:
    """``codec`` is None for exact; ``why`` is one line for people."""

    codec: Codec | None
    exact_s: float
    compressed_s: float
    why: str


# Root of the mean squared error over that of the value, of a normally distributed block; what is kept of the largest
# 1% of a normal distribution is 9% of its energy. Checked against the codecs by tests/unit/compression/test_policy.py.
_ERRORS = {
    CodecId.LOSSLESS: 0.0,
    CodecId.FP16: 2.1e-4,
    CodecId.BF16: 1.7e-3,
    CodecId.FP8_E4M3: 0.027,
    CodecId.FP8_E5M2: 0.053,
    CodecId.INT8: 0.0092,
    CodecId.INT4: 0.165,
    CodecId.SIGN: 0.61,
}


def expected_error(codec: Codec | None) -> float:
    """Relative error (root mean square) that a codec brings into a gradient, before error feedback; 0 for exact."""
    if codec is None:
        return 0.0
    return _ERRORS.get(codec.id, 0.95)


def exact_s(num_bytes: float, ranks: int, link: Link) -> float:
    """Time of an exact all_reduce of so many bytes."""
    return 2 * (ranks - 1) / ranks * num_bytes / link.bandwidth_Bps + 2 * link.latency_s if ranks > 1 else 0.0


def compressed_s(codec: Codec, num_bytes: float, ranks: int, link: Link, speed: CodecSpeed) -> float:
    """Time of a compressed all_reduce of so many bytes of float32: encode, send, decode."""
    if ranks == 1:
        return num_bytes / speed.encode_Bps
    small = num_bytes * codec.bits_per_element / (8 * _FLOAT_BYTES)
    hosts = max(1, ranks // link.per_host)
    if link.per_host > 1 and hosts > 1:  # each encodes a shard of its host's sum, and hands out what comes of it
        inside = exact_s(num_bytes, link.per_host, Link(link.local_Bps))
        part = num_bytes / link.per_host
        ways = 2.0 if codec.exact or isinstance(codec, BlockCodec) else hosts  # a sparse code goes to every other host
        wire = ways * (ranks - 1) / ranks * small / link.bandwidth_Bps
        coding = part * (1 + 1 / hosts) / speed.encode_Bps + 2 * part / speed.decode_Bps
        return inside + coding + wire + 2 * link.latency_s
    if isinstance(codec, BlockCodec):  # all is encoded, then a shard; a shard of each rank is decoded, then all
        coding = num_bytes * (1 + 1 / ranks) / speed.encode_Bps + 2 * num_bytes / speed.decode_Bps
        return coding + 2 * (ranks - 1) / ranks * small / link.bandwidth_Bps + 2 * link.latency_s
    if codec.exact:  # shards of others are encoded, then the own; those of others are decoded twice
        coding = num_bytes / speed.encode_Bps + 2 * (ranks - 1) / ranks * num_bytes / speed.decode_Bps
        return coding + 2 * (ranks - 1) / ranks * small / link.bandwidth_Bps + 4 * link.latency_s
    coding = num_bytes / speed.encode_Bps + num_bytes / speed.decode_Bps
    return coding + (ranks - 1) * small / link.bandwidth_Bps + link.latency_s


def choose(
    num_bytes: float,
    ranks: int,
    link: Link,
    speeds: Mapping[Codec, CodecSpeed],
    most_error: float,
    least_gain: float = 1.1,
) -> Decision:
    """The fastest codec whose expected error is allowed, or exact where none is ``least_gain`` times faster.

    Args:
        num_bytes: of float32 in an all_reduce.
        ranks: of the group.
        link: as measured.
        speeds: codecs to choose from, with their measured speed.
        most_error: largest :func:`expected_error`.
        least_gain: exact time over compressed time from which it is worth it; EXACT_GAIN of a codec without errors.
    """
    exact = exact_s(num_bytes, ranks, link)
    allowed = [codec for codec in speeds if expected_error(codec) <= most_error]
    size = f"{num_bytes / 2**20:.1f} MiB over {link.bandwidth_Bps / 1e6:.0f} MB/s between {ranks} ranks"
    if not allowed:
        return Decision(None, exact, math.inf, f"exact: no codec has an error of at most {most_error:g}")
    times = {codec: compressed_s(codec, num_bytes, ranks, link, speeds[codec]) for codec in allowed}
    best = min(times, key=lambda codec: (times[codec], codec.text))
    said = f"{size}: exact {exact * 1e3:.2f} ms, {best.text} {times[best] * 1e3:.2f} ms"
    if times[best] * (EXACT_GAIN if best.exact else least_gain) >= exact:
        return Decision(None, exact, times[best], f"exact: {best.text} does not pay; {said}")
    return Decision(best, exact, times[best], f"{best.text}: {said}")


@dataclass(frozen=True)
class Layer:
    """A parameter, for :func:`choose_per_layer`: ``dims`` 0 and 1 are vectors; ``norm`` of its gradient."""

    parameter: int
    count: int
    dims: int
    norm: float


LEAST_COUNT = 1024


def compressible(count: int, dims: int) -> bool:
    """False for vectors and small parameters: they stay exact, they are little to send and much to spoil."""
    return dims >= 2 and count >= LEAST_COUNT


def choose_per_layer(
    layers: Sequence[Layer], candidates: Sequence[Codec], most_error: float
) -> dict[int, Codec | None]:
    """A codec for each parameter, so that as few bytes as possible travel under one error budget for all.

    The budget: root of the summed squared errors over the norm of the whole gradient. Greedy: the step that saves most
    bytes for the error it brings is taken first (as with the fractional knapsack), while the budget lasts.

    Raises:
        ConfigError: the budget is not a number of 0 or more.
    """
    if not most_error >= 0:
        raise ConfigError(f"error budget {most_error}: it must be 0 or more")
    chosen: dict[int, Codec | None] = {layer.parameter: None for layer in layers}
    left = most_error**2 * sum(layer.norm**2 for layer in layers)
    ladder: list[Codec | None] = [None, *sorted(candidates, key=lambda codec: -codec.bits_per_element)]
    rung = [0] * len(layers)
    steps: list[tuple[float, float, int, int, int, int]] = []  # the best first

    def offer(index: int) -> None:
        layer, at = layers[index], rung[index]
        for to in range(at + 1, len(ladder)):
            saved, cost = _step(layer, ladder[at], ladder[to])
            if saved > 0:
                heapq.heappush(steps, (-saved / max(cost, 1e-300), -saved, layer.parameter, -to, index, at))

    for index, layer in enumerate(layers):
        if compressible(layer.count, layer.dims):
            offer(index)
    while steps:
        _, _, parameter, minus_to, index, at = heapq.heappop(steps)
        _, cost = _step(layers[index], ladder[at], ladder[-minus_to])
        if at == rung[index] and cost <= left:  # what does not fit now never will
            left -= cost
            rung[index], chosen[parameter] = -minus_to, ladder[-minus_to]
            offer(index)
    return chosen


def _step(layer: Layer, now: Codec | None, then: Codec | None) -> tuple[float, float]:
    """Bits saved and squared error added by another codec for a layer."""
    saved = layer.count * (_bits(now) - _bits(then))
    return saved, layer.norm**2 * (expected_error(then) ** 2 - expected_error(now) ** 2)


def _bits(codec: Codec | None) -> float:
    return 8.0 * _FLOAT_BYTES if codec is None else codec.bits_per_element


@dataclass(frozen=True)
class Ramp:
    """How compression begins: exact, then gently, then as wanted (as Lin et al. 2018 warm top-k up).

    Steps 0 to ``exact_steps`` - 1 are exact, the next ``gentle_steps`` use ``gentle``.
    """

    exact_steps: int = 0
    gentle_steps: int = 0
    gentle: Codec | None = None

    def __post_init__(self) -> None:
        if self.exact_steps < 0 or self.gentle_steps < 0 or (self.gentle_steps and self.gentle is None):
            raise ConfigError(f"{self}: steps are not negative, and gentle steps need a codec")

    def codec(self, wanted: Codec | None, step: int) -> Codec | None:
        """What to use in a step."""
        if step < self.exact_steps:
            return None
        return self.gentle if step < self.exact_steps + self.gentle_steps else wanted


class Switching:
    """Precision switched by the gradient: fine while its norm changes fast, coarse while it is steady.

    After Agarwal et al. 2021 (Accordion): norms of windows are compared; a relative change of at least ``change`` is a
    critical regime, in which the fine codec is used. Its state is a function of the norms it was told, which all ranks
    have agreed.

    Args:
        fine, coarse: codecs of the two regimes.
        window: steps whose squared norms are averaged.
        change: of the root of that average, relative to the window before.
    """

    def __init__(self, fine: Codec, coarse: Codec, window: int = 20, change: float = 0.2) -> None:
        if window < 1 or not change > 0:
            raise ConfigError(f"switching: a window of {window} steps and a change of {change} make no sense")
        self._fine, self._coarse, self._window, self._change = fine, coarse, window, change
        self._sum, self._count, self._last = 0.0, 0, math.nan
        self.codec = fine

    @property
    def codecs(self) -> tuple[Codec, Codec]:
        """Fine and coarse."""
        return self._fine, self._coarse

    def observe(self, norm: float) -> Codec:
        """Take the norm of a step's reduced gradient; return the codec for the next step."""
        self._sum += norm * norm
        self._count += 1
        if self._count == self._window:
            now = math.sqrt(self._sum / self._count)
            steady = self._last > 0 and abs(now - self._last) < self._change * self._last  # NaN: not steady
            self.codec = self._coarse if steady else self._fine
            self._sum, self._count, self._last = 0.0, 0, now
        return self.codec

    def state_dict(self) -> dict[str, Any]:
        """Of the regime and the window."""
        return {"coarse": self.codec == self._coarse, "window": [self._sum, self._count, self._last]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take :meth:`state_dict` up."""
        self.codec = self._coarse if state["coarse"] else self._fine
        self._sum, self._count, self._last = state["window"]


class Guard:
    """Falls back to exact where errors grow over gradients, or something is not finite. State: how long it stays so.

    Args:
        most_ratio: largest |error| / |gradient| that is taken.
        hold_steps: of exact steps after it was exceeded.
        memory: of 0 to 1, how slowly the usual gradient follows: a small batch of easy samples is no reason to stop, so
            errors are compared with the larger of the gradient and what it usually is.
    """

    def __init__(self, most_ratio: float = 10.0, hold_steps: int = 5, memory: float = 0.95) -> None:
        if not most_ratio > 0 or hold_steps < 1 or not 0 <= memory < 1:
            raise ConfigError(f"guard: a ratio of {most_ratio}, {hold_steps} steps and {memory} make no sense")
        self._most_ratio, self._hold_steps, self._memory = most_ratio, hold_steps, memory
        self._until = 0  # the step from which on compression is allowed
        self._usual: dict[str, float] = {}

    def look(self, gradient_squared: float, error_squared: float, step: int, what: str = "") -> str:
        """Why ``what`` must be exact in a step, or "".

        Args:
            gradient_squared, error_squared: sums of squares over all ranks; NaN or infinite where an element is.
            step: ascending.
            what: which part of the gradient; each has its own usual size.
        """
        if not math.isfinite(gradient_squared):
            return "the gradient is not finite"
        before = self._usual.get(what) or gradient_squared
        usual = self._usual[what] = gradient_squared + self._memory * (before - gradient_squared)
        scale = max(gradient_squared, usual)
        ratio_squared = error_squared / scale if scale > 0 else 0.0
        if not ratio_squared <= self._most_ratio**2:
            self._until = step + self._hold_steps
            ratio = math.sqrt(ratio_squared) if ratio_squared >= 0 else math.nan
            most = f"more than {self._most_ratio:g}; exact for {self._hold_steps} steps"
            return f"errors are {ratio:.3g} times the gradient, {most}"
        return "exact since errors were too large" if step < self._until else ""

    def state_dict(self) -> dict[str, Any]:
        """How long compression is off, and what gradients usually are."""
        return {"until": self._until, "usual": dict(self._usual)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take :meth:`state_dict` up."""
        self._until, self._usual = int(state["until"]), dict(state["usual"])
