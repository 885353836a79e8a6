"""Estimates: what a link does, told apart from a rank that is late or starved, and from a single odd sample."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_network import DECLARED, PLACEMENT, WORLD, GBIT_Bps, World, policy, star

from hccl_py.scheduler.estimate import Estimator
from hccl_py.scheduler.measurement import Measurement


def estimator() -> Estimator:
    return Estimator(DECLARED, PLACEMENT)


def measured(world: World) -> list[Measurement]:
    return world.measure(policy())


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_two_probes_find_the_link_that_is_throttled(rank: int, share: float) -> None:
    world, found = World(), estimator()
    assert found.see(world.probe(0)) == ()
    world.rates_Bps[rank] = share * GBIT_Bps
    assert found.see(world.probe(1)) == () and found.doubtful
    ends = {(f"h{rank}/eth0", "star"), ("star", f"h{rank}/eth0")}
    assert set(found.see(world.probe(2))) == ends
    assert found.topology() == star({rank: share * GBIT_Bps})
    for one in found.estimates(0):
        right = share * GBIT_Bps if (one.src, one.dst) in ends else GBIT_Bps
        assert one.bandwidth_Bps == pytest.approx(right, rel=0.02) and one.since_steps == 0
    del world.rates_Bps[rank]
    assert found.see(world.probe(3)) == () and set(found.see(world.probe(4))) == ends
    assert found.topology() == DECLARED


def test_one_odd_probe_is_no_change() -> None:
    world, found = World(), estimator()
    for number in range(6):
        world.rates_Bps = {2: 0.2 * GBIT_Bps} if number % 2 else {}
        assert found.see(world.probe(number)) == ()
    assert found.topology() == DECLARED


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.9, 1.0), min_size=5, max_size=30))
def test_estimates_follow_what_drifts_and_their_uncertainty_shrinks(shares: list[float]) -> None:
    world, found = World(), estimator()
    before = found.estimates(0)[0].sigma
    for number, share in enumerate(shares):
        world.rates_Bps = dict.fromkeys(range(WORLD), share * GBIT_Bps)
        assert found.see(world.probe(number)) == ()
    one = found.estimates(0)[0]
    assert one.sigma < before
    assert one.sigma < found.estimates(10_000)[0].sigma  # what was seen long ago is less certain
    assert math.isclose(one.bandwidth_Bps, GBIT_Bps, rel_tol=0.1)


def test_flows_that_become_slow_or_fast_are_suspicious() -> None:
    world, found = World(), estimator()
    assert found.suspicious(measured(world)) == ""
    world.rates_Bps[1] = 0.2 * GBIT_Bps
    assert "rank 0 to 1" in found.suspicious(measured(world))
    found.forget_flows()
    assert found.suspicious(measured(world)) == ""
    world.rates_Bps.clear()
    assert "rank 0 to 1" in found.suspicious(measured(world))


def test_a_rank_that_is_late_or_starved_does_not_make_links_suspicious() -> None:
    world, found = World(), estimator()
    assert found.suspicious(measured(world)) == ""
    world.late_s[2] = 1.0
    world.starved.add(3)
    assert found.suspicious(measured(world)) == ""
