"""A topology as a picture: the network on top, hosts side by side below it, in each host its NICs above its devices.

Needs matplotlib (the extra ``viz``), which is imported only when a picture is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import format_bandwidth, format_seconds
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.layout import Layout, lay_out
from hccl_py.topology.placement import Placement
from hccl_py.topology.tree import summary, tree_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "tree_text"]

SUFFIXES = (".png", ".svg", ".pdf")

_FILL = {
    NodeKind.HOST: "#e9ecef",
    NodeKind.NUMA: "#e9ecef",
    NodeKind.NIC: "#ffe3c2",
    NodeKind.SWITCH: "#d0d7de",
    DeviceKind.CPU: "#d0e3fa",
    DeviceKind.GPU: "#cdeac0",
    DeviceKind.NPU: "#e3d3f5",
}
_COLOUR = {
    LinkKind.NVLINK: "#2b8a3e",
    LinkKind.MEMORY: "#4c6ef5",
    LinkKind.SOCKET: "#7048e8",
    LinkKind.PCIE: "#868e96",
    LinkKind.INFINIBAND: "#c2255c",
    LinkKind.ROCE: "#e8590c",
    LinkKind.ETHERNET: "#b08800",
}
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))  # second, third, ... figures of one kind
_Figures = tuple[LinkKind, float, float]


def draw(topology: Topology, path: str | Path, placement: Placement | None = None, title: str = "") -> Path:
    """Write a picture of the graph.

    Args:
        topology: what to draw. Of many equal hosts only the first ones are drawn, and the rest are counted.
        path: the file to write; its ending (.png, .svg, .pdf) says the format.
        placement: if given, devices show their rank.
        title: heading; the summary of the graph stands below it.

    Returns:
        ``path``.

    Raises:
        ConfigError: matplotlib is not installed, an unknown ending, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a picture ends in one of {', '.join(SUFFIXES)}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'hccl-py[viz]'") from error
    layout = lay_out(topology)
    figure = Figure(figsize=(layout.width * 0.85 + 0.6, layout.height * 0.95 + 1.4), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    _draw_hosts(axes, layout)
    kinds = _draw_links(axes, topology, layout)
    _draw_nodes(axes, topology, layout, placement)
    axes.set_xlim(layout.left, layout.right)
    axes.set_ylim(layout.bottom, layout.top)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title or "topology", fontsize=13, fontweight="bold", loc="left", pad=20)
    axes.text(0, 1, summary(topology), transform=axes.transAxes, fontsize=8.5, color="#495057", va="bottom")
    _draw_legend(axes, kinds)
    try:
        figure.savefig(path, bbox_inches="tight", pad_inches=0.15, facecolor="white")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the picture: {error.strerror}") from error
    return path


def _draw_hosts(axes: Axes, layout: Layout) -> None:
    from matplotlib.patches import FancyBboxPatch

    for box in layout.boxes:
        style = "round,pad=0,rounding_size=0.15"
        patch = FancyBboxPatch(
            (box.left, box.bottom), box.width, box.height, boxstyle=style, fc="#fbfcfd", ec="#adb5bd", lw=1.1, zorder=0
        )
        axes.add_patch(patch)
        axes.text(
            box.left + 0.12, box.bottom + 0.1, box.label, fontsize=9, fontweight="bold", color="#343a40", zorder=4
        )


def _draw_links(axes: Axes, topology: Topology, layout: Layout) -> dict[_Figures, tuple[Any, int]]:
    """Draw every wire once; returns for each set of figures its style and how many directed links have it."""
    figures = sorted({(link.kind, -link.bandwidth_Bps, link.latency_s) for link in topology.links})
    styles: dict[_Figures, tuple[Any, int]] = {}
    nth = dict.fromkeys(LinkKind, 0)
    for kind, negative_Bps, latency_s in figures:
        styles[kind, -negative_Bps, latency_s] = (_DASHES[nth[kind] % len(_DASHES)], 0)
        nth[kind] += 1
    drawn: set[tuple[str, str]] = set()
    network = [link for link in topology.links if link.kind.is_network]
    for link in topology.links:
        key = (link.kind, link.bandwidth_Bps, link.latency_s)
        dash, count = styles[key]
        styles[key] = (dash, count + 1)
        if link.src not in layout.at or link.dst not in layout.at or (link.dst, link.src) in drawn:
            continue
        back = _equal_back(topology, link)
        if back:
            drawn.add((link.src, link.dst))
        _draw_wire(axes, layout, link, dash, directed=not back)
        if link.kind.is_network and len(network) <= 24:
            (x0, y0), (x1, y1) = layout.at[link.src], layout.at[link.dst]
            # near the lower end, where wires are apart; the two directions of one wire each near its source
            share = 0.3 if not back else 0.5 if y0 == y1 else 0.36 if y0 < y1 else 0.64
            text = format_bandwidth(link.bandwidth_Bps)
            rise = -_bend(layout, link) * (x1 - x0) * 2 * share * (1 - share)
            axes.text(
                x0 + (x1 - x0) * share,
                y0 + (y1 - y0) * share + rise,
                text,
                fontsize=7,
                ha="center",
                va="center",
                color=_COLOUR[link.kind],
                bbox={"fc": "white", "ec": "none", "pad": 0.8},
                zorder=2,
            )
    return styles


def _equal_back(topology: Topology, link: Link) -> bool:
    back = Link(link.dst, link.src, link.kind, link.bandwidth_Bps, link.latency_s)
    return back in topology.links_from(link.dst)


def _bend(layout: Layout, link: Link) -> float:
    """0, or how much a wire bows round what stands between its ends in their row; positive: to the right of its way."""
    (x0, y0), (x1, y1) = layout.at[link.src], layout.at[link.dst]
    span = abs(x1 - x0)
    if not any(y == y0 == y1 and min(x0, x1) < x < max(x0, x1) for x, y in layout.at.values()):
        return 0.0
    if link.kind.is_network:  # above: hosts are below
        return -0.8 / span if x1 > x0 else 0.8 / span
    return min(0.55, 0.8 / span + 0.03) * (1 if x1 > x0 else -1)


def _draw_wire(axes: Axes, layout: Layout, link: Link, dash: Any, directed: bool) -> None:
    from matplotlib.patches import FancyArrowPatch

    (x0, y0), (x1, y1) = layout.at[link.src], layout.at[link.dst]
    bend = _bend(layout, link)
    if directed:
        bend += 0.12  # the two directions side by side
    width = {True: 2.4, False: 1.3}[link.bandwidth_Bps >= 100e9]
    arrow = FancyArrowPatch(
        (x0, y0),
        (x1, y1),
        arrowstyle="-|>" if directed else "-",
        connectionstyle=f"arc3,rad={bend:.3f}",
        shrinkA=0,
        shrinkB=16 if directed else 0,
        mutation_scale=9,
        lw=width,
        ls=dash,
        color=_COLOUR[link.kind],
        alpha=0.85,
        zorder=1,
    )
    axes.add_patch(arrow)


def _draw_nodes(axes: Axes, topology: Topology, layout: Layout, placement: Placement | None) -> None:
    from matplotlib.patches import FancyBboxPatch

    ranks = {device: rank for rank, device in enumerate(placement.devices)} if placement else {}
    for name, (x, y) in layout.at.items():
        node = topology.node(name)
        width, height = layout.node_width(node), 0.42
        style = "round,pad=0,rounding_size=0.08"
        patch = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle=style,
            fc=_fill(node),
            ec="#495057",
            lw=0.9,
            zorder=3,
        )
        axes.add_patch(patch)
        label = "memory" if node.kind is NodeKind.HOST else node.local
        if name in ranks:
            axes.text(x, y + 0.075, label, fontsize=7.5, ha="center", va="center", zorder=4)
            axes.text(
                x, y - 0.105, f"rank {ranks[name]}", fontsize=6, ha="center", va="center", color="#495057", zorder=4
            )
        else:
            axes.text(x, y, label, fontsize=7.5, ha="center", va="center", zorder=4)


def _fill(node: Node) -> str:
    return _FILL[node.device] if node.device is not None else _FILL[node.kind]


def _draw_legend(axes: Axes, kinds: dict[_Figures, tuple[Any, int]]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for (kind, bandwidth_Bps, latency_s), (dash, count) in kinds.items():
        label = (
            f"{kind.name.lower()}  {format_bandwidth(bandwidth_Bps)}  {format_seconds(latency_s)}  ({count} directed)"
        )
        width = {True: 2.4, False: 1.3}[bandwidth_Bps >= 100e9]
        handles.append(Line2D([], [], color=_COLOUR[kind], ls=dash, lw=width, label=label))
    if handles:
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            fontsize=7.5,
            frameon=False,
            handlelength=3.5,
            ncols=2 if len(handles) > 3 else 1,
            borderaxespad=0.2,
        )
