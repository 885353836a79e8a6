"""Scope: the names of one host, or of the whole file, while they are read, and where in the file each came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hccl_py.core.errors import ConfigError
from hccl_py.topology.document import Document, Path_
from hccl_py.topology.fabrics.fabric import End, Fabric, Wire
from hccl_py.topology.fields import Entry, Figures
from hccl_py.topology.names import Pattern, Work, expand_range, nothing, pairs
from hccl_py.topology.node import HOST_WORD, NodeKind
from hccl_py.topology.schema import LinkEntry, OverrideEntry
from hccl_py.topology.templates import Templates

MAX_NODES = 65536
MAX_LINKS = 200_000

T = TypeVar("T", bound=Entry)


@dataclass(frozen=True)
class NodeSpec:
    """A node to be: its attributes by name, and its place in the file."""

    kind: NodeKind
    values: Mapping[str, object]
    path: Path_


class Scope:
    """Nodes and links by name.

    Args:
        document: for errors.
        templates: for the figures of links.
        work: shared by all scopes of a file.
        host: the host whose inside this is, "" for the whole file; local names are shown with it in errors.
    """

    def __init__(self, document: Document, templates: Templates, work: Work, host: str = "") -> None:
        self.nodes: dict[str, NodeSpec] = {}
        self.links: dict[tuple[str, str], tuple[Wire, Path_]] = {}
        self._document = document
        self._templates = templates
        self._work = work
        self._host = host

    def expand(self, entries: Mapping[str, T], path: Path_) -> Iterator[tuple[str, T, Path_]]:
        """(name, entry, path) of every name that the keys of a section stand for."""
        seen: dict[str, str] = {}
        for key, entry in entries.items():
            try:
                names = expand_range(key)
            except ConfigError as error:
                raise self._document.error((*path, key), str(error)) from error
            for name in names:
                if "/" in name:
                    raise self._document.error((*path, key), f"{name!r}: a declared name has no '/'")
                if name in seen:
                    first = self.where((*path, seen[name]))
                    raise self._document.error((*path, key), f"{name!r} is there twice, first in {first}")
                seen[name] = key
                yield name, entry, (*path, key)

    def add_node(self, name: str, spec: NodeSpec) -> None:
        """Add a node.

        Raises:
            ConfigError: the name is taken, or there are too many.
        """
        if name in self.nodes:
            first = self.where(self.nodes[name].path)
            raise self._document.error(spec.path, f"{self._full(name)!r} is there twice, first in {first}")
        if len(self.nodes) >= MAX_NODES:
            raise self._document.error(spec.path, f"more than {MAX_NODES} nodes")
        self.nodes[name] = spec

    def add_link(self, ends: tuple[str, str], wire: Wire, path: Path_) -> None:
        """Add one direction of a wire.

        Raises:
            ConfigError: it is there, or there are too many.
        """
        if ends in self.links:
            src, dst = map(self._full, ends)
            message = f"the link {src} -> {dst} is already declared in {self.where(self.links[ends][1])}"
            raise self._document.error(path, message)
        if len(self.links) >= MAX_LINKS:
            raise self._document.error(path, f"more than {MAX_LINKS} links")
        self.links[ends] = wire, path

    def add_links(self, entry: LinkEntry, path: Path_) -> None:
        """All links of one entry."""
        try:
            found = pairs(*entry.pair, self.nodes, MAX_LINKS - len(self.links), self._work)
        except ConfigError as error:
            raise self._document.error(path, str(error)) from error
        wire = self._templates.wire(entry, path)
        fresh: set[tuple[str, str]] = set()
        for a, b in found:
            for ends in ((a, b), (b, a)) if entry.between else ((a, b),):
                if ends not in fresh:  # a pattern between a group and itself names every pair twice
                    fresh.add(ends)
                    self.add_link(ends, wire, path)

    def add_fabric(self, name: str, fabric: Fabric, path: Path_) -> None:
        """What a generator makes."""
        ends: list[Sequence[End]] = []
        for index, text in enumerate(fabric.ends):
            try:
                group = [End(n, binding, self._numa(n)) for n, binding in self._match(text)]
                if not group:
                    raise ConfigError(nothing(text, self.nodes))
            except ConfigError as error:
                raise self._document.error((*path, "ends", index), str(error)) from error
            ends.append(group)

        def resolve(figures: Figures, base: Wire | None, key: str) -> Wire:
            return self._templates.wire(figures, (*path, key), base)

        try:
            grown = fabric.grow(name, ends, resolve)
        except ConfigError as error:
            if str(error).startswith(f"{self._document.file}:"):  # of resolve: has its place already
                raise
            raise self._document.error(path, str(error)) from error
        for switch in grown.switches:
            self.add_node(switch, NodeSpec(NodeKind.SWITCH, {}, path))
        for a, b, wire in grown.wires:
            for end in (a, b):
                if end not in self.nodes:
                    raise self._document.error(path, nothing(end, self.nodes))
            for one in ((a, b), (b, a)):
                self.add_link(one, wire, path)

    def override(self, entry: OverrideEntry, path: Path_) -> None:
        """Change the links that an override names."""
        a, b = entry.pair
        try:
            left, right = dict(self._match(a)), dict(self._match(b))
            self._work.spend(4 * len(self.links))
        except ConfigError as error:
            raise self._document.error(path, str(error)) from error
        for text, found in ((a, left), (b, right)):
            if not found:
                raise self._document.error(path, nothing(text, self.nodes))
        wanted = [ends for ends in self.links if _go_together(ends, left, right)]
        if entry.between:
            wanted += [ends for ends in self.links if _go_together(ends[::-1], left, right)]
        if not wanted:
            raise self._document.error(path, f"there is no link between {a!r} and {b!r} to change")
        for ends in dict.fromkeys(wanted):
            if entry.down:
                del self.links[ends]
                continue
            wire = self.links[ends][0]
            kind = wire.kind if entry.kind is None else entry.kind
            bandwidth_Bps = wire.bandwidth_Bps if entry.bandwidth is None else entry.bandwidth
            latency_s = wire.latency_s if entry.latency is None else entry.latency
            self.links[ends] = Wire(kind, bandwidth_Bps * (entry.share or 1.0), latency_s), path

    def where(self, path: Path_) -> str:
        """``line 7``."""
        return f"line {self._document.line(path)}"

    def _match(self, text: str) -> Iterator[tuple[str, dict[str, str]]]:
        return Pattern.parse(text).match(self.nodes, self._work)

    def _numa(self, name: str) -> str:
        return str(self.nodes[name].values.get("numa", ""))

    def _full(self, local: str) -> str:
        if not self._host:
            return local
        return self._host if local == HOST_WORD else f"{self._host}/{local}"


def _go_together(
    ends: tuple[str, str], left: Mapping[str, Mapping[str, str]], right: Mapping[str, Mapping[str, str]]
) -> bool:
    """Whether the ends match the two patterns, with equal values of the variables that both have."""
    if ends[0] not in left or ends[1] not in right:
        return False
    ours, theirs = left[ends[0]], right[ends[1]]
    return all(theirs.get(name, value) == value for name, value in ours.items())
