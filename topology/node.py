"""Node: one vertex of the graph (host, NUMA node, device, NIC or switch) and the rules for its name.

A node inside a host is called ``HOST/LOCAL`` ("node0/gpu3"), a host or a switch of the network has one word ("node0",
"leaf1"). So the name alone says which host a node belongs to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hccl_py.core.errors import TopologyError

HOST_WORD = "host"  # in a YAML host body this word means the host's own vertex
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*")
_MAX_WORD = 64  # letters
_MAX_COMPARED = 2000
_DIGITS = re.compile(r"(\d+)")


class NodeKind(Enum):
    """What a vertex stands for."""

    HOST = "host"  # the host itself: its memory and root complex, where no NUMA nodes are told apart
    NUMA = "numa"  # one memory and the CPUs next to it
    DEVICE = "device"  # a place for one rank: a GPU, or a CPU
    NIC = "nic"
    SWITCH = "switch"  # of the network, or of a host (PCIe switch, NVSwitch)


class DeviceKind(Enum):
    """What computes on a device."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True)
class Node:
    """One vertex.

    Attributes:
        name: ``HOST/LOCAL``, or one word for a host or a switch of the network.
        kind: see `NodeKind`.
        device: what computes there; DEVICE only, and required there.
        numa: full name of the NUMA node that it is nearest to; DEVICE and NIC only, "" if unknown.
        cpus: number of CPUs; NUMA only, 0 if unknown.
        interface: the operating system's name of a NIC ("eth0", "mlx5_0"); if "", the last word of its name.
        pci: PCI address ("0000:18:00.0"); DEVICE and NIC only, "" if unknown.

    Raises:
        TopologyError: a malformed name, or an attribute that does not belong to the kind.
    """

    name: str
    kind: NodeKind
    device: DeviceKind | None = None
    numa: str = ""
    cpus: int = 0
    interface: str = ""
    pci: str = ""

    def __post_init__(self) -> None:
        if self.kind is NodeKind.NIC and not self.interface:
            object.__setattr__(self, "interface", self.local)
        words = self.name.split("/")
        in_host = len(words) == 2
        if not 1 <= len(words) <= 2 or not all(_is_word(word) for word in words):
            name = repr(self.name) if len(self.name) <= 4 * _MAX_WORD else f"{self.name[:_MAX_WORD]!r}..."
            raise TopologyError(
                f"node name {name}: write WORD or HOST/WORD, where a word is letters, digits and _ . : @ + -, does not "
                f"begin with a sign and has at most {_MAX_WORD} letters"
            )
        if in_host and words[1] == HOST_WORD:
            raise TopologyError(f"node name {self.name!r}: {HOST_WORD!r} is the word for the host's own vertex")
        if self.kind is NodeKind.HOST and in_host:
            raise TopologyError(f"host {self.name!r}: the name of a host has no '/'")
        if self.kind in (NodeKind.NUMA, NodeKind.DEVICE, NodeKind.NIC) and not in_host:
            raise TopologyError(f"{self.kind.value} {self.name!r} belongs to a host: call it HOST/{self.name}")
        self._check_attributes()

    def _check_attributes(self) -> None:
        def refuse(attribute: str, owners: str) -> TopologyError:
            return TopologyError(f"{self.kind.value} {self.name!r} has {attribute}, which only {owners} may have")

        if (self.kind is NodeKind.DEVICE) != (self.device is not None):
            kinds = ", ".join(kind.value for kind in DeviceKind)
            raise TopologyError(f"{self.kind.value} {self.name!r}: a device, and nothing else, has one of {kinds}")
        if self.numa and self.kind not in (NodeKind.DEVICE, NodeKind.NIC):
            raise refuse("a NUMA node", "devices and NICs")
        if self.pci and self.kind not in (NodeKind.DEVICE, NodeKind.NIC):
            raise refuse("a PCI address", "devices and NICs")
        if self.interface and self.kind is not NodeKind.NIC:
            raise refuse("an interface name", "NICs")
        if self.cpus and self.kind is not NodeKind.NUMA:
            raise refuse("a number of CPUs", "NUMA nodes")
        if self.cpus < 0:
            raise TopologyError(f"numa {self.name!r}: {self.cpus} CPUs")

    @property
    def host(self) -> str:
        """Name of the host that this node is or is in; "" for a switch of the network."""
        if self.kind is NodeKind.HOST:
            return self.name
        return self.name.partition("/")[0] if "/" in self.name else ""

    @property
    def local(self) -> str:
        """The name without the host."""
        return self.name.rpartition("/")[2]


def _is_word(text: str) -> bool:
    return len(text) <= _MAX_WORD and _WORD.fullmatch(text) is not None


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort key that puts "gpu10" after "gpu2"."""
    parts = _DIGITS.split(name)
    return tuple((1, int(part), "") if index % 2 else (0, 0, part) for index, part in enumerate(parts)), name


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, or ""."""
    if len(word) > 4 * _MAX_WORD:  # comparing takes time that grows with the square of the length
        return ""
    words = [one for one in known if abs(len(one) - len(word)) <= len(word) // 2 + 1]
    if len(words) > _MAX_COMPARED:
        words = [one for one in words if one[:2] == word[:2]][:_MAX_COMPARED]
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def listing(words: Iterable[str], most: int = 12) -> str:
    """``"a, b, c"``, or the first ones and how many there are, or "none"."""
    every = list(words)
    if len(every) > most:
        return f"{', '.join(every[:most])}, ... ({len(every)} in all)"
    return ", ".join(every) or "none"
