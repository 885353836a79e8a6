"""The shape of a cluster file, version 1, as pydantic models: which keys there are and what a value must look like.

What names refer to (does that NUMA node exist? do these ends match anything?) is not the schema's affair: config.py
checks it. cluster_configs/README.md describes every key for people.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import parse_bandwidth, parse_seconds
from hccl_py.topology.document import Document, Path_, short
from hccl_py.topology.link import LinkKind
from hccl_py.topology.node import DeviceKind, did_you_mean

VERSION = 1

E = TypeVar("E", bound=Enum)


def _word(kind: type[E]) -> BeforeValidator:
    """Reads the lower-case name of an enum member."""

    def read(value: object) -> object:
        words = {member.name.lower(): member for member in kind}
        if isinstance(value, str) and value in words:
            return words[value]
        near = did_you_mean(value, words) if isinstance(value, str) else ""
        raise ConfigError(f"{short(value)} is not one of {', '.join(words)}{near}")

    return BeforeValidator(read)


def _empty_body(value: object) -> object:
    """``eth0:`` with nothing after it (null) is an entry without keys."""
    return {} if value is None else value


Bandwidth = Annotated[float, BeforeValidator(parse_bandwidth)]
Latency = Annotated[float, BeforeValidator(parse_seconds)]


class Entry(BaseModel):
    """Base of all models: frozen, no conversions, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NumaEntry(Entry):
    """A NUMA node. ``cpus``: how many CPUs it has."""

    cpus: int = Field(0, ge=0, le=2**20)


class DeviceEntry(Entry):
    """A device. ``kind``: what computes; ``numa``: local name of the NUMA node near it; ``pci``: its PCI address."""

    kind: Annotated[DeviceKind, _word(DeviceKind)]
    numa: str = ""
    pci: str = ""


class NicEntry(Entry):
    """A NIC. ``interface``: the operating system's name for it, by default its name in this file."""

    numa: str = ""
    interface: str = ""
    pci: str = ""


class SwitchEntry(Entry):
    """A switch. It has no keys yet."""


class LinkEntry(Entry):
    """A link, or by patterns many: ``between: [a, b]`` is both directions, ``from: a`` with ``to: b`` is one."""

    between: list[str] | None = Field(None, min_length=2, max_length=2)
    from_: str | None = Field(None, alias="from")
    to: str | None = None
    kind: Annotated[LinkKind, _word(LinkKind)]
    bandwidth: Bandwidth
    latency: Latency

    @model_validator(mode="after")
    def _one_form(self) -> LinkEntry:
        directed = self.from_ is not None and self.to is not None
        neither = self.from_ is None and self.to is None
        if not (self.between is not None and neither) and not (self.between is None and directed):
            raise ConfigError("say 'between: [a, b]' (both directions), or 'from: a' with 'to: b' (one direction)")
        return self


Numas = dict[str, Annotated[NumaEntry, BeforeValidator(_empty_body)]]
Devices = dict[str, Annotated[DeviceEntry, BeforeValidator(_empty_body)]]
Nics = dict[str, Annotated[NicEntry, BeforeValidator(_empty_body)]]
Switches = dict[str, Annotated[SwitchEntry, BeforeValidator(_empty_body)]]


class HostBody(Entry):
    """What is in a host; names in it are local. ``links`` may use the word ``host`` for the host's own vertex."""

    numa: Numas = {}
    devices: Devices = {}
    nics: Nics = {}
    switches: Switches = {}
    links: list[LinkEntry] = []


class HostEntry(HostBody):
    """A host. ``type``: a name in ``host_types``; what the host lists itself is added, equal names replace."""

    type: str = ""


class ClusterFile(Entry):
    """The whole file."""

    version: int
    name: str = ""
    host_types: dict[str, Annotated[HostBody, BeforeValidator(_empty_body)]] = {}
    hosts: dict[str, Annotated[HostEntry, BeforeValidator(_empty_body)]] = Field(min_length=1)
    switches: Switches = {}
    links: list[LinkEntry] = []
    placement: list[str] | None = Field(None, min_length=1)


def validate(document: Document) -> ClusterFile:
    """The content of ``document`` as models.

    Raises:
        ConfigError: file:line, key path, what was found, and the nearest valid key or the allowed values.
    """
    if not isinstance(document.value, dict):
        raise document.error((), f"a cluster file is a mapping of keys, found {short(document.value)}")
    version = document.value.get("version")
    if version is None:
        raise document.error(("version",), f"missing: write 'version: {VERSION}' in the first line")
    if version != VERSION or isinstance(version, bool):
        message = f"this hccl_py reads version {VERSION}, found {short(version)}"
        raise document.error(("version",), message)
    try:
        return ClusterFile.model_validate(document.value)
    except ValidationError as errors:
        found = [_explain(document, dict(error)) for error in errors.errors(include_url=False)]
        first = min(found, key=lambda one: one[0])[1]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(f"{first}{more}") from None


def _explain(document: Document, error: dict[str, Any]) -> tuple[tuple[int, int], ConfigError]:
    """One pydantic error as ours, with a sort key: unknown keys first (they explain missing ones), then by line."""
    path: Path_ = tuple(error["loc"])
    what, context = error["type"], error.get("ctx", {})
    if what == "extra_forbidden":
        keys = known_keys(path[:-1])
        message = f"unknown key{did_you_mean(str(path[-1]), keys)} (keys here: {', '.join(keys) or 'none'})"
    elif what == "missing":
        message = f"missing (keys here: {', '.join(known_keys(path[:-1]))})"
    elif what in ("model_type", "dict_type"):
        message = f"should be a mapping of keys, found {short(error['input'])}"
    elif isinstance(context.get("error"), ConfigError):
        message = str(context["error"])
    else:
        wish = re.sub(r"^(Input|List|Dictionary) | after validation", "", error["msg"])
        message = f"{wish}, found {short(error['input'])}"
    return (0 if what == "extra_forbidden" else 1, document.line(path)), document.error(path, message)


def known_keys(path: Path_) -> tuple[str, ...]:
    """The keys that a mapping at this place of a cluster file may have."""
    model: Any = ClusterFile
    for key in path:
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = fields[str(key)].annotation
        else:  # dict[str, X], list[X]: the last argument is what it holds
            model = get_args(model)[-1]
        if hasattr(model, "__metadata__"):  # Annotated
            model = get_args(model)[0]
    if isinstance(model, type) and issubclass(model, BaseModel):
        return tuple(field.alias or name for name, field in model.model_fields.items())
    return ()
