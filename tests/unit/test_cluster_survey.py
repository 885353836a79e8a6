"""Measuring pairs of ranks: over real shared memory between threads, and with a clock that the test turns."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.cluster_survey import survey_cluster, wanted_pairs
from hccl_py.core.env import Env
from hccl_py.topology.config import parse_cluster
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.measured import Assembled


def everywhere(envs: list[Env]) -> list[Assembled]:
    """What each rank learns."""
    meeting = ThreadBootstrap.Meeting(len(envs), 60.0)
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        found[rank] = survey_cluster(ThreadBootstrap(meeting, rank), envs[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(len(envs))]


def test_pairs_that_matter() -> None:
    assert wanted_pairs([(0, 1, 2)]) == [(0, 1), (1, 0), (0, 2), (2, 0)]
    assert wanted_pairs([(0, 2), (1, 3)]) == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 3), (3, 1)]
    assert wanted_pairs([(0,)]) == []


@pytest.mark.timeout(120)
def test_ranks_agree_on_one_file_with_measured_links() -> None:
    """Four ranks, two on each of two hosts (by their host ids), ranks in turns; between hosts by TCP."""
    envs = [Env(host_id=f"h{rank % 2}", interfaces="lo") for rank in range(4)]
    found = everywhere(envs)
    assert all(one == found[0] for one in found)
    topology, placement = found[0].topology, found[0].placement
    assert placement.groups(topology) == ((0, 2), (1, 3))
    first, second = topology.hosts()
    assert second == f"{first}-2"  # one machine twice
    config = parse_cluster(dump_topology(topology, placement))
    assert (config.topology, config.placement) == (topology, placement)
    outside = placement.path(0, 1, topology)
    assert 1e6 < topology.bottleneck_Bps(outside) < 1e12
    assert 1e-6 < topology.latency_s(outside) < 1
    assert "measured" in found[0].notes[0]
