"""Fabric: the protocol of all generators, and what they make: names of switches, and wires."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fields import Entry, Figures
from hccl_py.topology.link import LinkKind

MAX_WIRES = 100_000  # of one fabric: bounds the memory that a few bytes of YAML can ask for


@dataclass(frozen=True)
class Wire:
    """Kind and figures of a wire, the same in both directions."""

    kind: LinkKind
    bandwidth_Bps: float
    latency_s: float

    def wide(self, bandwidth_Bps: float) -> Wire:
        """The same wire with another bandwidth."""
        return replace(self, bandwidth_Bps=bandwidth_Bps)


# Resolves figures to a wire; the second argument, if given, stands in for what the figures leave out. The third is the
# key path inside the fabric, for errors.
Resolve = Callable[[Figures, Wire | None, str], Wire]


@dataclass(frozen=True)
class End:
    """A node that a fabric connects: its name, its host ("" in a host's own fabric), and what stood for ``<x>``."""

    name: str
    binding: dict[str, str] = field(default_factory=dict)
    numa: str = ""


@dataclass
class Grown:
    """What a generator makes. Ends of wires are names of ends, or of switches in the list."""

    switches: list[str] = field(default_factory=list)
    wires: list[tuple[str, str, Wire]] = field(default_factory=list)

    def switch(self, name: str) -> str:
        """Add a switch; returns its name."""
        self.switches.append(name)
        return name

    def wire(self, a: str, b: str, wire: Wire) -> None:
        """Add a wire between two nodes.

        Raises:
            ConfigError: the fabric has too many.
        """
        if len(self.wires) >= MAX_WIRES:
            raise ConfigError(f"the fabric has more than {MAX_WIRES} wires")
        self.wires.append((a, b, wire))

    def planes(self, name: str, count: int, as_one: bool) -> list[str]:
        """``count`` equal switches, or one that stands for all of them."""
        if as_one or count == 1:
            return [self.switch(name)]
        return [self.switch(f"{name}{i}") for i in range(count)]


class Fabric(Entry):
    """Base of all fabrics. ``ends``: patterns of the nodes that it connects, in order."""

    ends: list[str] = Field(min_length=1)

    @abstractmethod
    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """The switches and wires.

        Args:
            name: the fabric's own; names of switches begin with it.
            ends: for each pattern of ``ends``, the nodes that match it.
            resolve: see `Resolve`.

        Raises:
            ConfigError: the ends do not fit the figures.
        """


def flat(ends: Sequence[Sequence[End]]) -> list[End]:
    """All ends, pattern after pattern, each node once."""
    return list({end.name: end for group in ends for end in group}.values())


def chunks(items: Sequence[End], size: int) -> list[Sequence[End]]:
    """``items`` in runs of ``size``; the last one may be shorter."""
    return [items[at : at + size] for at in range(0, len(items), size)]
