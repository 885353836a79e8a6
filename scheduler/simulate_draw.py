"""Pictures of simulations: how busy the links were, and when which message ran. Needs matplotlib (extra ``viz``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import format_seconds
from hccl_py.scheduler.simulate import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
_MAX_PLANS = 3
_MAX_LINKS = 16
_MAX_LANES = 40
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def check_picture(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is simulated.

    Raises:
        ConfigError: another ending than .png, .svg or .pdf, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a picture ends in one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'hccl-py[viz]'") from error


def draw_simulations(simulations: Sequence[tuple[str, Simulation]], path: Path, title: str) -> Path:
    """Write a picture of the first three: a column each, links above, messages below, all on one time axis.

    Args:
        simulations: with their names.
        path: its ending says the format.
        title: heading.

    Raises:
        ConfigError: as `check_picture`, or the file cannot be written.
    """
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = simulations[:_MAX_PLANS]
    most = max(min(len(_lanes(simulation)), _MAX_LANES) for _, simulation in shown)
    figure = Figure(figsize=(6.2 * len(shown), 4.6 + 0.17 * most), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(shown), squeeze=False, height_ratios=(3.2, 1.0 + 0.17 * most))
    longest_s = max(simulation.seconds for _, simulation in shown)
    for column, (name, simulation) in enumerate(shown):
        _draw_links(axes[0][column], simulation)
        axes[0][column].set_title(f"{name}: {format_seconds(simulation.seconds)}", fontsize=10)
        _draw_messages(axes[1][column], simulation, longest_s)
    figure.suptitle(title, fontsize=11)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return path


def _draw_links(axes: Axes, simulation: Simulation) -> None:
    """The busiest links."""
    links = sorted(simulation.link_bytes, key=lambda link: (-simulation.utilisation(link), str(link)))
    shown = links[:_MAX_LINKS]
    shares = [100 * simulation.utilisation(link) for link in shown]
    axes.barh(range(len(shown)), shares, color="#4c6ef5", height=0.7)
    axes.set_yticks(range(len(shown)), [str(link) for link in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    more = f" (the busiest {len(shown)} of {len(links)})" if len(links) > len(shown) else ""
    axes.set_xlabel(f"capacity used, %{more}", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def _lanes(simulation: Simulation) -> list[tuple[int, int]]:
    """Pairs (sender, receiver) in order of the ranks."""
    graph = simulation.graph
    return sorted(set(zip(graph.rank.tolist(), graph.peer.tolist(), strict=True)))


def _draw_messages(axes: Axes, simulation: Simulation, longest_s: float) -> None:
    """A bar for each message from start to sent, coloured by the number of its step; a line until it has arrived."""
    graph, times = simulation.graph, simulation.times
    lanes = _lanes(simulation)
    shown = {lane: row for row, lane in enumerate(lanes[:_MAX_LANES])}
    scale, unit = next(((s, u) for s, u in _SECONDS if longest_s >= s), _SECONDS[-1])
    row = np.array([shown.get(lane, -1) for lane in zip(graph.rank.tolist(), graph.peer.tolist(), strict=True)])
    drawn = (row >= 0) & ~np.isnan(times.sent_s)
    start, sent, arrived = (t[drawn] / scale for t in (times.start_s, times.sent_s, times.arrived_s))
    from matplotlib import colormaps

    steps = graph.step[drawn]
    colours = colormaps["viridis"](steps / max(int(steps.max(initial=0)), 1))
    axes.barh(row[drawn], sent - start, left=start, height=0.72, color=colours, linewidth=0.3, edgecolor="white")
    axes.hlines(row[drawn], sent, np.nan_to_num(arrived, nan=0.0), color="#868e96", linewidth=0.6)
    names = [f"{a} -> {b}" if a != b else f"{a}" for a, b in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=6)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, longest_s / scale * 1.02)
    axes.tick_params(axis="x", labelsize=8)
    notes = [f"{len(shown)} of {len(lanes)} pairs"] if len(lanes) > len(shown) else []
    if len(simulation.classes.representatives) < len(simulation.classes.of):
        notes.append("one rank of each class")
    if times.simulated < 1:
        notes.append(f"the first {100 * times.simulated:.0f}%")
    axes.set_xlabel(f"time, {unit}; dark: first step, light: last" + "".join(f"; {note}" for note in notes), fontsize=8)
    axes.set_ylabel("rank -> rank", fontsize=8)
