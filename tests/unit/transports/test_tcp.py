"""Transport tcp: its options, and the verdict for hosts with and without a fitting address."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from hccl_py.core.errors import ConfigError, TransportUnavailableError
from hccl_py.transports import tcp
from hccl_py.transports.base import Availability
from hccl_py.transports.interfaces import LocalAddress
from hccl_py.transports.tcp import TcpConfig, judge


def host(*addresses: tuple[str, str]) -> tuple[LocalAddress, ...]:
    return tuple(LocalAddress(name, ipaddress.ip_address(ip)) for name, ip in addresses)


HOST = host(("lo", "127.0.0.1"), ("lo", "::1"), ("eth0", "10.0.0.1"), ("eth1", "10.0.1.1"), ("eth1", "fd00::1"))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, Availability(True, "at 10.0.0.1, 10.0.1.1, fd00::1")),
        ({"tcp_interfaces": "eth0"}, Availability(True, "at 10.0.0.1")),
        ({"tcp_family": "6"}, Availability(True, "at fd00::1")),
        ({"tcp_interfaces": "lo"}, Availability(True, "ranks of this host only, at 127.0.0.1")),
        ({"tcp_interfaces": "eth0", "tcp_family": "6"}, Availability(False, "no IPv6 address")),
    ],
)
def test_judge(options: dict[str, Any], wanted: Availability) -> None:
    assert judge(TcpConfig(**options), HOST) == wanted


def test_judge_explains_a_list_that_matches_nothing() -> None:
    found = judge(TcpConfig(tcp_interfaces="etho"), HOST)
    assert not found.ok
    assert "eth0 (10.0.0.1), eth1 (10.0.1.1, fd00::1)" in found.reason


def test_judge_of_a_host_without_network() -> None:
    assert judge(TcpConfig(), ()) == Availability(False, "no address")


def test_available_here_over_loopback() -> None:
    found = tcp.SPEC.availability(TcpConfig(tcp_interfaces="127.0.0.1"))
    assert found == Availability(True, "ranks of this host only, at 127.0.0.1")


def test_unavailable_where_interfaces_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[LocalAddress, ...]:
        raise TransportUnavailableError("tcp: no permission", "no permission")

    monkeypatch.setattr(tcp, "local_addresses", refuse)
    assert tcp.SPEC.availability() == Availability(False, "no permission")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tcp_connections": 0}, "tcp_connections is 0; it may be 1 to 64"),
        ({"tcp_connections": 65}, "tcp_connections is 65"),
        ({"tcp_port_range": (5, 4)}, "tcp_port_range is 5-4"),
        ({"tcp_port_range": (0, 4)}, "tcp_port_range is 0-4"),
        ({"tcp_port_range": (4, 65536)}, "tcp_port_range is 4-65536"),
        ({"tcp_family": "ipv4"}, "tcp_family is 'ipv4'; it may be auto, 4 or 6"),
        ({"tcp_interfaces": "eth0,,eth1"}, "empty item"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TcpConfig(**options)
    assert words in str(caught.value)


def test_keywords() -> None:
    assert TcpConfig(tcp_port_range=(5000, 5010)).keywords() == {
        "tcp_interfaces": "",
        "tcp_port_range": (5000, 5010),
        "tcp_connections": 2,
        "tcp_family": "auto",
        "tcp_congestion": "",
    }
