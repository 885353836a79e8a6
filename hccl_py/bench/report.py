"""What comes out: nccl-tests' table with a column for the library, a summary against the baselines, and JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from hccl_py.bench.cases import CASES
from hccl_py.bench.compare import Compared, against_best, cliffs, compared
from hccl_py.bench.dtypes import short_name
from hccl_py.bench.metrics import Summary, algbw_Bps, geometric_mean
from hccl_py.bench.run import Cell, Row, Settings
from hccl_py.core.cpus import usable_cpus
from hccl_py.core.units import format_bytes

SCHEMA = "hccl_py.bench/1"


def preamble(n: int, settings: Settings, versions: dict[str, str]) -> list[str]:
    """Return the lines above all tables: how it was measured, and what."""
    sizes, calls = settings.sizes_bytes, "by size" if settings.calls is None else str(settings.calls)
    return [
        f"# nRanks {n} minBytes {sizes[0]} maxBytes {sizes[-1]} samples {settings.samples} "
        f"warmup {settings.warmup} calls per sample {calls} validation {int(settings.check)}",
        *(f"# {name}: {version}" for name, version in versions.items()),
        "# time: median over the samples of the slowest rank's time per call; the libraries take turns, ABBA...",
    ]


def columns(case: str, width: int) -> list[str]:
    """Return the heading of the table of ``case``; ``width`` is that of the longest library's name."""
    half = f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>7}{'spread':>7}"
    units = f"{'(us)':>9}{'(GB/s)':>8}{'(GB/s)':>8}{'':>7}{'(+-%)':>7}"
    return [
        "#",
        f"# {case:<{width + 42}} {'out-of-place':^39} {'in-place':^39}".rstrip(),
        f"# {'library':>{width}}{'size':>11}{'count':>11}{'type':>9}{'redop':>7}{'root':>5} {half} {half}",
        f"# {'':>{width}}{'(B)':>11}{'(elements)':>11}{'':>21} {units} {units}",
    ]


def line(row: Row, n: int, width: int) -> str:
    """Return the line of one row; ``width`` is that of the longest library's name."""
    op = row.op.name.lower() if row.op is not None else "none"
    root = -1 if row.root is None else row.root
    return (
        f"  {row.library:>{width}}{row.size_bytes:>11}{row.count:>11}{short_name(row.dtype):>9}"
        f"{op:>7}{root:>5} {_cell(row, row.out_of_place, n)} {_cell(row, row.in_place, n)}"
    )


def _cell(row: Row, cell: Cell, n: int) -> str:
    if cell.absent:
        return f"{'N/A':>9}{'N/A':>8}{'N/A':>8}{'N/A':>7}{'N/A':>7}"
    summary = Summary.of(cell.samples_s)
    algbw = algbw_Bps(row.size_bytes, summary.median_s) / 1e9
    busbw = algbw * CASES[row.case].bus_factor(n)
    wrong = "N/A" if cell.wrong is None else str(cell.wrong)
    return f"{_us(summary.median_s):>9}{algbw:>8.2f}{busbw:>8.2f}{wrong:>7}{summary.spread * 100:>7.0f}"


def _us(time_s: float) -> str:
    time_us = time_s * 1e6
    return f"{time_us:.2f}" if time_us < 1000 else f"{time_us:.1f}" if time_us < 100_000 else f"{time_us:.0f}"


def footer(rows: Sequence[Row], n: int) -> list[str]:
    """Return the lines below the table: elements wrong, average bus bandwidth, and the comparison."""
    ours = rows[0].library
    wrong = count_wrong(rows)
    bandwidths = [
        algbw_Bps(row.size_bytes, Summary.of(cell.samples_s).median_s) / 1e9 * CASES[row.case].bus_factor(n)
        for row in rows
        if row.library == ours
        for cell in (row.out_of_place, row.in_place)
        if not cell.absent
    ]
    lines = [
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth    : {sum(bandwidths) / len(bandwidths):.4f} ({ours})",
    ]
    comparisons = compared(rows, ours)
    for name in dict.fromkeys(one.baseline for one in comparisons):
        lines.append(_against(ours, name, [one for one in comparisons if one.baseline == name]))
    if len({one.baseline for one in comparisons}) > 1:
        lines.append(_against(ours, "the best of them at each size", against_best(comparisons)))
    for cliff in cliffs(row for row in rows if row.library == ours):
        lines.append(
            f"# cliff: {cliff.library} {cliff.case} {cliff.type} {format_bytes(cliff.size_bytes)} {cliff.form} takes "
            f"{cliff.steepness:.2f}x what its neighbours promise"
        )
    return lines


def _against(ours: str, other: str, comparisons: Sequence[Compared]) -> str:
    slower = [one for one in comparisons if one.ratio.median > 1]
    named = ", ".join(
        f"{one.case} {format_bytes(one.size_bytes)} {one.form} "
        f"({one.ratio.median:.2f}x the time, 95% limits {one.ratio.low:.2f} and {one.ratio.high:.2f})"
        for one in slower[:6]
    )
    return (
        f"# {ours} against {other}: {geometric_mean([1 / one.ratio.median for one in comparisons]):.2f}x as fast "
        f"(geometric mean), faster at {len(comparisons) - len(slower)} of {len(comparisons)}"
        + (f"; slower at {named}{', ...' if len(slower) > 6 else ''}" if slower else "")
    )


def count_wrong(rows: Iterable[Row]) -> int:
    """Return the number of wrong elements in all rows."""
    return sum(cell.wrong or 0 for row in rows for cell in (row.out_of_place, row.in_place))


def document(rows: Sequence[Row], n: int, command: str, versions: dict[str, str], settings: Settings) -> dict[str, Any]:
    """Return the record of a run: what was run, where, when, with which versions, and every sample."""
    return {
        "schema": SCHEMA,
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "numpy": importlib.metadata.version("numpy"), **versions},
        "ranks": n,
        "samples": settings.samples,
        "warmup": settings.warmup,
        "rows": [_record(row, n) for row in rows],
        "ratios": [asdict(one) for one in compared(rows, rows[0].library)],
        "cliffs": [asdict(cliff) for cliff in cliffs(rows)],
    }


def machine() -> dict[str, Any]:
    """Return what describes this machine's speed: processor, usable and present cores, system."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((text.partition(":")[2].strip() for text in file if text.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model,
        "cores_usable": usable_cpus(),
        "cores_present": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _record(row: Row, n: int) -> dict[str, Any]:
    return {
        "library": row.library,
        "collective": row.case,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": short_name(row.dtype),
        "dtype": row.dtype.name.lower(),
        "redop": None if row.op is None else row.op.name.lower(),
        "root": row.root,
        "out_of_place": _cell_record(row, row.out_of_place, n),
        "in_place": _cell_record(row, row.in_place, n),
    }


def _cell_record(row: Row, cell: Cell, n: int) -> dict[str, Any]:
    if cell.absent:
        return {"absent": cell.absent}
    summary = Summary.of(cell.samples_s)
    algbw = algbw_Bps(row.size_bytes, summary.median_s)
    return {
        "time_s": summary.median_s,
        "low_s": summary.low_s,
        "high_s": summary.high_s,
        "algbw_Bps": algbw,
        "busbw_Bps": algbw * CASES[row.case].bus_factor(n),
        "wrong": cell.wrong,
        "calls_per_sample": cell.calls,
        "samples_s": list(cell.samples_s),
    }
