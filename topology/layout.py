"""Where each node of a picture stands. Coordinates are in steps: neighbouring devices are one step apart, y goes up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hccl_py.topology.graph import Node, NodeKind, Topology
from hccl_py.topology.node import natural_key
from hccl_py.topology.tree import equal_hosts

MAX_HOSTS = 6  # more hosts than this: only the first of each group of equal hosts are drawn
_ROW = 1.15  # height of a row
_PAD = 0.75  # from the middle of an outer node to the edge of its host's box


@dataclass(frozen=True)
class Box:
    """The frame of a host."""

    left: float
    bottom: float
    width: float
    height: float
    label: str


@dataclass
class Layout:
    """Positions of the nodes that are drawn, and the frames of hosts."""

    at: dict[str, tuple[float, float]] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)

    @property
    def left(self) -> float:
        """The outer edges of the picture."""
        return min([box.left for box in self.boxes] + [x - 0.8 for x, _ in self.at.values()]) - 0.15

    @property
    def right(self) -> float:
        return max([box.left + box.width for box in self.boxes] + [x + 0.8 for x, _ in self.at.values()]) + 0.15

    @property
    def bottom(self) -> float:
        return min([box.bottom for box in self.boxes] + [y - 0.5 for _, y in self.at.values()]) - 0.15

    @property
    def top(self) -> float:
        return max([box.bottom + box.height for box in self.boxes] + [y + 0.5 for _, y in self.at.values()]) + 0.15

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @staticmethod
    def node_width(node: Node) -> float:
        """Width of a node's box: wide enough for its name."""
        return max(0.78, 0.105 * len(node.local) + 0.16)


def lay_out(topology: Topology) -> Layout:
    """Positions for all nodes, or for the first ones of each group of equal hosts if there are many hosts."""
    layout = Layout()
    groups = equal_hosts(topology)
    shown: dict[str, str] = {}
    for group in groups:
        keep = len(group) if len(topology.hosts()) <= MAX_HOSTS else max(1, MAX_HOSTS // len(groups))
        shown |= {host: host for host in group[:keep]}
        if keep < len(group):
            shown[group[keep - 1]] = f"{group[keep - 1]}  (and {len(group) - keep} equal hosts)"
    left = 0.0
    tops = []
    for host in sorted(shown, key=natural_key):
        rows = _rows(topology, host)
        left, top = _place_host(layout, topology, rows, left, shown[host])
        tops.append(top)
    _place_network(layout, topology, max(tops, default=0.0))
    return layout


def _rows(topology: Topology, host: str) -> list[list[str]]:
    """The host's nodes in rows from below: switches of devices only, devices, other switches, memory, NICs."""
    inside = topology.nodes_within(host)
    near = {node.name: {link.dst for link in topology.links_from(node.name)} for node in inside}
    for node in inside:
        for neighbour in near[node.name]:
            near.setdefault(neighbour, set()).add(node.name)
    rows: list[list[str]] = [[], [], [], [], []]
    for node in inside:
        if node.kind is NodeKind.SWITCH:
            only_devices = all(topology.node(name).kind is NodeKind.DEVICE for name in near[node.name])
            rows[0 if only_devices else 2].append(node.name)
        elif node.kind is NodeKind.DEVICE:
            rows[1].append(node.name)
        elif node.kind is NodeKind.NIC:
            rows[4].append(node.name)
        elif node.kind is NodeKind.NUMA or near[node.name]:  # a host's own vertex without links is the frame itself
            rows[3].append(node.name)
    return [row for row in rows if row]


def _place_host(
    layout: Layout, topology: Topology, rows: list[list[str]], left: float, label: str
) -> tuple[float, float]:
    """Place one host with its frame from ``left`` on; returns where the next one may begin, and the upper edge."""
    if len(rows) == 1 and len(rows[0]) > 2:
        return _place_circle(layout, rows[0], left, label)
    widths = [max((Layout.node_width(topology.node(name)) for name in row), default=0.8) + 0.22 for row in rows]
    span = max([width * (len(row) - 1) for width, row in zip(widths, rows, strict=True)] + [0.105 * len(label) - 0.9])
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # the fullest row first: the others follow it
    for i in order:
        row = rows[i]
        step = span / (len(row) - 1) if i == order[0] and len(row) > 1 else widths[i]
        xs = _spread(_wishes(layout, topology, row, left, span), step, left, left + span)
        for name, x in zip(row, xs, strict=True):
            layout.at[name] = (x, 0.55 + i * _ROW)
    height = 0.55 + max(0, len(rows) - 1) * _ROW + 0.45
    box = Box(left - _PAD, -0.1, span + 2 * _PAD, height + 0.1, label)
    layout.boxes.append(box)
    return box.left + box.width + _PAD + 0.35, box.bottom + box.height


def _place_circle(layout: Layout, row: Sequence[str], left: float, label: str) -> tuple[float, float]:
    """A host whose devices are wired to each other and to nothing else: on a circle no wire runs through a node."""
    radius = max(1.0, 1.15 * len(row) / (2 * math.pi))
    middle = (left + radius, radius + 0.75)
    for index, name in enumerate(row):
        angle = math.pi / 2 - 2 * math.pi * index / len(row)
        layout.at[name] = (middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle))
    box = Box(left - _PAD, -0.1, 2 * radius + 2 * _PAD, 2 * radius + 1.3, label)
    layout.boxes.append(box)
    return box.left + box.width + _PAD + 0.35, box.bottom + box.height


def _wishes(layout: Layout, topology: Topology, row: Sequence[str], left: float, span: float) -> list[float]:
    """Where each node of the row would like to stand: the middle of its placed neighbours, else evenly spread."""
    wishes = []
    for index, name in enumerate(row):
        near = [layout.at[link.dst][0] for link in topology.links_from(name) if link.dst in layout.at]
        even = left + span * (index + 0.5) / len(row) if len(row) > 1 else left + span / 2
        wishes.append(sum(near) / len(near) if near else even)
    return wishes


def _spread(wishes: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Positions in the given order, at least ``step`` apart, near the wishes, within the limits if they fit."""
    xs: list[float] = []
    for wish in wishes:
        xs.append(max(wish, xs[-1] + step) if xs else max(wish, low))
    middle = (sum(wishes) - sum(xs)) / len(xs)  # pushing went to the right only: move all back by the mean
    xs = [x + middle for x in xs]
    if xs[-1] > high:
        xs = [x - (xs[-1] - high) for x in xs]
    return [x + (low - xs[0]) for x in xs] if xs[0] < low else xs


def _place_network(layout: Layout, topology: Topology, top: float) -> None:
    """Switches of the network in rows above the hosts: those that hosts are wired to, then those above them."""
    switches = [node.name for node in topology.nodes_within("")]
    left, right = layout.left + 0.9, layout.right - 0.9
    y = top + 1.25
    while switches:
        row = [name for name in switches if _touches(topology, name, layout.at)] or switches
        wishes = _wishes(layout, topology, row, left, right - left)
        pairs = sorted(zip(wishes, row, strict=True), key=lambda pair: (round(pair[0], 6), natural_key(pair[1])))
        step = max(Layout.node_width(topology.node(name)) for name in row) + 0.3
        xs = _spread([wish for wish, _ in pairs], step, left, max(right, left + step * (len(row) - 1)))
        placed = {name: (x, y) for x, (_, name) in zip(xs, pairs, strict=True)}
        layout.at.update(placed)
        switches = [name for name in switches if name not in placed]
        y += 1.25


def _touches(topology: Topology, name: str, placed: Iterable[str]) -> bool:
    return any(link.dst in placed for link in topology.links_from(name))
