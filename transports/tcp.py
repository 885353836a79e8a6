"""Transport ``tcp``: several connections per pair of ranks, over IPv4 and IPv6."""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.core.errors import ConfigError, TransportUnavailableError
from hccl_py.transports.base import Availability, TransportConfig, TransportSpec
from hccl_py.transports.interfaces import InterfaceList, LocalAddress, local_addresses

_FAMILIES = ("auto", "4", "6")


@dataclass(frozen=True)
class TcpConfig(TransportConfig):
    """Raises ConfigError for a value that no machine could accept; whether this one can, :func:`availability` says."""

    tcp_interfaces: str = ""  # see InterfaceList; may differ between ranks
    tcp_port_range: tuple[int, int] = (0, 0)  # lowest and highest port to listen on; (0, 0): any free one
    tcp_connections: int = 2  # per pair of ranks; the same on all ranks
    tcp_family: str = "auto"  # "auto": whatever both ranks have; "4" or "6"
    tcp_congestion: str = ""  # the kernel's name of a congestion control; "": its own, but bbr only on long ways

    def __post_init__(self) -> None:
        InterfaceList.parse(self.tcp_interfaces)
        low, high = self.tcp_port_range
        if (low, high) != (0, 0) and not 1 <= low <= high <= 65535:
            raise ConfigError(
                f"tcp_port_range is {low}-{high}; it may be two ports from 1 to 65535 in rising order, or 0-0 for any"
            )
        if not 1 <= self.tcp_connections <= 64:
            raise ConfigError(f"tcp_connections is {self.tcp_connections}; it may be 1 to 64")
        if self.tcp_family not in _FAMILIES:
            raise ConfigError(f"tcp_family is {self.tcp_family!r}; it may be auto, 4 or 6")


def availability(config: TcpConfig) -> Availability:
    """At least one address of an interface that is up matches ``tcp_interfaces`` and ``tcp_family``."""
    try:
        return judge(config, local_addresses())
    except TransportUnavailableError as error:
        return Availability(False, error.reason)


def judge(config: TcpConfig, addresses: tuple[LocalAddress, ...]) -> Availability:
    """The verdict for a host that has ``addresses``."""
    try:
        chosen = InterfaceList.parse(config.tcp_interfaces).select(addresses)
    except ConfigError as error:
        return Availability(False, str(error))
    if config.tcp_family != "auto":
        chosen = tuple(address for address in chosen if address.ip.version == int(config.tcp_family))
    if not chosen:
        return Availability(False, f"no {'' if config.tcp_family == 'auto' else f'IPv{config.tcp_family} '}address")
    reachable = [address for address in chosen if not address.ip.is_loopback]
    if not reachable:
        return Availability(True, f"ranks of this host only, at {chosen[0].ip}")
    return Availability(True, f"at {', '.join(str(address.ip) for address in reachable)}")


SPEC = TransportSpec(
    name="tcp",
    same_host_only=False,
    maps_peer_memory=False,
    needs="an IP address of an interface that is up, reachable from the other hosts",
    config_type=TcpConfig,
    probe=availability,
)
