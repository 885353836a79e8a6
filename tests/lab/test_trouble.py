"""Two hosts when something goes wrong: every rank gets one error that says what, soon, and none waits for ever."""

from __future__ import annotations

import os
import signal
import time

import pytest
from lab_nodes import INTERLEAVED, TWO_BY_TWO, Ending, Nodes

PROMPT_S = 5.0  # the machine may be busy; an error that takes its time out takes much longer


def kinds_of(errors: list[Ending]) -> set[str]:
    return {error.kinds[0] for error in errors}


@pytest.mark.parametrize("how", ["count", "dtype", "op", "collective"])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_ranks_of_different_hosts_disagree(nodes: Nodes, how: str, strict: str) -> None:
    """Rank 2 runs another collective, or the same with other arguments: all ranks learn of it."""
    start_s = time.monotonic()
    environ = {"HCCL_PY_STRICT": strict}
    errors = nodes.start("different_calls", TWO_BY_TWO, environ=environ, odd=2, how=how).errors()
    assert len(errors) == 4
    assert kinds_of(errors) <= {"DesyncError", "BrokenGroupError"}, errors
    assert "DesyncError" in kinds_of(errors)
    for error in errors:
        assert "disagree" in error.text or "runs" in error.text, error.text
    assert max(error.at_s for error in errors) - start_s < 20, "that was a time-out"


def test_ranks_that_agree_do_not_raise(nodes: Nodes) -> None:
    """The same calls without an odd one: what the check of contracts lets through."""
    assert nodes.run("different_calls", odd=-1, how="count") == [None] * 4


@pytest.mark.parametrize("hosts", [TWO_BY_TWO, INTERLEAVED], ids=["0011", "0101"])
def test_a_killed_rank_is_missed_by_all(nodes: Nodes, hosts: tuple[int, ...]) -> None:
    """kill -9, in the middle of a transfer: those of its host and those of the other one know at once, and know who."""
    launch = nodes.start("until_it_breaks", hosts, timeout_s=60.0, size_bytes=4 << 20)
    victim = launch.processes("working")[3]
    os.kill(victim, signal.SIGKILL)
    killed_s = time.monotonic()
    errors = launch.errors()
    assert len(errors) == 3
    assert kinds_of(errors) == {"PeerLostError"}, errors
    assert [error.has["rank"] for error in errors] == [3] * 3, errors
    assert max(error.at_s for error in errors) - killed_s < PROMPT_S
    assert launch.told("still broken") == {0, 1, 2}


@pytest.mark.parametrize("hosts", [(0, 1), TWO_BY_TWO], ids=["01", "0011"])
def test_a_cut_link_is_a_time_out_that_names_a_peer(nodes: Nodes, hosts: tuple[int, ...]) -> None:
    """No packet says that a link is cut: only time does. The peer is the one waited for, on either host."""
    launch = nodes.start("until_it_breaks", hosts, timeout_s=4.0, size_bytes=4 << 20)
    launch.processes("working")
    nodes.lab.cut(1)
    cut_s = time.monotonic()
    errors = launch.errors()
    assert len(errors) == len(hosts)
    assert kinds_of(errors) == {"CollectiveTimeoutError"}, errors
    for error in errors:
        assert error.has["peer"] in range(len(hosts)), error
        assert f"waiting for rank {error.has['peer']}" in error.text, error.text
        assert 3.0 < error.at_s - cut_s < 4.0 + PROMPT_S
    if hosts == (0, 1):
        assert [error.has["peer"] for error in errors] == [1, 0]
    assert launch.told("still broken") == set(range(len(hosts)))


def test_a_link_that_comes_back_in_time_does_no_harm(nodes: Nodes) -> None:
    """What the time-out is there for: shorter cuts are TCP's to repair."""
    launch = nodes.start("hear_and_reduce", timeout_s=25.0, size_bytes=4 << 20)
    launch.processes("working")
    nodes.lab.cut(1)
    nodes.lab.heal(1)
    assert launch.values() == [True] * 4


def test_a_rank_that_leaves_in_order_is_missed_only_where_it_is_needed(nodes: Nodes) -> None:
    said = nodes.run("one_leaves", leaver=3, pair=[0, 2])
    assert said == ["misses the one that left", "was not asked", "misses the one that left", "left"]
