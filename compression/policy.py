"""Whether to compress, and with what: pure functions of measured numbers that all ranks have agreed.

Compression pays where encode + send + decode is less than send. Most networks inside a machine room are too fast for
it; then the answer is exact, with a line that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Codec, CodecId
from hccl_py.core.errors import ConfigError

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Link:
    """What one rank can send to the others while it receives as much: measured with exact all_reduces."""

    bandwidth_Bps: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bandwidth_Bps > 0 and self.latency_s >= 0):
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
    if isinstance(codec, BlockCodec):  # all is encoded, then a shard; a shard of each rank is decoded, then all
        coding = num_bytes * (1 + 1 / ranks) / speed.encode_Bps + 2 * num_bytes / speed.decode_Bps
        return coding + 2 * (ranks - 1) / ranks * small / link.bandwidth_Bps + 2 * link.latency_s
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
        least_gain: exact time over compressed time from which it is worth it.
    """
    exact = exact_s(num_bytes, ranks, link)
    allowed = [codec for codec in speeds if expected_error(codec) <= most_error]
    size = f"{num_bytes / 2**20:.1f} MiB over {link.bandwidth_Bps / 1e6:.0f} MB/s between {ranks} ranks"
    if not allowed:
        return Decision(None, exact, math.inf, f"exact: no codec has an error of at most {most_error:g}")
    times = {codec: compressed_s(codec, num_bytes, ranks, link, speeds[codec]) for codec in allowed}
    best = min(times, key=lambda codec: (times[codec], codec.text))
    said = f"{size}: exact {exact * 1e3:.2f} ms, {best.text} {times[best] * 1e3:.2f} ms"
    if times[best] * least_gain >= exact:
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
    energy = sum(layer.norm**2 for layer in layers)
    left = most_error**2 * energy
    ladder: list[Codec | None] = [None, *sorted(candidates, key=lambda codec: -codec.bits_per_element)]
    rung = {layer.parameter: 0 for layer in layers}
    while True:
        best: tuple[float, float, int, int] | None = None
        for layer in layers:
            if not compressible(layer.count, layer.dims):
                continue
            at = rung[layer.parameter]
            for to in range(at + 1, len(ladder)):
                saved = layer.count * (_bits(ladder[at]) - _bits(ladder[to]))
                cost = layer.norm**2 * (expected_error(ladder[to]) ** 2 - expected_error(ladder[at]) ** 2)
                if saved <= 0 or cost > left:
                    continue
                key = (saved / max(cost, 1e-300), saved, -layer.parameter, to)
                best = key if best is None or key > best else best
        if best is None:
            return chosen
        parameter, to = -best[2], best[3]
        layer = next(layer for layer in layers if layer.parameter == parameter)
        left -= layer.norm**2 * (expected_error(ladder[to]) ** 2 - expected_error(ladder[rung[parameter]]) ** 2)
        rung[parameter], chosen[parameter] = to, ladder[to]


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
        self._held = 0
        self._usual = 0.0

    def look(self, gradient_squared: float, error_squared: float) -> str:
        """Sums of squares over all ranks, NaN or infinite where an element is; why this step must be exact, or ""."""
        if not math.isfinite(gradient_squared):
            return "the gradient is not finite"
        self._usual = gradient_squared + self._memory * ((self._usual or gradient_squared) - gradient_squared)
        scale = max(gradient_squared, self._usual)
        ratio_squared = error_squared / scale if scale > 0 else 0.0
        if not ratio_squared <= self._most_ratio**2:
            self._held = self._hold_steps
            ratio = math.sqrt(ratio_squared) if ratio_squared >= 0 else math.nan
            most = f"more than {self._most_ratio:g}; exact for {self._held} steps"
            return f"errors are {ratio:.3g} times the gradient, {most}"
        if self._held:
            self._held -= 1
            return "exact since errors were too large" if self._held else ""
        return ""
