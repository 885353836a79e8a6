"""The shape of a cluster file, version 1, as pydantic models: which keys there are and what a value must look like.

What names refer to (does that NUMA node exist? do these ends match anything?) is not the schema's affair: builder.py
checks it. docs/TOPOLOGY.md describes every key for people.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.kinds import AnyFabric
from hccl_py.topology.fields import Bandwidth, Entry, Figures, KindOfDevice, KindOfLink, Latency, Share, empty_body
from hccl_py.topology.policy import PolicyEntry

VERSION = 1


class NumaEntry(Entry):
    """A NUMA node. ``cpus``: how many CPUs it has."""

    cpus: int = Field(0, ge=0, le=2**20)


class DeviceEntry(Entry):
    """A device. ``kind``: what computes; ``numa``: local name of the NUMA node near it; ``pci``: its PCI address."""

    kind: KindOfDevice
    numa: str = ""
    pci: str = ""


class NicEntry(Entry):
    """A NIC. ``interface``: the operating system's name for it, by default its name in this file."""

    numa: str = ""
    interface: str = ""
    pci: str = ""


class SwitchEntry(Entry):
    """A switch. It has no keys yet."""


class Ends(Entry):
    """Which links: ``between: [a, b]`` is both directions, ``from: a`` with ``to: b`` is one; all may be patterns."""

    between: list[str] | None = Field(None, min_length=2, max_length=2)
    from_: str | None = Field(None, alias="from")
    to: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Ends:
        directed = self.from_ is not None and self.to is not None
        neither = self.from_ is None and self.to is None
        if not (self.between is not None and neither) and not (self.between is None and directed):
            raise ConfigError("say 'between: [a, b]' (both directions), or 'from: a' with 'to: b' (one direction)")
        return self

    @property
    def pair(self) -> tuple[str, str]:
        """The two patterns."""
        a, b = self.between or (self.from_ or "", self.to or "")
        return a, b


class LinkEntry(Ends, Figures):
    """A link, or by patterns many. Its figures stand here or in the link type that it names."""


class OverrideEntry(Ends):
    """What is different about links that are there already.

    ``bandwidth`` and ``latency`` replace what they have, ``share`` is how much of its bandwidth a link still has, and
    ``down`` takes it away.
    """

    kind: KindOfLink | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    share: Share | None = None
    down: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> OverrideEntry:
        changes = [name for name in ("kind", "bandwidth", "latency", "share") if getattr(self, name) is not None]
        if self.down and changes:
            raise ConfigError(f"'down: true' takes the link away, there is nothing left for {changes[0]!r} to change")
        if not self.down and not changes:
            raise ConfigError("changes nothing: say 'bandwidth', 'latency', 'share', 'kind' or 'down: true'")
        if self.bandwidth is not None and self.share is not None:
            raise ConfigError("say 'bandwidth' or 'share', not both")
        return self


Numas = dict[str, Annotated[NumaEntry, BeforeValidator(empty_body)]]
Devices = dict[str, Annotated[DeviceEntry, BeforeValidator(empty_body)]]
Nics = dict[str, Annotated[NicEntry, BeforeValidator(empty_body)]]
Switches = dict[str, Annotated[SwitchEntry, BeforeValidator(empty_body)]]


class HostBody(Entry):
    """What is in a host; names in it are local. ``links`` may use the word ``host`` for the host's own vertex.

    ``type``: the host type that it begins with; what it lists itself is added, and replaces what has the same name.
    """

    type: str = ""
    numa: Numas = Field(default_factory=dict)
    devices: Devices = Field(default_factory=dict)
    nics: Nics = Field(default_factory=dict)
    switches: Switches = Field(default_factory=dict)
    fabrics: dict[str, AnyFabric] = Field(default_factory=dict)
    links: list[LinkEntry] = Field(default_factory=list)


Body = Annotated[HostBody, BeforeValidator(empty_body)]


class ClusterFile(Entry):
    """The whole file."""

    version: int
    name: str = ""
    link_types: dict[str, Figures] = Field(default_factory=dict)
    host_types: dict[str, Body] = Field(default_factory=dict)
    hosts: dict[str, Body] = Field(min_length=1)
    switches: Switches = Field(default_factory=dict)
    fabrics: dict[str, AnyFabric] = Field(default_factory=dict)
    links: list[LinkEntry] = Field(default_factory=list)
    overrides: list[OverrideEntry] = Field(default_factory=list)
    placement: list[str] | None = Field(None, min_length=1)
    policy: PolicyEntry = PolicyEntry()
