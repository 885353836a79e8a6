"""Which network tcp takes: by name, by address range, of both families; and what is said where there is no such one."""

from __future__ import annotations

import socket

import pytest
from lab_nodes import Nodes


def addresses(nodes: Nodes, network: str) -> list[set[str]]:
    """The addresses that the connections of each rank have, with tcp kept to ``network``."""
    found = nodes.run("transports", environ={"HCCL_PY_INTERFACES": network})
    assert [rank["transports"].count("tcp") for rank in found] == [2] * 4
    return [set(rank["addresses"]) for rank in found]


@pytest.mark.parametrize(
    ("network", "first", "second"),
    [
        ("10.77.0.0/24", "10.77.0.1", "10.77.0.2"),
        ("10.78.0.0/24", "10.78.0.1", "10.78.0.2"),
        ("fd78::/64", "fd78::1", "fd78::2"),
    ],
)
def test_a_network_is_chosen(nodes: Nodes, network: str, first: str, second: str) -> None:
    if ":" in network and not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    assert addresses(nodes, network) == [{first}, {first}, {second}, {second}]


def test_an_interface_is_chosen_by_name(nodes: Nodes) -> None:
    known = {f"{network}{host}" for network in ("10.77.0.", "10.78.0.", "fd78::") for host in (1, 2)}
    found = addresses(nodes, "eth0")
    assert all(found) and set.union(*found) <= known


@pytest.mark.parametrize("wrong", ["eth7", "10.99.0.0/16"])
def test_no_such_interface(nodes: Nodes, wrong: str) -> None:
    """Each rank's own error lists what its host has."""
    errors = nodes.start("transports", environ={"HCCL_PY_INTERFACES": wrong}).errors()
    assert [error.kinds[0] for error in errors] == ["ConfigError"] * 4
    for rank, error in enumerate(errors):
        assert wrong in error.text and "eth0" in error.text and f"10.77.0.{rank // 2 + 1}" in error.text, error.text


def test_no_such_interface_on_one_host(nodes: Nodes) -> None:
    """The ranks of the other host are not left waiting: they say which rank is in trouble, and why."""
    wrong = {"HCCL_PY_INTERFACES": "eth7"}
    errors = nodes.start("transports", environ_of={2: wrong, 3: wrong}).errors()
    assert [error.kinds[0] for error in errors] == ["ConfigError"] * 4
    for error in errors:
        assert "eth7" in error.text and "10.77.0.2" in error.text, error.text
    for error in errors[:2]:
        assert "rank 2" in error.text, error.text
