"""Two libraries measured in turn: paired ratios with their limits, the best of several baselines, and cliffs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccl_py.bench.metrics import Summary
from hccl_py.bench.run import Cell, Row
from hccl_py.core.errors import ConfigError

RESAMPLES = 2000
CLIFF = 1.5  # times what the neighbours promise


@dataclass(frozen=True)
class Ratio:
    """Time of ours / time of theirs: the median over pairs of samples, and its one-sided 95% limits by bootstrap."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, ours_s: Sequence[float], theirs_s: Sequence[float]) -> Ratio:
        """Pair sample i of ours with sample i of theirs: they were taken in the same round.

        Raises ConfigError if there are no pairs.
        """
        n = min(len(ours_s), len(theirs_s))
        if n == 0:
            raise ConfigError("a ratio needs samples of both libraries")
        pairs = np.asarray(ours_s[:n]) / np.asarray(theirs_s[:n])
        drawn = np.random.default_rng(n).integers(0, n, (RESAMPLES, n))
        low, high = np.quantile(np.median(pairs[drawn], axis=1), (0.05, 0.95))
        return cls(float(np.median(pairs)), float(low), float(high), n)


@dataclass(frozen=True)
class Compared:
    """One collective at one size in one form: ours against a baseline."""

    baseline: str
    case: str
    type: str
    redop: str | None
    root: int | None
    size_bytes: int
    form: str  # "out of place" or "in place"
    ratio: Ratio
    ours_s: float  # median
    theirs_s: float


def compared(rows: Iterable[Row], ours: str) -> list[Compared]:
    """Compare ``ours`` with each other library wherever both were measured, in the order of the rows."""
    rows = list(rows)
    mine = {(_key(row), form): cell for row in rows if row.library == ours for form, cell in forms(row)}
    return [
        Compared(
            baseline=row.library,
            case=row.case,
            type=row.dtype.name.lower(),
            redop=None if row.op is None else row.op.name.lower(),
            root=row.root,
            size_bytes=row.size_bytes,
            form=form,
            ratio=Ratio.of(mine[_key(row), form].samples_s, cell.samples_s),
            ours_s=Summary.of(mine[_key(row), form].samples_s).median_s,
            theirs_s=Summary.of(cell.samples_s).median_s,
        )
        for row in rows
        if row.library != ours
        for form, cell in forms(row)
        if (_key(row), form) in mine
    ]


def against_best(comparisons: Iterable[Compared]) -> list[Compared]:
    """Keep, for each collective, type, size and form, the baseline whose median time is the least."""
    best: dict[tuple[Any, ...], Compared] = {}
    for one in comparisons:
        key = (one.case, one.type, one.redop, one.root, one.size_bytes, one.form)
        if key not in best or one.theirs_s < best[key].theirs_s:
            best[key] = one
    return list(best.values())


def steepness(times_s: Mapping[int, float]) -> dict[int, float]:
    """Return for each size between two others its time over what its neighbours promise: a line through both.

    ``times_s``: time by size in bytes. A start-up time plus bytes / bandwidth gives 1.0 at every size.
    """
    sizes = sorted(times_s)
    found = {}
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        share = (size - before) / (after - before)
        found[size] = times_s[size] / (times_s[before] * (1 - share) + times_s[after] * share)
    return found


@dataclass(frozen=True)
class Cliff:
    """A size that takes more than :data:`CLIFF` times what its neighbours promise."""

    library: str
    case: str
    type: str
    size_bytes: int
    form: str
    steepness: float


def cliffs(rows: Iterable[Row], limit: float = CLIFF) -> list[Cliff]:
    """Find the cliffs of every library, in every curve of three sizes or more."""
    curves: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        for form, cell in forms(row):
            curve = curves.setdefault((row.library, row.case, row.dtype, row.op, row.root, form), {})
            curve[row.size_bytes] = Summary.of(cell.samples_s).median_s
    return [
        Cliff(key[0], key[1], key[2].name.lower(), size, key[5], steep)
        for key, times_s in curves.items()
        for size, steep in steepness(times_s).items()
        if steep > limit
    ]


def forms(row: Row) -> list[tuple[str, Cell]]:
    """Return the forms of a row that were measured, by name."""
    both = (("out of place", row.out_of_place), ("in place", row.in_place))
    return [(form, cell) for form, cell in both if not cell.absent]


def _key(row: Row) -> tuple[Any, ...]:
    return (row.case, row.dtype, row.op, row.root, row.size_bytes)
