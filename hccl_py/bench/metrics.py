"""What the figures mean: sizes to scan, algorithm and bus bandwidth as nccl-tests defines them, medians and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError


def scan_bytes(begin: int, end: int, step: int | None = None, factor: float | None = None) -> list[int]:
    """Return the sizes in bytes from ``begin`` to ``end``, both included if they are met.

    ``factor`` multiplies, ``step`` adds; neither: ``step`` is 1 MiB, as in nccl-tests. Raises ConfigError if the
    arguments describe no sizes.
    """
    if begin < 1 or end < begin:
        raise ConfigError(f"sizes from {begin} to {end} bytes: -b must be at least 1 and -e not below -b")
    if factor is not None and step is not None:
        raise ConfigError("-i (step) and -f (factor) exclude each other: give one of them")
    if factor is not None:
        if factor <= 1:
            raise ConfigError(f"-f {factor:g}: the factor between sizes must be above 1")
        sizes, size = [], float(begin)
        while round(size) <= end:
            sizes.append(round(size))
            size = max(size * factor, size + 1)
        return sizes
    step = (1 << 20) if step is None else step
    if step < 1:
        raise ConfigError(f"-i {step}: the step between sizes must be at least one byte")
    return list(range(begin, end + 1, step))


def algbw_Bps(size_bytes: int, time_s: float) -> float:
    """Return the algorithm bandwidth, size / time, in bytes per second."""
    return size_bytes / time_s if time_s > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """Order statistics of the samples of one measurement; each sample is the time of one call in seconds."""

    count: int
    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th percentile
    min_s: float
    max_s: float

    @classmethod
    def of(cls, samples_s: Sequence[float]) -> Summary:
        """Summarise at least one sample; percentiles are interpolated."""
        ordered = sorted(samples_s)
        return cls(
            count=len(ordered),
            median_s=statistics.median(ordered),
            low_s=quantile(ordered, 0.1),
            high_s=quantile(ordered, 0.9),
            min_s=ordered[0],
            max_s=ordered[-1],
        )

    @property
    def spread(self) -> float:
        """Half the distance between the 10th and 90th percentile, relative to the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s if self.median_s > 0 else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the ``share`` quantile (0 to 1) of ``ordered``, interpolated between neighbours."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive ``values``; 0 if there are none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


def calls_per_sample(size_bytes: int) -> int:
    """Return how many calls one sample times, so that the clock and the barrier do not show in tiny calls.

    A function of the size alone: every library and every rank uses the same number.
    """
    for limit_bytes, calls in ((4 << 10, 20), (64 << 10, 8), (1 << 20, 2)):
        if size_bytes <= limit_bytes:
            return calls
    return 1
