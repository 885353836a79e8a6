"""Placement: rank order is not host order."""

from __future__ import annotations

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.shapes import many_hosts, two_hosts


def test_groups_are_in_order_of_their_lowest_rank() -> None:
    topology, _ = many_hosts((1, 2, 2))
    placement = Placement(("h2/cpu1", "h1/cpu0", "h2/cpu0", "h0/cpu0", "h1/cpu1"))
    assert placement.groups(topology) == ((0, 2), (1, 4), (3,))
    assert [placement.host(rank, topology) for rank in range(5)] == ["h2", "h1", "h2", "h0", "h1"]


def test_hosts_without_ranks_are_no_group() -> None:
    topology, placement = two_hosts(2)
    assert placement.head(2).groups(topology) == ((0, 1),)


def test_by_host_and_round_robin() -> None:
    topology, _ = many_hosts((1, 3))
    assert Placement.by_host(topology).devices == ("h0/cpu0", "h1/cpu0", "h1/cpu1", "h1/cpu2")
    assert Placement.round_robin(topology).devices == ("h0/cpu0", "h1/cpu0", "h1/cpu1", "h1/cpu2")
    topology, _ = two_hosts(2)
    assert Placement.round_robin(topology).devices == ("h0/cpu0", "h1/cpu0", "h0/cpu1", "h1/cpu1")
    assert Placement.round_robin(topology).groups(topology) == ((0, 2), (1, 3))


def test_accelerators_are_taken_before_cpus() -> None:
    nodes = (
        Node("h", NodeKind.HOST),
        Node("h/cpu0", NodeKind.DEVICE, device=DeviceKind.CPU),
        Node("h/gpu0", NodeKind.DEVICE, device=DeviceKind.GPU),
    )
    assert Placement.by_host(Topology(nodes)).devices == ("h/gpu0",)
    assert Placement.by_host(Topology(nodes[:2])).devices == ("h/cpu0",)
    with pytest.raises(TopologyError, match="no device"):
        Placement.by_host(Topology(nodes[:1]))


def test_lookups() -> None:
    placement = Placement(("a/x", "b/y"))
    assert placement.size == 2
    assert placement.device(1) == "b/y"
    assert placement.rank_of("b/y") == 1
    assert placement == Placement(["a/x", "b/y"])  # type: ignore[arg-type]
    assert hash(placement) == hash(Placement(("a/x", "b/y")))


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(TopologyError, match=f"no rank {rank}"):
        Placement(("a/x", "b/y")).device(rank)


def test_bad_placements_are_refused() -> None:
    with pytest.raises(TopologyError, match="at least one rank"):
        Placement(())
    with pytest.raises(TopologyError, match="ranks 0 and 2 are both placed on 'a/x'"):
        Placement(("a/x", "b/y", "a/x"))
    with pytest.raises(TopologyError, match="3 ranks wanted"):
        Placement(("a/x", "b/y")).head(3)
    with pytest.raises(TopologyError, match="no rank is placed on 'a/z'"):
        Placement(("a/x", "b/y")).rank_of("a/z")


def test_check_wants_devices_that_reach_each_other() -> None:
    topology, placement = two_hosts(1)
    placement.check(topology)
    with pytest.raises(TopologyError, match="rank 1: 'h1/nic0' is a nic"):
        Placement(("h0/cpu0", "h1/nic0")).check(topology)
    with pytest.raises(TopologyError, match="no node 'h2/cpu0'"):
        Placement(("h2/cpu0",)).check(topology)
    with pytest.raises(TopologyError, match="no path from 'h0/cpu0' to 'h1/cpu0'"):
        placement.check(Topology(topology.nodes))
