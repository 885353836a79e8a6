"""Sketch: nodes and links as an importer gathers them, with notes on what it had to assume."""

from __future__ import annotations

import re

from hccl_py.core.errors import ConfigError, TopologyError
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.priors import MEMORY, PCIE, Prior, prior
from hccl_py.topology.world import host_word

MAX_FILE_BYTES = 16 * 2**20
# One NVLink each way in bytes/second by generation: NVIDIA data sheets of P100, V100, A100, H100 and B200.
NVLINK_BPS = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}


class Sketch:
    """A graph in the making.

    Args:
        file: where it comes from, for errors.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.notes: list[str] = []
        self._nodes: dict[str, Node] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def error(self, line: int, message: str) -> ConfigError:
        """A ConfigError with file and line."""
        return ConfigError(f"{self.file}:{line}: {message}")

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def node(self, name: str, kind: NodeKind, line: int, device: DeviceKind | None = None, **values: str) -> str:
        """Add a node unless it is there; returns its name."""
        if name not in self._nodes:
            try:
                self._nodes[name] = Node(name, kind, device=device, **values)  # type: ignore[arg-type]
            except TopologyError as error:
                raise self.error(line, str(error)) from error
        elif self._nodes[name].kind is not kind:
            raise self.error(line, f"{name!r} is a {self._nodes[name].kind.value} and a {kind.value}")
        return name

    def wire(self, a: str, b: str, kind: LinkKind, line: int, bandwidth_Bps: float | None = None) -> None:
        """Add a wire in both directions, or make it wider by a parallel one; without a bandwidth, its prior's."""
        figures = prior(kind)
        for ends in ((a, b), (b, a)):
            old = self._links.get(ends)
            width_Bps = (bandwidth_Bps or figures.bandwidth_Bps) + (old.bandwidth_Bps if old else 0)
            try:
                self._links[ends] = Link(*ends, kind, width_Bps, figures.latency_s)
            except TopologyError as error:
                raise self.error(line, str(error)) from error

    def host(self, name: str, line: int, *, with_device: bool = False) -> str:
        """Add a host; ``with_device``: with one place for a rank, where the source knows nothing of the inside."""
        host = host_word(name)
        if host not in self._nodes:
            self.node(host, NodeKind.HOST, line)
            if with_device:
                self.wire(self.node(f"{host}/cpu0", NodeKind.DEVICE, line, DeviceKind.CPU), host, LinkKind.MEMORY, line)
                self.note("one CPU rank a host was assumed: the source says nothing of what is in the hosts")
        return host

    def wires_of(self, name: str) -> int:
        """How many links leave the node."""
        return sum(src == name for src, _ in self._links)

    def topology(self) -> Topology:
        """What was gathered.

        Raises:
            ConfigError: nothing was, or it contradicts itself.
        """
        try:
            return Topology(tuple(self._nodes.values()), tuple(self._links.values()))
        except TopologyError as error:
            raise ConfigError(f"{self.file}:1: {error}") from error


def assumed(figures: Prior, what: str) -> str:
    """The note for a figure that the source does not give."""
    return f"{what}: no speed is given, took {figures.bandwidth_Bps / 1e9:g} GB/s"


PCIE_NOTE, MEMORY_NOTE = assumed(PCIE, "PCIe"), assumed(MEMORY, "memory")


def local_word(text: str) -> str:
    """``text`` made into a local name that is no reserved word."""
    word = re.sub(r"[^A-Za-z0-9_.:@+-]", "-", text)[:60] or "x"
    return f"{word}-0" if word == "host" else word if re.match(r"[A-Za-z0-9_]", word) else f"x{word}"
