"""``ibnetdiscover``: every switch and channel adapter of an InfiniBand subnet, with what each port is wired to."""

from __future__ import annotations

import re

from hccl_py.topology.graph import LinkKind, NodeKind, Topology
from hccl_py.topology.importers.importer import PCIE_NOTE, Sketch, local_word
from hccl_py.topology.world import host_word

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(
    r'\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([^"]+)"\[(\d+)\](?:\([0-9a-fA-F]+\))?.*?(?:(\d+)x([A-Z]+\d*))?\s*'
)
# Payload of a lane in bytes/second: the InfiniBand signalling rates less 8b/10b (to QDR) or 64b/66b.
_LANE_GBIT = {"SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}


def read_ibnetdiscover(text: str, file: str) -> tuple[Topology, list[str]]:
    """The network with one host for each name that adapters have, and notes on what was assumed.

    Raises:
        ConfigError: not such a file; says file:line.
    """
    sketch = Sketch(file)
    heads: dict[str, str] = {}  # identifier -> name of our node
    ports: list[tuple[int, str, int, str, int, float | None]] = []
    at = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            at = head[2]
            name = _name(sketch, head[1], head[2], head[3], number)
            if name:
                heads[at] = name
        elif line.startswith("["):
            port = _PORT.fullmatch(line)
            if port is None or not at:
                raise sketch.error(number, f"not a port of a switch or an adapter: {line[:60]!r}")
            if port[5] is not None and port[5] not in _LANE_GBIT:
                raise sketch.error(number, f"{port[5]!r} is no speed of InfiniBand (known: {', '.join(_LANE_GBIT)})")
            width_Bps = int(port[4]) * _LANE_GBIT[port[5]] * 1e9 / 8 if port[5] else None
            ports.append((number, at, int(port[1]), port[2], int(port[3]), width_Bps))
    if not heads:
        raise sketch.error(1, "no switch and no adapter: is this the output of `ibnetdiscover`?")
    done: set[tuple[str, int]] = set()
    for number, here, our_port, there, their_port, width_Bps in ports:
        if here in heads and there in heads and (here, our_port) not in done:  # both ends name the same wire
            done |= {(here, our_port), (there, their_port)}
            sketch.wire(heads[here], heads[there], LinkKind.INFINIBAND, number, width_Bps)
    return sketch.topology(), sketch.notes


def _name(sketch: Sketch, what: str, identifier: str, description: str, line: int) -> str:
    """Add the node and return its name; "" if it carries no traffic of ours."""
    if what == "Switch":
        word = re.sub(r"^MF\d+;", "", description).partition(":")[0]
        name = host_word(word) if word and " " not in word else identifier
        name = name if name not in sketch else f"{name[:40]}-{identifier[-8:]}"  # leaves of one chassis are alike
        return sketch.node(name, NodeKind.SWITCH, line)
    if what == "Rt" or "Aggregation Node" in description:
        sketch.note(f"{description or identifier} was left out: it is no adapter of a host")
        return ""
    words = description.split()
    host = sketch.host(words[0] if words else identifier, line, with_device=True)
    local = local_word(words[1]) if len(words) > 1 else "ib0"
    nic = f"{host}/{local}"
    nic = nic if nic not in sketch else f"{host}/{local}-{identifier[-8:]}"
    sketch.node(nic, NodeKind.NIC, line, interface=words[1] if len(words) > 1 else "")
    sketch.wire(nic, host, LinkKind.PCIE, line)
    sketch.note(PCIE_NOTE)
    return nic
