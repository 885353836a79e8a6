"""Rehearse: large blocks are served by what the simulator finds fastest; untangle: trees with pairs of their own."""

from __future__ import annotations

from collections import Counter
from math import inf
from pathlib import Path

import pytest

from hccl_py.core.types import Collective
from hccl_py.scheduler.bounds import lower_bound
from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.packing import busiest_s, pack
from hccl_py.scheduler.rehearse import Candidate, simulated
from hccl_py.scheduler.routes import Routes
from hccl_py.scheduler.select import build_table, candidates
from hccl_py.scheduler.simulate import simulate
from hccl_py.scheduler.synthesis import packing_for
from hccl_py.scheduler.untangle import _messages, untangled
from hccl_py.topology.config import ClusterConfig, load_cluster

C = Collective
MiB, GiB = 1 << 20, 1 << 30
CONFIGS = Path(__file__).parents[3] / "cluster_configs"


@pytest.fixture(scope="module")
def rails() -> ClusterConfig:
    return load_cluster(CONFIGS / "two_nodes_8gpu_ib.yaml")


def test_large_sizes_are_simulated_and_slow_plans_left_out(rails: ClusterConfig) -> None:
    model = CostModel(rails.topology, rails.placement)
    sizes = [64 * 1024, 4 * MiB, 64 * MiB, GiB]
    groups = rails.placement.groups(rails.topology)
    found = [
        candidates(C.ALL_REDUCE, model, groups, sizes, forced=name, declared=True)[0]
        for name in ("direct", "hierarchical")
    ]
    direct, hierarchical = simulated(found, model, sizes)
    assert hierarchical.curve_s[0] == found[1].curve_s[0]  # small: the model's
    exact = [simulate(found[1].plan, rails.topology, rails.placement, size).seconds for size in sizes[1:]]
    assert hierarchical.curve_s[1:] == pytest.approx(exact)
    assert direct.curve_s[1:] == (inf, inf, inf)
    assert simulated(found[:1], model, sizes) == found[:1]


def test_between_simulated_sizes_the_share_is_interpolated(rails: ClusterConfig) -> None:
    model = CostModel(rails.topology, rails.placement)
    groups = rails.placement.groups(rails.topology)
    (plan,) = (c.plan for c in candidates(C.ALL_REDUCE, model, groups, [MiB], forced="hierarchical"))
    sizes = [4 * MiB, 16 * MiB, 64 * MiB, GiB]
    flat = Candidate(plan, (1.0,) * 4)
    first, _ = simulated([flat, Candidate(plan, (10.0,) * 4)], model, sizes)
    assert first.curve_s[1] == pytest.approx((first.curve_s[0] + first.curve_s[2]) / 2)


def test_all_reduce_over_rails_is_within_five_percent_of_the_bound(rails: ClusterConfig) -> None:
    table = build_table(C.ALL_REDUCE, rails.topology, rails.placement, declared=True)
    row = table.choose(GiB)
    bound = lower_bound(rails.topology, rails.placement, C.ALL_REDUCE, GiB)
    seconds = simulate(row.plan, rails.topology, rails.placement, GiB).seconds
    assert (
        row.plan.algorithm == "rails" and row.predicted_s == pytest.approx(seconds, rel=0.01)
    ) or row.upto_bytes > GiB
    assert bound.seconds <= seconds <= 1.05 * bound.seconds


def test_a_bound_that_is_known_ends_the_packing_early(rails: ClusterConfig) -> None:
    routes = Routes(rails.topology, rails.placement)
    packing = packing_for(rails.topology, rails.placement, C.ALL_REDUCE, 0)
    bound = lower_bound(rails.topology, rails.placement, C.ALL_REDUCE, 1 << 40, trees=False)
    assert packing.seconds_per_byte <= bound.seconds / (1 << 40) * 1.005
    alone = pack(routes, C.ALL_REDUCE, max_rounds=1, known_bound_s=packing.seconds_per_byte)
    assert alone.bound_s == pytest.approx(packing.seconds_per_byte, rel=0.01)


def test_trees_get_pairs_of_ranks_of_their_own() -> None:
    cluster = load_cluster(CONFIGS / "wan_three_sites.yaml")
    topology, placement = cluster.topology, cluster.placement
    routes, packing = Routes(topology, placement), packing_for(topology, placement, C.ALL_REDUCE, 0)
    groups = placement.groups(topology)
    apart = untangled(routes, packing.schemes, packing.shares, groups, keep_roots=False)
    between = [Counter(m for s in schemes for m in _messages(s)) for schemes in (packing.schemes, apart)]
    assert max(between[0].values()) > max(between[1].values()) == 1
    before, after = (busiest_s(routes, schemes, packing.shares) for schemes in (packing.schemes, apart))
    assert after <= before * 1.001
    kept = untangled(routes, packing.schemes, packing.shares, groups, keep_roots=True)
    assert [scheme.root for scheme in kept] == [scheme.root for scheme in packing.schemes]
