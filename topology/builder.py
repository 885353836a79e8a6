"""Builder: a valid file becomes a Topology: ranges, types, fabrics and patterns are expanded, overrides applied."""

from __future__ import annotations

from collections.abc import Mapping

from hccl_py.core.errors import ConfigError, TopologyError
from hccl_py.topology.document import Document, Path_
from hccl_py.topology.fields import Entry
from hccl_py.topology.graph import Link, Node, NodeKind, Topology
from hccl_py.topology.names import Pattern, Work, nothing
from hccl_py.topology.node import HOST_WORD, listing
from hccl_py.topology.policy import ForcedAlgorithm, Policy, PolicyEntry
from hccl_py.topology.schema import ClusterFile, HostBody
from hccl_py.topology.scope import NodeSpec, Scope
from hccl_py.topology.templates import Templates

_KINDS = {"numa": NodeKind.NUMA, "switches": NodeKind.SWITCH, "nics": NodeKind.NIC, "devices": NodeKind.DEVICE}


class Builder:
    """Expands the content of one document.

    Args:
        document: where the content came from, for errors.
        content: what it says.
    """

    def __init__(self, document: Document, content: ClusterFile) -> None:
        self.work = Work()
        self._document = document
        self._content = content
        self._templates = Templates(document, content.host_types, content.link_types)
        self._all = Scope(document, self._templates, self.work)
        self._insides: dict[str | int, Scope] = {}  # of hosts that say no more than their type, else of each entry

    def topology(self) -> Topology:
        """The graph.

        Raises:
            ConfigError: a name that is not there or there twice, figures that are missing, too much of anything.
        """
        content, every = self._content, self._all
        hosts = list(every.expand(content.hosts, ("hosts",)))
        for name, _, path in hosts:
            every.add_node(name, NodeSpec(NodeKind.HOST, {}, path))
        for name, _, path in every.expand(content.switches, ("switches",)):
            every.add_node(name, NodeSpec(NodeKind.SWITCH, {}, path))
        for name, body, path in hosts:
            self._add_inside(name, self._inside(name, body, path))
        for name, fabric in content.fabrics.items():
            every.add_fabric(name, fabric, ("fabrics", name))
        for index, link in enumerate(content.links):
            every.add_links(link, ("links", index))
        for index, override in enumerate(content.overrides):
            every.override(override, ("overrides", index))
        nodes = [self._node(name, spec) for name, spec in every.nodes.items()]
        links = []
        for (src, dst), (wire, path) in every.links.items():
            try:
                links.append(Link(src, dst, wire.kind, wire.bandwidth_Bps, wire.latency_s))
            except TopologyError as error:
                raise self._document.error(path, str(error)) from error
        return Topology(tuple(nodes), tuple(links))

    def _node(self, name: str, spec: NodeSpec) -> Node:
        try:
            return Node(name, spec.kind, **spec.values)  # type: ignore[arg-type]
        except TopologyError as error:
            raise self._document.error(spec.path, str(error)) from error

    def _add_inside(self, host: str, inside: Scope) -> None:
        """Put a host's inside into the whole, with full names."""
        full = {local: host if local == HOST_WORD else f"{host}/{local}" for local in inside.nodes}
        for local, spec in inside.nodes.items():
            if local != HOST_WORD:
                values = dict(spec.values)
                if values.get("numa"):
                    values["numa"] = f"{host}/{values['numa']}"
                self._all.add_node(full[local], NodeSpec(spec.kind, values, spec.path))
        for (a, b), (wire, path) in inside.links.items():
            self._all.add_link((full[a], full[b]), wire, path)

    def _inside(self, host: str, body: HostBody, path: Path_) -> Scope:
        """The nodes and links in a host, by local names; made once for all equal hosts."""
        key = body.type if body.model_fields_set == {"type"} else id(body)
        if key in self._insides:
            return self._insides[key]
        scope = Scope(self._document, self._templates, self.work, host)
        scope.nodes[HOST_WORD] = NodeSpec(NodeKind.HOST, {}, path)
        bodies = self._templates.bodies(body, path)
        taken: dict[str, str] = {}
        for section, kind in _KINDS.items():
            entries: dict[str, tuple[Entry, Path_]] = {}
            for one, at in bodies:  # what comes later replaces what has the same name
                own: Mapping[str, Entry] = getattr(one, section)
                entries.update({name: (entry, p) for name, entry, p in scope.expand(own, (*at, section))})
            for local, (entry, at) in entries.items():
                if local in taken:
                    raise self._document.error(at, f"{local!r} is already in {taken[local]!r} of host {host!r}")
                taken[local] = section
                self._add_local(scope, kind, host, local, entry, at)
        fabrics = {name: (fabric, (*at, "fabrics", name)) for one, at in bodies for name, fabric in one.fabrics.items()}
        for name, (fabric, at) in fabrics.items():
            scope.add_fabric(name, fabric, at)
        for one, at in bodies:
            for index, link in enumerate(one.links):
                scope.add_links(link, (*at, "links", index))
        self._insides[key] = scope
        return scope

    def _add_local(self, scope: Scope, kind: NodeKind, host: str, local: str, entry: Entry, path: Path_) -> None:
        values = entry.model_dump()
        if "kind" in values:
            values["device"] = values.pop("kind")
        numa = values.get("numa")
        if numa and (numa not in scope.nodes or scope.nodes[numa].kind is not NodeKind.NUMA):
            known = [name for name, spec in scope.nodes.items() if spec.kind is NodeKind.NUMA]
            message = f"the host has no NUMA node {numa!r} (it has: {listing(known)})"
            raise self._document.error((*path, "numa"), message)
        spec = NodeSpec(kind, values, path)
        full = {**values, "numa": f"{host}/{numa}"} if numa else values
        self._node(f"{host}/{local}", NodeSpec(kind, full, path))  # a bad name is said with its own line, now
        scope.add_node(local, spec)

    def policy(self, topology: Topology) -> Policy:
        """What the file's ``policy`` means on this graph.

        Raises:
            ConfigError: a rule that never counts, or a pattern that matches no NIC.
        """
        entry: PolicyEntry = self._content.policy
        rules = []
        for index, rule in enumerate(entry.algorithms):
            for earlier in entry.algorithms[:index]:
                wider = earlier.collective in (None, rule.collective)
                if wider and (earlier.upto is None or (rule.upto is not None and rule.upto <= earlier.upto)):
                    raise self._document.error(("policy", "algorithms", index), "an earlier rule has taken these sizes")
            rules.append(ForcedAlgorithm(rule.algorithm, rule.collective, rule.upto))
        nics: dict[str, None] = {}
        for index, text in enumerate(entry.nics or ()):
            try:
                found = [name for name, _ in Pattern.parse(text).match(dict.fromkeys(topology.nics()), self.work)]
                if not found:
                    raise ConfigError(nothing(text, topology.nics()))
            except ConfigError as error:
                raise self._document.error(("policy", "nics", index), str(error)) from error
            nics |= dict.fromkeys(found)
        allowed = None if entry.nics is None else tuple(nics)
        return Policy(tuple(rules), entry.deterministic, entry.compression or 0.0, allowed)
