"""What a cluster file becomes in a lab, and what is refused; needs no root."""

from __future__ import annotations

from pathlib import Path

import pytest

from hccl_py.core.errors import ConfigError, TopologyError
from hccl_py.lab.blueprint import Blueprint, draw_up
from hccl_py.topology.config import load_cluster, parse_cluster

CONFIGS = Path(__file__).parents[2] / "cluster_configs"
HOST = """
version: 1
host_types:
  one:
    devices: {cpu0: {kind: cpu}}
    nics: {eth0: , eth1: }
    links:
      - {between: [cpu0, host], kind: memory, bandwidth: 12GB/s, latency: 1us}
      - {between: ["eth*", host], kind: memory, bandwidth: 12GB/s, latency: 1us}
hosts:
  h[0-2]: {type: one}
"""
WIRE = "{{between: [{}, {}], kind: ethernet, bandwidth: 1Gbit/s, latency: 1us}}"


def cluster(switches: str, *wires: tuple[str, str], more: str = "") -> Blueprint:
    lines = "".join(f"  - {WIRE.format(*wire)}\n" for wire in wires)
    return draw_up(parse_cluster(f"{HOST}switches: {{{switches}}}\nlinks:\n{lines}{more}"))


def test_two_sites() -> None:
    made = draw_up(load_cluster(CONFIGS / "lab_two_sites.yaml"))
    assert made.hosts == ("east0", "east1", "west0", "west1")
    assert made.ranks == ("west0", "east0", "west1", "east1")
    assert [switch for switch, _ in made.bridges] == ["east", "west"]
    between = made.wires[made.wire("west", "east")]
    assert (between.a_to_b_bps, between.b_to_a_bps) == (200_000_000, 200_000_000)
    assert made.wires[made.wire("west0", "west")].a_to_b_bps == 1_000_000_000
    assert made.address("west1") == "10.77.0.4"


def test_rates_by_direction() -> None:
    slow = "  - {from: h0/eth0, to: a, kind: ethernet, bandwidth: 1Gbit/s, latency: 1us}\n"
    slow += "  - {from: a, to: h0/eth0, kind: ethernet, bandwidth: 10Mbit/s, latency: 1us}\n"
    made = cluster("a: ", ("h1/eth0", "a"), ("h2/eth0", "a"), more=slow)
    wire = made.wires[made.wire("h0", "a")]
    rates = {wire.a.node: wire.a_to_b_bps, wire.b.node: wire.b_to_a_bps}
    assert rates == {"h0/eth0": 1_000_000_000, "a": 10_000_000}


def test_each_network_has_its_own_addresses() -> None:
    both = [(f"h{host}/eth{nic}", "ab"[nic]) for host in range(3) for nic in range(2)]
    made = cluster("a: , b: ", *both)
    assert [port.address for port in made.ports("h1")] == ["10.77.0.2/24", "10.77.1.2/24"]
    with pytest.raises(ConfigError, match="two NICs in one network"):
        cluster("a: ", *((end, "a") for end, _ in both))


def test_a_loop_of_switches_is_refused() -> None:
    wires = [("h0/eth0", "a"), ("h1/eth0", "b"), ("h2/eth0", "c"), ("a", "b"), ("b", "c")]
    assert len(cluster("a: , b: , c: ", *wires).bridges) == 3
    with pytest.raises(ConfigError, match="closes a loop"):
        cluster("a: , b: , c: ", *wires, ("a", "c"))


def test_what_is_not_joined_is_refused() -> None:
    with pytest.raises((ConfigError, TopologyError), match=r"no path|no network"):
        cluster("a: , b: ", ("h0/eth0", "a"), ("h1/eth0", "a"), ("h2/eth0", "b"))


@pytest.mark.parametrize(("one", "other"), [("h0", "h1"), ("h0", "nowhere"), ("h9", "a")])
def test_links_are_found_by_their_ends(one: str, other: str) -> None:
    made = cluster("a: ", *((f"h{host}/eth0", "a") for host in range(3)))
    assert made.wire("a", "h2/eth0") == made.wire("h2", "a")
    with pytest.raises(ConfigError, match=r"no link between .*name one of: "):
        made.wire(one, other)


def test_a_direct_cable() -> None:
    made = cluster("a: ", *((f"h{host}/eth0", "a") for host in range(3)), ("h0/eth1", "h1/eth1"))
    wire = made.wires[made.wire("h0/eth1", "h1/eth1")]
    assert {wire.a.address, wire.b.address} == {"10.77.1.1/24", "10.77.1.2/24"}
