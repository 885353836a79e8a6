"""A cluster file becomes a Topology and a Placement. Every mistake is one ConfigError with file:line and key path."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hccl_py.core.errors import ConfigError, TopologyError
from hccl_py.topology.document import Document, Path_, parse_document, read_document
from hccl_py.topology.graph import Link, Node, NodeKind, Topology
from hccl_py.topology.names import expand_range, pairs, select
from hccl_py.topology.node import HOST_WORD, did_you_mean
from hccl_py.topology.placement import Placement
from hccl_py.topology.schema import ClusterFile, Entry, HostBody, HostEntry, LinkEntry, validate

MAX_NODES = 65536
MAX_LINKS = 200_000

T = TypeVar("T", bound=Entry)


@dataclass(frozen=True)
class ClusterConfig:
    """What a cluster file says.

    Attributes:
        name: the file's ``name``, or "" (a title for people).
        topology: the graph.
        placement: the device of each rank: the file's ``placement``, else `Placement.by_host`.
    """

    name: str
    topology: Topology
    placement: Placement


def load_cluster(path: str | Path) -> ClusterConfig:
    """Read a cluster file, and check that all ranks of its placement reach each other.

    Raises:
        ConfigError: anything wrong with the file; says file:line, key path, what was found and what is allowed.
    """
    return _cluster(read_document(path))


def load_topology(path: str | Path) -> Topology:
    """Only the graph of a cluster file; it need not be connected, and may have no device.

    Raises:
        ConfigError: as `load_cluster`.
    """
    document = read_document(path)
    return _Builder(document, validate(document)).topology()


def parse_cluster(text: str, file: str = "<text>") -> ClusterConfig:
    """As `load_cluster`, from text; ``file`` is what errors call it."""
    return _cluster(parse_document(text, file))


def parse_topology(text: str, file: str = "<text>") -> Topology:
    """As `load_topology`, from text; ``file`` is what errors call it."""
    document = parse_document(text, file)
    return _Builder(document, validate(document)).topology()


def _cluster(document: Document) -> ClusterConfig:
    content = validate(document)
    topology = _Builder(document, content).topology()
    path: Path_ = ("placement",) if content.placement is not None else ("hosts",)
    try:
        placement = Placement.by_host(topology)
        if content.placement is not None:
            devices: list[str] = []
            for index, text in enumerate(content.placement):
                path = ("placement", index)
                devices += select(text, topology.devices())
            path = ("placement",)
            placement = Placement(tuple(devices))
        placement.check(topology)
    except (ConfigError, TopologyError) as error:
        raise document.error(path, str(error)) from error
    return ClusterConfig(content.name, topology, placement)


class _Builder:
    """Expands ranges, types and patterns into nodes and links, and remembers where each came from."""

    def __init__(self, document: Document, content: ClusterFile) -> None:
        self._document = document
        self._content = content
        self._nodes: dict[str, Node] = {}
        self._node_paths: dict[str, Path_] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._link_paths: dict[tuple[str, str], Path_] = {}

    def topology(self) -> Topology:
        content = self._content
        hosts = list(self._expand(content.hosts, ("hosts",)))
        for name, _, path in hosts:
            self._add_node(path, name, NodeKind.HOST)
        for name, _, path in self._expand(content.switches, ("switches",)):
            self._add_node(path, name, NodeKind.SWITCH)
        for name, host, path in hosts:
            self._add_host(name, host, path)
        for index, link in enumerate(content.links):
            self._add_links(link, ("links", index), self._nodes, "")
        return Topology(tuple(self._nodes.values()), tuple(self._links.values()))

    def _add_host(self, host: str, entry: HostEntry, path: Path_) -> None:
        bodies: list[tuple[HostBody, Path_]] = [(entry, path)]
        if entry.type:
            types = self._content.host_types
            if entry.type not in types:
                known = ", ".join(types) or "none"
                message = f"there is no host type {entry.type!r}{did_you_mean(entry.type, types)} (host_types: {known})"
                raise self._document.error((*path, "type"), message)
            bodies.insert(0, (types[entry.type], ("host_types", entry.type)))
        sections: dict[str, dict[str, tuple[Entry, Path_]]] = {"numa": {}, "switches": {}, "nics": {}, "devices": {}}
        for body, at in bodies:
            for section, entries in sections.items():
                own = {n: (e, p) for n, e, p in self._expand(getattr(body, section), (*at, section))}
                entries.update(own)  # what the host lists itself replaces what its type lists
        taken: dict[str, str] = {}
        for section, entries in sections.items():
            for local, (one, at) in entries.items():
                if local in taken:
                    raise self._document.error(at, f"{local!r} is already in {taken[local]!r} of host {host!r}")
                taken[local] = section
                self._add_local(section, f"{host}/{local}", one, at)
        names = dict.fromkeys([HOST_WORD, *taken])
        for body, at in bodies:
            for index, link in enumerate(body.links):
                self._add_links(link, (*at, "links", index), names, host)

    def _add_local(self, section: str, name: str, entry: Entry, path: Path_) -> None:
        kind = {"numa": NodeKind.NUMA, "switches": NodeKind.SWITCH, "nics": NodeKind.NIC, "devices": NodeKind.DEVICE}
        values = entry.model_dump()
        if "kind" in values:
            values["device"] = values.pop("kind")
        if values.get("numa"):
            numa = f"{name.partition('/')[0]}/{values['numa']}"
            if numa not in self._nodes or self._nodes[numa].kind is not NodeKind.NUMA:
                numas = (node for node in self._nodes.values() if node.kind is NodeKind.NUMA)
                known = [node.local for node in numas if node.host == name.partition("/")[0]]
                message = f"the host has no NUMA node {values['numa']!r} (it has: {', '.join(known) or 'none'})"
                raise self._document.error((*path, "numa"), message)
            values["numa"] = numa
        self._add_node(path, name, kind[section], **values)

    def _add_node(self, path: Path_, name: str, kind: NodeKind, **values: object) -> None:
        try:
            node = Node(name, kind, **values)  # type: ignore[arg-type]
        except TopologyError as error:
            raise self._document.error(path, str(error)) from error
        if name in self._nodes:
            raise self._document.error(path, f"{name!r} is there twice, first in {self._where(self._node_paths[name])}")
        if len(self._nodes) >= MAX_NODES:
            raise self._document.error(path, f"more than {MAX_NODES} nodes")
        self._nodes[name] = node
        self._node_paths[name] = path

    def _expand(self, entries: Mapping[str, T], path: Path_) -> Iterator[tuple[str, T, Path_]]:
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
                    first = self._where((*path, seen[name]))
                    raise self._document.error((*path, key), f"{name!r} is there twice, first in {first}")
                seen[name] = key
                yield name, entry, (*path, key)

    def _add_links(self, entry: LinkEntry, path: Path_, names: Collection[str], host: str) -> None:
        """All links of one entry. ``names`` are the local names of ``host``, or with ``host`` = "" all names."""
        a, b = entry.between or (entry.from_ or "", entry.to or "")
        fresh: set[tuple[str, str]] = set()
        try:
            for x, y in pairs(a, b, names, MAX_LINKS - len(self._links)):
                src, dst = _full(x, host), _full(y, host)
                for ends in ((src, dst), (dst, src)) if entry.between else ((src, dst),):
                    if ends in fresh:  # a pattern between a group and itself names every pair twice
                        continue
                    fresh.add(ends)
                    if ends in self._links:
                        first = self._where(self._link_paths[ends])
                        raise ConfigError(f"the link {ends[0]} -> {ends[1]} is already declared in {first}")
                    self._links[ends] = Link(*ends, entry.kind, entry.bandwidth, entry.latency)
                    self._link_paths[ends] = path
        except (ConfigError, TopologyError) as error:
            raise self._document.error(path, str(error)) from error

    def _where(self, path: Path_) -> str:
        return f"line {self._document.lines[path]}"


def _full(local: str, host: str) -> str:
    if not host:
        return local
    return host if local == HOST_WORD else f"{host}/{local}"
