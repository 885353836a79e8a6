"""The IP addresses of this host, and the user's choice among them.

The same language as in native/src/transports/interfaces.cpp, which does the real choosing; the tests of both share
their cases. Addresses are judged, never interface names: a real address may sit on ``lo``.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError, TransportUnavailableError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_NAME = 15
_IFF_UP = 1


@dataclass(frozen=True)
class LocalAddress:
    """An address of an interface that is up."""

    interface: str
    ip: IpAddress


@dataclass(frozen=True)
class Network:
    """A network, or one address as the smallest network; ``scope``: an interface name, for link-local ones."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    scope: str = ""

    def holds(self, ip: IpAddress) -> bool:
        """True if ``ip`` is in it, on the right link."""
        return ip in self.network and self.scope in ("", getattr(ip, "scope_id", None))


@dataclass(frozen=True)
class InterfaceList:
    """Which local addresses to use.

    A comma list of interface names (``eth0``), beginnings of names (``eth*``), addresses (``10.0.0.1``) and networks
    (``10.0.0.0/24``); with ``^`` in front everything but those. Empty: everything. Items that are absent on this host
    are fine as long as one is present: hosts differ, the list is the same.
    """

    text: str
    exclude: bool
    names: tuple[str, ...]
    networks: tuple[Network, ...]

    @classmethod
    def parse(cls, text: str) -> InterfaceList:
        """Raises ConfigError on an item that cannot be any of the four."""
        text = text.strip()
        exclude = text.startswith("^")
        names: list[str] = []
        networks: list[Network] = []
        if exclude and not text[1:].strip():
            raise _wrong(text, "^", "excludes nothing")
        for word in text[exclude:].split(",") if text else ():
            item = _item(text, word.strip())
            if isinstance(item, str):
                names.append(item)
            else:
                networks.append(item)
        return cls(text, exclude, tuple(names), tuple(networks))

    def select(self, addresses: Iterable[LocalAddress]) -> tuple[LocalAddress, ...]:
        """Those of ``addresses`` that the list admits. Raises ConfigError, naming what exists, if it is none."""
        everything = tuple(addresses)
        if not self.text:
            return everything
        chosen = tuple(address for address in everything if self._lists(address) != self.exclude)
        if not chosen:
            what = "excludes every" if self.exclude else "matches no"
            raise ConfigError(f"tcp_interfaces {self.text!r} {what} address of this host; it has: {_names(everything)}")
        return chosen

    def _lists(self, address: LocalAddress) -> bool:
        return any(
            address.interface.startswith(name[:-1]) if name.endswith("*") else address.interface == name
            for name in self.names
        ) or any(network.holds(address.ip) for network in self.networks)


def _item(text: str, word: str) -> str | Network:
    if not word:
        raise _wrong(text, word, "is an empty item")
    if word.startswith("^"):
        raise _wrong(text, word, "has a ^ inside the list")
    address, slash, prefix = word.partition("/")
    scope = address.partition("%")[2]
    try:
        ip = ipaddress.ip_address(address)
        if scope:
            socket.if_nametoindex(scope)
    except (ValueError, OSError):
        name = word.removesuffix("*")
        if not name or len(name) > _LONGEST_NAME or any(character in "/*: \t" for character in name):
            raise _wrong(text, word, "is neither an interface name nor an address nor a network") from None
        return word
    bits = ip.max_prefixlen
    if slash and not (prefix.isascii() and prefix.isdigit() and int(prefix) <= bits):
        raise _wrong(text, word, f"has a prefix length that is not 0 to {bits}")
    network = ipaddress.ip_network(f"{address.partition('%')[0]}/{prefix if slash else bits}", strict=False)
    return Network(network, scope)


def _wrong(text: str, item: str, why: str) -> ConfigError:
    return ConfigError(
        f"tcp_interfaces {text!r}: {item!r} {why}. Use interface names (eth0), their beginnings (eth*), addresses "
        "(10.0.0.1) or networks (10.0.0.0/24), separated by commas; ^ in front of the list excludes all of it"
    )


def _names(addresses: Iterable[LocalAddress]) -> str:
    by_name: dict[str, list[str]] = {}
    for address in addresses:
        by_name.setdefault(address.interface, []).append(str(address.ip))
    return ", ".join(f"{name} ({', '.join(ips)})" for name, ips in by_name.items()) or "none"


class _IfAddrs(ctypes.Structure):
    """``struct ifaddrs`` of getifaddrs(3)."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def local_addresses() -> tuple[LocalAddress, ...]:
    """The addresses of all interfaces that are up, in the kernel's order. Raises TransportUnavailableError."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        reason = f"cannot list the network interfaces: {os.strerror(ctypes.get_errno())}"
        raise TransportUnavailableError(f"tcp: {reason}", reason)
    found: list[LocalAddress] = []
    try:
        entry = head
        while entry:
            item = entry.contents
            ip = _ip(item.address) if item.address and item.flags & _IFF_UP else None
            if ip is not None:
                # An alias ("eth0:1") is the interface eth0.
                found.append(LocalAddress(os.fsdecode(item.name).partition(":")[0], ip))
            entry = item.next
    finally:
        libc.freeifaddrs(head)
    return tuple(found)


def _ip(sockaddr: int) -> IpAddress | None:
    """The address in a ``struct sockaddr_in`` or ``sockaddr_in6``; None for other families."""
    family = ctypes.c_ushort.from_address(sockaddr).value
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(sockaddr + 4, 4))
    if family == socket.AF_INET6:
        ip = ipaddress.IPv6Address(ctypes.string_at(sockaddr + 8, 16))
        scope = ctypes.c_uint.from_address(sockaddr + 24).value
        return ipaddress.IPv6Address(f"{ip}%{socket.if_indextoname(scope)}") if scope else ip
    return None
