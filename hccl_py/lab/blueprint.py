"""Blueprint: what a cluster file's network becomes on one machine: hosts, interfaces, bridges and wires. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import ClusterConfig
from hccl_py.topology.graph import Node, NodeKind, Topology

MAX_HOSTS = 250
_MAX_INTERFACE_NAME = 15  # Linux: IFNAMSIZ - 1


@dataclass(frozen=True)
class Port:
    """One end of a wire. ``node`` is a NIC's or a switch's name in the cluster file; ``address`` "" on a switch."""

    node: str
    host: str  # "" on a switch
    device: str  # the operating system's name
    address: str  # IPv4 with prefix length


@dataclass(frozen=True)
class Wire:
    """A veth pair. Rates in bit/s; ``a_to_b_bps`` is what ``a`` may send."""

    a: Port
    b: Port
    a_to_b_bps: int
    b_to_a_bps: int


@dataclass(frozen=True)
class Blueprint:
    """Everything the kernel must be told, by name.

    Attributes:
        hosts: those with a rank or a network link, in natural order.
        bridges: ``(switch, device)``.
        wires: one for each pair of nodes with network links between them.
        ranks: the host of each rank.
    """

    hosts: tuple[str, ...]
    bridges: tuple[tuple[str, str], ...]
    wires: tuple[Wire, ...]
    ranks: tuple[str, ...]

    def ports(self, host: str) -> list[Port]:
        """The interfaces of a host."""
        return [port for wire in self.wires for port in (wire.a, wire.b) if port.host == host]

    def address(self, host: str) -> str:
        """The first IPv4 address of a host, without its prefix length; ConfigError if it has no interface."""
        for port in self.ports(host):
            return port.address.partition("/")[0]
        raise ConfigError(f"host {host!r} has no network link in the cluster file")

    def wire(self, one: str, other: str) -> int:
        """Index of the wire between two nodes.

        Args:
            one, other: a NIC, a switch, or a host where just one of its NICs leads to the other end.

        Raises:
            ConfigError: no such wire, or several.
        """
        found = [
            index
            for index, wire in enumerate(self.wires)
            if (_is(wire.a, one) and _is(wire.b, other)) or (_is(wire.b, one) and _is(wire.a, other))
        ]
        if len(found) == 1:
            return found[0]
        named = [
            f"{wire.a.node} - {wire.b.node}" for wire in (map(self.wires.__getitem__, found) if found else self.wires)
        ]
        what = "several links" if found else "no link"
        raise ConfigError(f"{what} between {one!r} and {other!r}; name one of: {', '.join(named)}")


def draw_up(cluster: ClusterConfig) -> Blueprint:
    """The blueprint of a cluster file's network links; all that is inside a host is this machine's own.

    Raises:
        ConfigError: more than 250 hosts, a loop of switches (a bridge would flood it), an interface name Linux does not
            take, a network link whose end is no NIC and no switch, or ranks on different networks.
    """
    topology, placement = cluster.topology, cluster.placement
    ranks = tuple(placement.host(rank, topology) for rank in range(placement.size))
    pairs = _pairs(topology)
    members = {topology.host_of(end) for pair in pairs for end in pair} | set(ranks)
    hosts = tuple(host for host in topology.hosts() if host in members)
    if len(hosts) > MAX_HOSTS:
        raise ConfigError(f"{len(hosts)} hosts: a lab has {MAX_HOSTS} at most")
    networks = _networks(pairs, topology)
    switches = sorted({end for pair in pairs for end in pair if topology.node(end).kind is NodeKind.SWITCH})
    subnets = {end: index for index, network in enumerate(networks) for end in network}
    bridges = {switch: f"br{index}" for index, switch in enumerate(switches)}
    wires = []
    for index, (one, other) in enumerate(pairs):
        ports = [
            _port(topology.node(end), subnets[end], hosts, f"w{index}{side}")
            for end, side in ((one, "a"), (other, "b"))
        ]
        there, back = topology.link(one, other), topology.link(other, one)
        wires.append(Wire(ports[0], ports[1], round(there.bandwidth_Bps * 8), round(back.bandwidth_Bps * 8)))
    blueprint = Blueprint(hosts, tuple(bridges.items()), tuple(wires), ranks)
    _check_reachable(blueprint)
    return blueprint


def _is(port: Port, name: str) -> bool:
    return name in (port.node, port.host) and name != ""


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    """The pairs of nodes with a network link, each once."""
    pairs: dict[tuple[str, str], None] = {}
    for link in topology.links:
        if not link.kind.is_network:
            continue
        for end in (link.src, link.dst):
            node = topology.node(end)
            outside = node.kind is NodeKind.SWITCH and not node.host
            if not (outside or node.kind is NodeKind.NIC):
                raise ConfigError(f"link {link}: a lab joins NICs and switches, and {end} is a {node.kind.value}")
        if (link.dst, link.src) not in pairs:
            topology.link(link.dst, link.src)  # both directions, or TopologyError
            pairs[link.src, link.dst] = None
    return list(pairs)


def _networks(pairs: Iterable[tuple[str, str]], topology: Topology) -> list[set[str]]:
    """What is joined by wires, by network; refuses loops, which bridges would flood."""
    networks: list[set[str]] = []
    for one, other in pairs:
        joined = [network for network in networks if one in network or other in network]
        if any(one in network and other in network for network in joined):
            raise ConfigError(
                f"link {one} - {other} closes a loop of switches: a lab has no routing, leave out one link"
            )
        networks = [network for network in networks if network not in joined]
        networks.append({one, other}.union(*joined))
    for network in networks:
        nics = [end for end in network if topology.node(end).kind is NodeKind.NIC]
        if len({topology.host_of(nic) for nic in nics}) > MAX_HOSTS:
            raise ConfigError(f"a network of a lab has {MAX_HOSTS} hosts at most")
    return networks


def _port(node: Node, subnet: int, hosts: Sequence[str], switch_port: str) -> Port:
    if node.kind is NodeKind.SWITCH:
        return Port(node.name, "", switch_port, "")
    if len(node.interface) > _MAX_INTERFACE_NAME:
        raise ConfigError(f"NIC {node.name!r}: Linux takes interface names up to {_MAX_INTERFACE_NAME} letters")
    return Port(node.name, node.host, node.interface, f"10.77.{subnet}.{hosts.index(node.host) + 1}/24")


def _check_reachable(blueprint: Blueprint) -> None:
    subnets = {host: {port.address.split(".")[2] for port in blueprint.ports(host)} for host in set(blueprint.ranks)}
    if len(subnets) > 1 and not set.intersection(*subnets.values()):
        raise ConfigError("the ranks' hosts share no network: in a lab nobody routes between networks")
    for host in blueprint.hosts:
        addresses = [port.address for port in blueprint.ports(host)]
        if len(set(addresses)) != len(addresses):
            raise ConfigError(f"host {host!r} has two NICs in one network: a lab gives a host one address a network")
