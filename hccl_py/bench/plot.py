"""The record of a run as a picture: time against size, a panel per collective, type and form, a line per library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hccl_py.bench.table import FORMS
from hccl_py.core.errors import ConfigError
from hccl_py.core.units import format_bytes

KINDS = (".png", ".svg", ".pdf")
COLORS = {"hccl_py": "#d1495b", "gloo": "#7d8491", "openmpi": "#2e6f9e", "mpich": "#edae49"}
SPARE = ("#66a182", "#8d6a9f", "#2e4057")
PANELS_A_ROW = 2


def check(path: Path) -> None:
    """Raise ConfigError unless a picture can be drawn to ``path``."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"--plot {path}: the name must end in one of {', '.join(KINDS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--plot {path} needs matplotlib: pip install 'hccl-py[viz]'")


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the record of :func:`hccl_py.bench.report.document`; bands are the 10th to the 90th percentile.

    Both axes are logarithmic. Raises ConfigError if nothing was measured at more than one size.
    """
    check(path)
    from matplotlib.figure import Figure

    panels = {key: curves for key, curves in _panels(record).items() if any(len(c) > 1 for c in curves.values())}
    if not panels:
        raise ConfigError("--plot needs at least two sizes: give -b, -e and -f")
    rows = -(-len(panels) // PANELS_A_ROW)
    columns = min(PANELS_A_ROW, len(panels))
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    spare = iter(SPARE * len(names))
    colors = {name: COLORS[name] if name in COLORS else next(spare) for name in names}
    for axis, (title, curves) in zip(axes, panels.items(), strict=False):
        for name, points in curves.items():
            sizes = sorted(points)
            median, low, high = ([points[size][i] * 1e6 for size in sizes] for i in range(3))
            axis.plot(sizes, median, marker=".", color=colors[name], label=name, zorder=3 if name == "hccl_py" else 2)
            axis.fill_between(sizes, low, high, color=colors[name], alpha=0.15, linewidth=0)
        axis.set(xscale="log", yscale="log", title=title, ylabel="time per call (us)", xlabel="size")
        ticks = [1 << power for power in range(0, 40, 5) if min(sizes) <= 1 << power <= max(sizes)]
        axis.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in list(figure.axes)[len(panels) :]:
        axis.set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize="small")
    figure.suptitle(
        f"{record['ranks']} ranks, {record['machine']['cores_usable']} cores, {record['date'][:10]}", fontsize=9
    )
    figure.savefig(path, dpi=110)


def _panels(record: dict[str, Any]) -> dict[str, dict[str, dict[int, tuple[float, float, float]]]]:
    """Return ``{title: {library: {size in bytes: (median, low, high) seconds}}}``."""
    found: dict[str, dict[str, dict[int, tuple[float, float, float]]]] = {}
    for row in record["rows"]:
        for key, form in FORMS.items():
            cell = row[key]
            if "absent" in cell:
                continue
            words = (row["collective"], row["dtype"], row["redop"] or "", form)
            title = ", ".join(word for word in words if word and word not in ("sum", "float32"))
            points = found.setdefault(title, {}).setdefault(row["library"], {})
            points[row["size_bytes"]] = (cell["time_s"], cell["low_s"], cell["high_s"])
    return found
