"""Paired ratios and their limits, the best of several baselines, cliffs."""

from __future__ import annotations

import numpy as np
import pytest

from hccl_py.bench.compare import CLIFF, Ratio, against_best, cliffs, compared, steepness
from hccl_py.bench.run import Cell, Row
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp


def row(library: str, size_bytes: int, *samples_s: float, in_place: tuple[float, ...] = ()) -> Row:
    other = Cell(samples_s=in_place, calls=1) if in_place else Cell(absent="no such form")
    cell = Cell(samples_s=samples_s, calls=1)
    return Row(library, "all_reduce", size_bytes, size_bytes // 4, DType.FLOAT32, ReduceOp.SUM, None, cell, other)


def test_ratio_pairs_the_samples_of_a_round() -> None:
    """The machine slowed down halfway: the medians' ratio would be 1.5, each pair's is 2."""
    ratio = Ratio.of([2.0, 2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 1.0, 10.0, 10.0])
    assert (ratio.median, ratio.low, ratio.high, ratio.n) == (2.0, 2.0, 2.0, 5)


def test_limits_hold_the_median_and_narrow_with_more_samples() -> None:
    noise = np.random.default_rng(1).lognormal(0, 0.3, 400)
    few, many = (Ratio.of(noise[:n].tolist(), [1.0] * n) for n in (20, 400))
    assert few.low < few.median < few.high and many.low < many.median < many.high
    assert many.high - many.low < (few.high - few.low) / 2
    assert many.low < 1.0 < many.high, "the true median"


def test_upper_limit_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = [Ratio.of(rng.lognormal(0, 0.2, 32).tolist(), [1.0] * 32).high >= 1.0 for _ in range(200)]
    assert 0.9 <= np.mean(covered) <= 1.0


def test_no_samples_are_no_ratio() -> None:
    with pytest.raises(ConfigError):
        Ratio.of([1.0], [])


def test_comparison_is_by_size_and_form_and_the_best_is_the_quickest_baseline() -> None:
    rows = [
        row("hccl_py", 8, 2.0, 2.0, in_place=(3.0, 3.0)),
        row("a", 8, 1.0, 1.0),
        row("b", 8, 4.0, 4.0, in_place=(6.0, 6.0)),
        row("a", 64, 1.0, 1.0),  # ours has no such size
    ]
    found = compared(rows, "hccl_py")
    assert [(one.baseline, one.size_bytes, one.form, one.ratio.median) for one in found] == [
        ("a", 8, "out of place", 2.0),
        ("b", 8, "out of place", 0.5),
        ("b", 8, "in place", 0.5),
    ]
    assert [(one.baseline, one.form) for one in against_best(found)] == [("a", "out of place"), ("b", "in place")]
    assert (found[0].ours_s, found[0].theirs_s) == (2.0, 1.0)


def test_start_up_plus_bytes_by_bandwidth_is_no_cliff_whatever_the_sizes() -> None:
    times_s = {size: 2e-6 + size / 4e9 for size in (8, 64, 100, 4096, 1 << 20, 3 << 20)}
    assert steepness(times_s) == pytest.approx(dict.fromkeys((64, 100, 4096, 1 << 20), 1.0))
    assert steepness({8: 1.0, 64: 2.0}) == {}


def test_a_planted_cliff_is_found_and_only_it() -> None:
    rows = [
        row("hccl_py", size, 1e-6 + size / 1e9 * (2 if size == 4096 else 1)) for size in (256, 1024, 4096, 16384, 65536)
    ]
    assert [(cliff.size_bytes, cliff.form) for cliff in cliffs(rows)] == [(4096, "out of place")]
    assert cliffs(rows)[0].steepness > CLIFF
    assert cliffs(rows, limit=2.0) == []


def test_curves_of_two_libraries_are_not_mixed() -> None:
    assert cliffs([row("a", 8, 1.0), row("b", 16, 9.0), row("a", 32, 1.0)]) == []
