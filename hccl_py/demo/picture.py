"""The pictures of the demonstration: loss curves, the parts of a step, and bandwidth by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hccl_py.core.units import format_bytes

# one colour a library, distinguishable with every kind of colour vision; ours is the strong one
COLOURS = {"hccl_py": "#d1495b", "gloo": "#30638e", "openmpi": "#7a7a7a", "mpich": "#b08d57"}
INK, FAINT = "#222222", "#dddddd"


def draw_losses(record: dict[str, Any], path: Path) -> None:
    """Draw the training loss of every task, the backends one over the other."""
    names = list(record["training"][0]["tasks"])
    figure, axes = _figure(len(names), 5.2, 3.8)
    for name, ax in zip(names, axes, strict=True):
        results = [(result["backend"], result["tasks"][name]) for result in record["training"]]
        for number, (backend, task) in enumerate(results):
            style: dict[str, Any] = {"linewidth": 4.5, "alpha": 0.45} if number == 0 else {"linewidth": 1.4}
            label = f"{backend}: {_judged(task)}"
            ax.plot(
                range(1, len(task["losses"]) + 1), task["losses"], color=_colour(backend, number), label=label, **style
            )
        _dress(ax, results[0][1]["title"], "step", "training loss (nats)")
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False, title="held-out, after training", alignment="left")
    _save(figure, path, f"DDP with {record['ranks']} ranks: training loss over each backend")


def draw_steps(record: dict[str, Any], path: Path) -> None:
    """Draw the time of a step as computation and waiting, for every task and backend."""
    figure, axes = _figure(len(record["steps"]), 5.2, 2.6)
    for task, ax in zip(record["steps"].values(), axes, strict=True):
        alone_ms = task["no_sync_step_s"] * 1e3
        for number, (backend, result) in enumerate(task["backends"].items()):
            total_ms = result["step_s"] * 1e3
            computing_ms = min(alone_ms, total_ms)
            ax.barh(number, computing_ms, color=FAINT, height=0.6)
            ax.barh(number, total_ms - computing_ms, left=computing_ms, color=_colour(backend, number), height=0.6)
            ax.text(total_ms, number, f" {total_ms:.0f} ms, {result['waiting']:.0%} waiting", va="center", color=INK)
        ax.set_yticks(range(len(task["backends"])), list(task["backends"]))
        ax.invert_yaxis()
        ax.set_xlim(0, max(result["step_s"] for result in task["backends"].values()) * 1e3 * 1.5)
        _dress(ax, task["title"], "ms per step", "")
        ax.grid(False, axis="y")
    _save(figure, path, f"A step of {record['ranks']} ranks: computation (grey) and waiting for communication (colour)")


def draw_bandwidth(record: dict[str, Any], path: Path) -> None:
    """Draw time and bus bandwidth of all_reduce by size, each library with the spread of its samples."""
    figure, axes = _figure(2, 5.2, 4.2)
    rows = record["bench"]["rows"]
    for number, library in enumerate(dict.fromkeys(row["library"] for row in rows)):
        points = [(row["size_bytes"], row["in_place"]) for row in rows if row["library"] == library]
        sizes = [size for size, _ in points]
        style: dict[str, Any] = {"color": _colour(library, number), "marker": "o", "markersize": 4, "label": library}
        for ax, scale in ((axes[0], lambda _, time_s: time_s), (axes[1], _busbw_Bps)):
            ax.plot(
                sizes,
                [scale(cell, cell["time_s"]) for _, cell in points],
                linewidth=2.2 if library == "hccl_py" else 1.4,
                **style,
            )
            low = [scale(cell, cell["low_s"]) for _, cell in points]
            high = [scale(cell, cell["high_s"]) for _, cell in points]
            ax.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)
    ticks = sorted({row["size_bytes"] for row in rows})[:: 2 if len(rows) > 18 else 1]
    for ax, title, write in (
        (axes[0], "time per call (lower is better)", format_time),
        (axes[1], "bus bandwidth (higher is better)", format_rate),
    ):
        ax.set_xscale("log")
        ax.set_yscale("log")
        _dress(ax, title, "size of the buffer", "")
        ax.set_xticks(ticks, [format_bytes(size).replace("iB", "") for size in ticks])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _, write=write: write(value)))
        ax.legend(frameon=False)
    text = f"all_reduce, float32, in place, {record['ranks']} ranks: medians, and the 10th to 90th percentile as a band"
    _save(figure, path, text)


def _busbw_Bps(cell: dict[str, Any], time_s: float) -> float:
    return float(cell["busbw_Bps"]) * float(cell["time_s"]) / time_s


def format_time(time_s: float) -> str:
    """Return a time with the unit that fits: 2.5e-5 -> "25 us"."""
    unit, scale = ("s", 1.0) if time_s >= 1 else ("ms", 1e3) if time_s >= 1e-3 else ("us", 1e6)
    return f"{time_s * scale:.3g} {unit}"


def format_rate(rate_Bps: float) -> str:
    """Return a bandwidth with the unit that fits: 2.5e7 -> "25 MB/s"."""
    unit, scale = ("GB/s", 1e9) if rate_Bps >= 1e9 else ("MB/s", 1e6) if rate_Bps >= 1e6 else ("kB/s", 1e3)
    return f"{rate_Bps / scale:.3g} {unit}"


def _judged(task: dict[str, Any]) -> str:
    value = task["judged"]
    return f"{value:.1%} right" if task["judged_by"] == "accuracy" else f"{value:.3f} {task['judged_by']}"


def _colour(library: str, number: int) -> str:
    return COLOURS.get(library, f"C{number}")


def _figure(columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _dress(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    ax.grid(True, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#999999")
    ax.tick_params(colors="#555555")


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    figure.savefig(path, dpi=130, facecolor="white")
