"""A cluster file becomes a Topology, a Placement and a Policy. Every mistake is one ConfigError with file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hccl_py.core.errors import ConfigError, TopologyError
from hccl_py.topology.builder import Builder
from hccl_py.topology.document import Document, Path_, parse_document, read_document
from hccl_py.topology.graph import Topology
from hccl_py.topology.names import select
from hccl_py.topology.placement import Placement
from hccl_py.topology.policy import Policy
from hccl_py.topology.validate import validate


@dataclass(frozen=True)
class ClusterConfig:
    """What a cluster file says.

    Attributes:
        name: the file's ``name``, or "" (a title for people).
        topology: the graph, without the NICs that the policy does not allow.
        placement: the device of each rank: the file's ``placement``, else `Placement.by_host`.
        policy: what the file's ``policy`` says.
    """

    name: str
    topology: Topology
    placement: Placement
    policy: Policy = field(default_factory=Policy)


def load_cluster(path: str | Path) -> ClusterConfig:
    """Read a cluster file, and check that all ranks of its placement reach each other.

    Raises:
        ConfigError: anything wrong with the file; says file:line, key path, what was found and what is allowed.
    """
    return _cluster(read_document(path))


def load_topology(path: str | Path) -> Topology:
    """Only the graph of a cluster file, with all its NICs; it need not be connected, and may have no device.

    Raises:
        ConfigError: as `load_cluster`.
    """
    document = read_document(path)
    return Builder(document, validate(document)).topology()


def parse_cluster(text: str, file: str = "<text>") -> ClusterConfig:
    """As `load_cluster`, from text; ``file`` is what errors call it."""
    return _cluster(parse_document(text, file))


def parse_topology(text: str, file: str = "<text>") -> Topology:
    """As `load_topology`, from text; ``file`` is what errors call it."""
    document = parse_document(text, file)
    return Builder(document, validate(document)).topology()


def _cluster(document: Document) -> ClusterConfig:
    content = validate(document)
    builder = Builder(document, content)
    topology = builder.topology()
    policy = builder.policy(topology)
    path: Path_ = ("placement",) if content.placement is not None else ("hosts",)
    try:
        if policy.nics is not None:
            topology = topology.without(set(topology.nics()) - set(policy.nics))
        placement = Placement.by_host(topology)
        if content.placement is not None:
            devices: list[str] = []
            for index, text in enumerate(content.placement):
                path = ("placement", index)
                devices += select(text, dict.fromkeys(topology.devices()), builder.work)
            path = ("placement",)
            placement = Placement(tuple(devices))
        placement.check(topology)
    except (ConfigError, TopologyError) as error:
        raise document.error(path, str(error)) from error
    return ClusterConfig(content.name, topology, placement, policy)
