"""Templates: host types that build upon each other, and link types; chains are followed once, and never in a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hccl_py.topology.document import Document, Path_
from hccl_py.topology.fabrics.fabric import Wire
from hccl_py.topology.fields import Figures
from hccl_py.topology.node import did_you_mean, listing
from hccl_py.topology.schema import HostBody


class _Typed(Protocol):
    @property
    def type(self) -> str: ...


class Templates:
    """What ``host_types`` and ``link_types`` of one file say.

    Raises:
        ConfigError: a type that is not there, or a circle of types.
    """

    def __init__(self, document: Document, host_types: Mapping[str, HostBody], link_types: Mapping[str, Figures]):
        self._document = document
        self._host_types = host_types
        self._link_types = link_types
        for section, types in (("host_types", host_types), ("link_types", link_types)):
            self._check(section, types)

    def _check(self, section: str, types: Mapping[str, _Typed]) -> None:
        good: set[str] = set()
        for start in types:
            name, chain = start, dict.fromkeys([start])
            while name not in good and types[name].type:
                above = types[name].type
                self._known(section, above, types, (section, name, "type"))
                if above in chain:
                    circle = " -> ".join([*list(chain)[list(chain).index(above) :], above])
                    raise self._document.error((section, name, "type"), f"a circle of types: {_cut(circle)}")
                chain[above] = None
                name = above
            good |= set(chain)

    def _known(self, section: str, name: str, types: Mapping[str, object], path: Path_) -> None:
        if name not in types:
            what = section.replace("_", " ").rstrip("s")
            known = listing(types)
            message = f"there is no {what} {name!r}{did_you_mean(name, types)} ({section}: {known})"
            raise self._document.error(path, message)

    def bodies(self, body: HostBody, path: Path_) -> list[tuple[HostBody, Path_]]:
        """The body and those that it begins with, the farthest first, each with its place in the file."""
        found = [(body, path)]
        while body.type:
            self._known("host_types", body.type, self._host_types, (*found[-1][1], "type"))
            path = ("host_types", body.type)
            body = self._host_types[body.type]
            found.append((body, path))
        return found[::-1]

    def wire(self, figures: Figures, path: Path_, base: Wire | None = None) -> Wire:
        """The wire that the figures at ``path`` mean; what neither they nor their type say is taken from ``base``."""
        kind, bandwidth, latency = figures.kind, figures.bandwidth, figures.latency
        at = figures
        while at.type:
            self._known("link_types", at.type, self._link_types, (*path, "type"))
            at = self._link_types[at.type]
            kind = at.kind if kind is None else kind
            bandwidth = at.bandwidth if bandwidth is None else bandwidth
            latency = at.latency if latency is None else latency
        if base is not None:
            kind = base.kind if kind is None else kind
            bandwidth = base.bandwidth_Bps if bandwidth is None else bandwidth
            latency = base.latency_s if latency is None else latency
        if kind is None or bandwidth is None or latency is None:
            key = "kind" if kind is None else "bandwidth" if bandwidth is None else "latency"
            hint = f"; link type {figures.type!r} does not say it either" if figures.type else ""
            keys = ", ".join(field.alias or name for name, field in type(figures).model_fields.items())
            raise self._document.error((*path, key), f"missing{hint} (keys here: {keys})")
        return Wire(kind, bandwidth, latency)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:196]} ..."
