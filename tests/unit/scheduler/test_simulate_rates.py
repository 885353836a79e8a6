"""Max-min fair rates: known cases, and what defines them, for random flows with ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.scheduler.simulate_rates import MaxMin, expand


def fair(paths: list[list[int]], capacity_Bps: list[float]) -> MaxMin:
    """A lane for each path."""
    pairs = [(link, lane, float(path.count(link))) for lane, path in enumerate(paths) for link in set(path)]
    links, lanes, weights = (np.array(column) for column in zip(*pairs, strict=True)) if pairs else ([], [], [])
    return MaxMin(np.array(links), np.array(lanes), np.array(weights), np.array(capacity_Bps), len(paths))


def test_the_flow_over_two_links_gets_what_the_narrower_leaves_it() -> None:
    rates = fair([[0], [1], [0, 1]], [10.0, 4.0]).rates(np.array([0, 1, 2]))
    assert rates.tolist() == [8.0, 2.0, 2.0]


def test_equal_flows_of_a_lane_share() -> None:
    assert fair([[0]], [9.0]).rates(np.array([0, 0, 0])).tolist() == [3.0, 3.0, 3.0]


def test_a_link_that_is_crossed_twice_counts_twice() -> None:
    assert fair([[0, 0], [0]], [9.0]).rates(np.array([0, 1])).tolist() == [3.0, 3.0]


def test_a_follower_leaves_to_others_what_its_leader_does_not_let_it_use() -> None:
    # the leader has 2 by its own link; the follower would have 5 of the link that it shares
    shared = fair([[0], [1], [1]], [2.0, 10.0])
    caps = np.full(3, np.inf)
    rates = shared.rates(np.array([0, 1, 2]), np.array([1]), np.array([0]), caps)
    assert rates.tolist() == [2.0, 2.0, 8.0]
    caps[2] = 1.0
    assert shared.rates(np.array([0, 1, 2]), np.array([1]), np.array([0]), caps).tolist() == [2.0, 2.0, 1.0]


def test_flows_without_a_link_run_freely() -> None:
    assert fair([[], [0]], [1.0]).rates(np.array([0, 1]))[0] >= 1e18


def test_expand() -> None:
    assert expand(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]
    assert expand(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_rates_are_max_min_fair(data: st.DataObject) -> None:
    """No link is overfull, no follower is faster than its leader, and no flow could be faster without taking from one
    that is not faster than itself."""
    num_links = data.draw(st.integers(1, 5))
    capacity = data.draw(st.lists(st.integers(1, 20).map(float), min_size=num_links, max_size=num_links))
    path = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=3, unique=True)
    paths = data.draw(st.lists(path, min_size=1, max_size=6))
    lanes = data.draw(st.lists(st.integers(0, len(paths) - 1), min_size=1, max_size=8))
    flow = st.integers(0, len(lanes) - 1)
    ties = data.draw(st.lists(st.tuples(flow, flow).filter(lambda pair: pair[0] != pair[1]), max_size=4))
    caps = np.array(data.draw(st.lists(st.sampled_from([np.inf, 0.0, 2.0]), min_size=len(lanes), max_size=len(lanes))))
    followers, leaders = np.array(ties, dtype=np.int64).reshape(-1, 2).T
    rates = fair(paths, capacity).rates(np.array(lanes), followers, leaders, caps)
    used = [
        sum(rate for rate, lane in zip(rates, lanes, strict=True) if link in paths[lane]) for link in range(num_links)
    ]
    assert all(u <= c * (1 + 1e-6) for u, c in zip(used, capacity, strict=True))
    assert all(rates[f] <= rates[a] * (1 + 1e-6) for f, a in ties)

    def held(flow: int, seen: frozenset[int]) -> bool:
        """A cap, a full link on which nobody is faster, or a leader that is held itself."""
        if rates[flow] >= caps[flow] * (1 - 1e-6):
            return True
        for link in paths[lanes[flow]]:
            fastest = max(rate for rate, lane in zip(rates, lanes, strict=True) if link in paths[lane])
            if used[link] >= capacity[link] * (1 - 1e-6) and rates[flow] >= fastest * (1 - 1e-6):
                return True
        equal = [a for f, a in ties if f == flow and rates[f] >= rates[a] * (1 - 1e-6) and a not in seen]
        return any(held(a, seen | {a}) for a in equal)

    assert all(held(flow, frozenset({flow})) for flow in range(len(lanes)))
