from __future__ import annotations

import pytest

from hccl_py.bench.metrics import Summary, algbw_Bps, calls_per_sample, geometric_mean, scan_bytes
from hccl_py.core.errors import ConfigError


def test_scan_by_factor_and_by_step() -> None:
    assert scan_bytes(8, 2048, factor=4) == [8, 32, 128, 512, 2048]
    assert scan_bytes(8, 2047, factor=4) == [8, 32, 128, 512]
    assert scan_bytes(100, 300, step=100) == [100, 200, 300]
    assert scan_bytes(1 << 20, 3 << 20) == [1 << 20, 2 << 20, 3 << 20]
    assert scan_bytes(64, 64, factor=2) == [64]


def test_scan_by_a_small_factor_grows_and_ends() -> None:
    sizes = scan_bytes(1, 10, factor=1.1)
    assert sizes == sorted(set(sizes)) and sizes[-1] == 10


@pytest.mark.parametrize(
    ("begin", "end", "step", "factor"),
    [(0, 8, None, 2.0), (9, 8, None, 2.0), (8, 9, None, 1.0), (8, 9, 0, None), (8, 9, 1, 2.0)],
)
def test_scan_refuses(begin: int, end: int, step: int | None, factor: float | None) -> None:
    with pytest.raises(ConfigError):
        scan_bytes(begin, end, step, factor)


def test_summary_of_known_samples() -> None:
    summary = Summary.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (summary.median_s, summary.min_s, summary.max_s, summary.count) == (3.0, 1.0, 5.0, 5)
    assert summary.low_s == pytest.approx(1.4) and summary.high_s == pytest.approx(4.6)
    assert summary.spread == pytest.approx(3.2 / 2 / 3)


def test_bandwidth_and_mean() -> None:
    assert algbw_Bps(1000, 0.5) == 2000
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_calls_per_sample_fall_with_the_size() -> None:
    calls = [calls_per_sample(1 << power) for power in range(27)]
    assert calls == sorted(calls, reverse=True) and calls[0] >= 10 and calls[-1] == 1
