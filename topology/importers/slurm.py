"""Slurm's topology.conf (topology/tree): switches with the nodes or switches below them."""

from __future__ import annotations

import re

from hccl_py.core.errors import ConfigError
from hccl_py.topology.graph import LinkKind, NodeKind, Topology
from hccl_py.topology.importers.importer import PCIE_NOTE, Sketch
from hccl_py.topology.names import expand_range
from hccl_py.topology.node import did_you_mean

_KEYS = {"switchname": "SwitchName", "nodes": "Nodes", "switches": "Switches", "linkspeed": "LinkSpeed"}
MAX_NAMES = 65536


def read_slurm(text: str, file: str) -> tuple[Topology, list[str]]:
    """The network with a NIC and one rank in each host, and notes on what was assumed.

    Raises:
        ConfigError: not such a file; says file:line.
    """
    sketch = Sketch(file)
    lines: list[tuple[int, dict[str, str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        values: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if key.lower() in ("blockname", "blocksizes"):
                raise sketch.error(number, f"{key}: topology/block is not read, only topology/tree (SwitchName)")
            if not equals or key.lower() not in _KEYS:
                near = did_you_mean(key, _KEYS.values())
                raise sketch.error(number, f"{word[:40]!r}{near} (keys here: {', '.join(_KEYS.values())})")
            values[key.lower()] = value
        if values and "switchname" not in values:
            raise sketch.error(number, "a line begins with SwitchName=")
        if values:
            lines.append((number, values))
    if not lines:
        raise sketch.error(1, "no switch: is this a topology.conf?")
    for number, values in lines:
        for name in _names(sketch, values["switchname"], number):
            if name in sketch:
                raise sketch.error(number, f"switch {name!r} is there twice")
            sketch.node(name, NodeKind.SWITCH, number)
    sketch.note("links: no speed is given, 100 Gbit/s InfiniBand was assumed for each")
    for number, values in lines:
        for switch in _names(sketch, values["switchname"], number):
            for below in _names(sketch, values.get("switches", ""), number):
                if below not in sketch:
                    raise sketch.error(number, f"there is no switch {below!r}")
                sketch.wire(below, switch, LinkKind.INFINIBAND, number)
            for node in _names(sketch, values.get("nodes", ""), number):
                host = sketch.host(node, number, with_device=True)
                nic = f"{host}/nic0"
                if nic not in sketch:
                    sketch.wire(sketch.node(nic, NodeKind.NIC, number), host, LinkKind.PCIE, number)
                sketch.wire(nic, switch, LinkKind.INFINIBAND, number)
    sketch.note(PCIE_NOTE)
    return sketch.topology(), sketch.notes


def _names(sketch: Sketch, text: str, line: int) -> list[str]:
    """The names of a host list such as ``tux[0-3,7],lux1``."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        try:
            names += expand_range(part)
        except ConfigError as error:
            raise sketch.error(line, str(error)) from error
        if len(names) > MAX_NAMES:
            raise sketch.error(line, f"more than {MAX_NAMES} names")
    return names
