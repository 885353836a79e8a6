"""The default world, and the shapes that are made with it."""

from __future__ import annotations

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, LinkKind
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import ETHERNET, MEMORY, PCIE, Prior, prior
from hccl_py.topology.shapes import full_mesh, many_hosts, ring, single_host, two_hosts
from hccl_py.topology.world import local_world


def test_one_host_has_no_network() -> None:
    topology, placement = local_world(["x", "x", "x"])
    assert topology.hosts() == ("x",)
    assert topology.nics() == ()
    assert placement.devices == ("x/cpu0", "x/cpu1", "x/cpu2")
    path = placement.path(0, 2, topology)
    assert topology.latency_s(path) == 2 * MEMORY.latency_s
    assert topology.bottleneck_Bps(path) == MEMORY.bandwidth_Bps


def test_rank_order_need_not_be_host_order() -> None:
    topology, placement = local_world(["b", "a", "b", "a", "c"])
    assert placement.devices == ("b/cpu0", "a/cpu0", "b/cpu1", "a/cpu1", "c/cpu0")
    assert placement.groups(topology) == ((0, 2), (1, 3), (4,))
    path = placement.path(0, 1, topology)
    assert max(link.kind for link in path) is LinkKind.ETHERNET
    assert topology.bottleneck_Bps(path) == ETHERNET.bandwidth_Bps
    assert topology.latency_s(path) == pytest.approx(2 * (MEMORY.latency_s + PCIE.latency_s + ETHERNET.latency_s))


def test_equal_ids_give_equal_values_on_all_ranks() -> None:
    assert local_world(["a", "b", "a"]) == local_world(["a", "b", "a"])
    assert local_world(["a", "b", "a"])[0].digest() != local_world(["a", "b", "b"])[0].digest()


def test_host_ids_may_be_any_text() -> None:
    topology, placement = local_world(["node 1|net:[4026]", "node-1-net--4026-", "", "network", "node 1|net:[4026]"])
    assert placement.groups(topology) == ((0, 4), (1,), (2,), (3,))
    assert len(set(topology.hosts())) == 4
    placement.check(topology)


def test_figures_and_device_can_be_given() -> None:
    topology, placement = local_world(
        ["a", "b"], device=DeviceKind.GPU, memory=Prior(5.0, 1.0), network=Prior(3.0, 2.0)
    )
    assert placement.devices == ("a/gpu0", "b/gpu0")
    assert topology.node("a/gpu0").device is DeviceKind.GPU
    assert topology.link("a/gpu0", "a").bandwidth_Bps == 5.0
    assert topology.link("network", "b/nic0").latency_s == 2.0


def test_a_world_needs_a_rank() -> None:
    with pytest.raises(TopologyError, match="at least one rank"):
        local_world([])


def test_priors_keep_the_order_of_the_kinds() -> None:
    assert prior(LinkKind.MEMORY).latency_s < prior(LinkKind.PCIE).latency_s < prior(LinkKind.ETHERNET).latency_s
    assert (
        prior(LinkKind.NVLINK).bandwidth_Bps
        > prior(LinkKind.PCIE).bandwidth_Bps
        > prior(LinkKind.ETHERNET).bandwidth_Bps
    )
    assert all(prior(kind).bandwidth_Bps > 0 for kind in LinkKind)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ring(size: int) -> None:
    topology, placement = ring(size)
    assert placement.size == size
    assert len(topology.links) == {1: 0, 2: 2}.get(size, 2 * size)
    placement.check(topology)
    if size > 2:
        assert all(len(placement.path(rank, (rank + 1) % size, topology)) == 1 for rank in range(size))
        assert len(placement.path(0, size // 2, topology)) == size // 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_full_mesh(size: int) -> None:
    topology, placement = full_mesh(size)
    assert len(topology.links) == size * (size - 1)
    assert all(len(placement.path(a, b, topology)) == 1 for a in range(size) for b in range(size) if a != b)


def test_single_host_and_two_hosts() -> None:
    topology, placement = single_host(4)
    assert placement.groups(topology) == ((0, 1, 2, 3),)
    topology, placement = two_hosts(2)
    assert placement.groups(topology) == ((0, 1), (2, 3))
    topology, placement = two_hosts(2, interleaved=True)
    assert placement.groups(topology) == ((0, 2), (1, 3))
    assert placement == Placement.round_robin(topology)


def test_many_hosts_may_be_uneven() -> None:
    topology, placement = many_hosts((2, 1, 3), interleaved=True)
    assert placement.groups(topology) == ((0, 3), (1,), (2, 4, 5))
    assert topology.hosts() == ("h0", "h1", "h2")


def test_shapes_need_ranks() -> None:
    for make in (lambda: ring(0), lambda: full_mesh(0), lambda: single_host(0), lambda: many_hosts(())):
        with pytest.raises(TopologyError, match=r"at least one|needed"):
            make()
