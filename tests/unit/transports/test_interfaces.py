"""The interface list. The cases are those of tests/native/test_socket.cpp: both must choose alike."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.transports.interfaces import InterfaceList, LocalAddress, local_addresses

# A host with a bridge, two NICs and a routable address on lo.
HOST = tuple(
    LocalAddress(name, ipaddress.ip_address(ip))
    for name, ip in [
        ("lo", "127.0.0.1"),
        ("lo", "10.99.0.1"),
        ("eth0", "10.0.0.1"),
        ("eth0", "fd00::1"),
        ("eth1", "10.0.1.1"),
        ("docker0", "172.17.0.1"),
        ("eno1", "192.168.1.17"),
    ]
)
ALL = "127.0.0.1 10.99.0.1 10.0.0.1 fd00::1 10.0.1.1 172.17.0.1 192.168.1.17"


def chosen(text: str) -> str:
    return " ".join(str(address.ip) for address in InterfaceList.parse(text).select(HOST))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ALL),
        ("  ", ALL),
        ("eth0", "10.0.0.1 fd00::1"),
        ("eth*", "10.0.0.1 fd00::1 10.0.1.1"),
        ("eno1, eth1", "10.0.1.1 192.168.1.17"),
        ("10.0.0.0/16", "10.0.0.1 10.0.1.1"),
        ("10.99.0.1", "10.99.0.1"),
        ("fd00::/16,192.168.1.17", "fd00::1 192.168.1.17"),
        ("0.0.0.0/0", "127.0.0.1 10.99.0.1 10.0.0.1 10.0.1.1 172.17.0.1 192.168.1.17"),
        ("^docker0,lo,eno1", "10.0.0.1 fd00::1 10.0.1.1"),
        ("^docker*,10.0.0.0/8,127.0.0.1", "fd00::1 192.168.1.17"),
        ("eth0,ib0", "10.0.0.1 fd00::1"),
        ("^virbr0", ALL),
    ],
)
def test_list_selects(text: str, addresses: str) -> None:
    assert chosen(text) == addresses


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("etho", "'etho' matches no address of this host; it has: lo (127.0.0.1, 10.99.0.1), eth0 (10.0.0.1, fd00::1)"),
        ("10.0.0.2", "eno1 (192.168.1.17)"),
        ("^0.0.0.0/0,::/0", "excludes every address"),
    ],
)
def test_list_that_selects_nothing_names_what_exists(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.0/33", "'10.0.0.0/33' has a prefix length that is not 0 to 32"),
        ("fd00::/129", "not 0 to 128"),
        ("10.0.0.0/x", "prefix length"),
        ("10.0.0.0/", "prefix length"),
        ("10.0.0.0/8x", "prefix length"),
        ("eth0,", "empty item"),
        (",eth0", "empty item"),
        ("eth0,^eth1", "^ inside the list"),
        ("^", "excludes nothing"),
        ("*", "neither an interface name"),
        ("et*h", "neither an interface name"),
        ("eth0/24", "neither an interface name"),
        ("eth0 eth1", "neither an interface name"),
        ("10.0.0.256:80", "neither an interface name"),
        ("a_name_too_long_for_linux", "neither an interface name"),
        ("fe80::1%no_such_if", "neither an interface name"),
    ],
)
def test_list_refuses_what_is_no_item(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        InterfaceList.parse(text)
    assert words in str(caught.value)
    assert "Use interface names (eth0)" in str(caught.value)


def test_scope_is_compared_where_given() -> None:
    name = socket.if_nameindex()[0][1]
    here, elsewhere = (LocalAddress(link, ipaddress.ip_address(f"fe80::1%{link}")) for link in (name, "other0"))
    assert InterfaceList.parse(f"fe80::1%{name}").select([here, elsewhere]) == (here,)
    assert InterfaceList.parse("fe80::/10").select([here, elsewhere]) == (here, elsewhere)


def test_local_addresses_hold_the_loopback() -> None:
    assert LocalAddress("lo", ipaddress.ip_address("127.0.0.1")) in local_addresses()
