"""Ranks that are killed, late, stopped or gone, as real processes: the others say who, and soon. Always rank 2."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]

NOTICE_S = 2.0  # to notice that a process is gone
GRACE_S = 1.0  # beyond a timeout
LOAD_S = 2.0  # what a machine that is busy with other things may add


def pairs(shm: str, tcp: str, mixed: str) -> list[tuple[str, str]]:
    """Transports and scenarios; several processes each, hence not all with all."""
    return [(name, word) for name, words in (("shm", shm), ("tcp", tcp), ("mixed", mixed)) for word in words.split()]


@pytest.mark.parametrize(
    ("transport", "scenario"),
    pairs(
        "collective large stream recv send started polled",
        "collective large barrier stream recv polled",
        "stream started",
    ),
)
def test_a_killed_rank_is_named_by_all_others(start: Start, transport: str, scenario: str) -> None:
    members = start(scenario, transport)
    killed = members.signal(2, signal.SIGKILL)
    for rank in (0, 1):
        error = members.event(rank, 1)
        assert error["event"] == "PeerLostError" and error["lost"] == 2, error
        assert error["at"] - killed < NOTICE_S + LOAD_S
        if scenario != "stream":
            assert members.event(rank, 2)["event"] == "BrokenGroupError"
    members.ended_well(0, 1)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_died_while_nobody_called_is_noticed_by_the_next_call(start: Start, transport: str) -> None:
    members = start("later", transport)
    members.signal(2, signal.SIGKILL)
    assert members.event(2, 1) == {**members.event(2, 1), "event": "exit", "status": -signal.SIGKILL}
    for rank in (0, 1):
        members.signal(rank, signal.SIGUSR1)
    for rank in (0, 1):
        error = members.event(rank, 1)
        assert error["event"] == "PeerLostError" and error["lost"] == 2, error
    members.ended_well(0, 1)


@pytest.mark.parametrize(
    ("transport", "scenario"), pairs("collective large recv polled", "collective barrier started", "recv")
)
def test_a_rank_that_does_not_come_is_named_when_the_time_is_over(start: Start, transport: str, scenario: str) -> None:
    members = start(scenario, transport, timeout_s=1.5)
    for rank in (0, 1):
        ready, error = members.event(rank, 0), members.event(rank, 1)
        assert error["event"] == "CollectiveTimeoutError", error
        assert error["late"] == 2 and "rank 2" in error["message"] and "after 1.5" in error["message"], error
        assert error["at"] - ready["at"] < 1.5 + GRACE_S + LOAD_S
        assert members.event(rank, 2)["event"] == "BrokenGroupError"
    members.ended_well(0, 1)


def test_between_hosts_of_several_ranks_each_names_whom_it_waits_for(start: Start) -> None:
    """Who has not come is known on its host only; elsewhere it is seen that somebody waits for somebody."""
    members = start("collective", "mixed", size=4, timeout_s=1.5)
    for rank in (0, 1, 2):
        error = members.event(rank, 1)
        assert error["event"] == "CollectiveTimeoutError" and "#2" in error["message"], error
        assert error["late"] >= 0 and f"rank {error['late']}" in error["message"], error
        assert error["at"] - members.event(rank, 0)["at"] < 1.5 + GRACE_S + LOAD_S


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_rank_is_late_not_lost(start: Start, transport: str) -> None:
    members = start("collective", transport, timeout_s=1.5)
    members.signal(2, signal.SIGSTOP)
    for rank in (0, 1):
        assert members.event(rank, 1)["event"] == "CollectiveTimeoutError"
    members.signal(2, signal.SIGCONT)


@pytest.mark.parametrize("transport", ["shm", "tcp", "mixed"])
def test_a_rank_that_leaves_while_others_wait_for_it_is_named(start: Start, transport: str) -> None:
    members = start("leaves", transport)
    assert members.event(2, 1)["event"] == "closed"
    for rank in (0, 1):
        error = members.event(rank, 1)
        assert error["event"] == "PeerLostError" and error["lost"] == 2, error
        assert "left the group" in error["message"] or "was closed" in error["message"], error
    members.ended_well(0, 1, 2)


@pytest.mark.parametrize(
    ("transport", "scenario"),
    pairs("interrupt-run interrupt-wait interrupt-limit interrupt-recv", "interrupt-run interrupt-limit", ""),
)
def test_ctrl_c_ends_a_blocked_call(start: Start, transport: str, scenario: str) -> None:
    members = start(scenario, transport, size=2)
    assert members.event(0, 1)["event"] == "calling"
    members.wait_asleep(0)
    interrupted = members.signal(0, signal.SIGINT)
    error = members.event(0, 2)
    assert error["event"] == "KeyboardInterrupt", error
    assert error["at"] - interrupted < NOTICE_S + LOAD_S
    error = members.event(1, 1)
    assert error["event"] in ("BrokenGroupError", "PeerLostError") and "rank 0" in error["message"], error
    members.ended_well(0, 1)
