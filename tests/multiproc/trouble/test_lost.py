"""Ranks that are killed, late, stopped or gone, as real processes: the others say who, and soon."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., list[Any]]

TRANSPORTS = ["shm", "tcp", "mixed"]
NOTICE_S = 2.0  # to notice that a process is gone
GRACE_S = 1.0  # beyond a timeout
LOAD_S = 2.0  # what a machine that is busy with other things may add


@pytest.mark.parametrize("scenario", ["collective", "large", "barrier", "stream", "recv", "send", "started", "polled"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_rank_is_named_by_all_others(start: Start, transport: str, scenario: str) -> None:
    *others, last = start(scenario, transport)
    killed = last.signal(signal.SIGKILL)
    for member in others:
        error = member.event(1)
        assert error["event"] == "PeerLostError" and error["rank"] == 3, error
        assert error["at"] - killed < NOTICE_S + LOAD_S
        assert member.end() == 0, member.noise


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_died_while_nobody_called_is_noticed_by_the_next_call(start: Start, transport: str) -> None:
    *others, last = start("later", transport)
    last.signal(signal.SIGKILL)
    last.end()
    for member in others:
        member.tell()
    for member in others:
        error = member.event(1)
        assert error["event"] == "PeerLostError" and error["rank"] == 3, error
        assert member.end() == 0, member.noise


@pytest.mark.parametrize("scenario", ["collective", "large", "barrier", "recv", "started", "polled"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_does_not_come_is_named_when_the_time_is_over(start: Start, transport: str, scenario: str) -> None:
    *others, _ = start(scenario, transport, timeout_s=1.5)
    for member in others:
        ready, error = member.event(0), member.event(1)
        assert error["event"] == "CollectiveTimeoutError", error
        assert error["peer"] == 3 and "rank 3" in error["message"], error
        assert "after 1.5" in error["message"]
        assert error["at"] - ready["at"] < 1.5 + GRACE_S + LOAD_S
        if scenario in ("collective", "large", "barrier"):
            assert member.event(2)["event"] == "BrokenGroupError"
        assert member.end() == 0, member.noise


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_rank_is_late_not_lost(start: Start, transport: str) -> None:
    *others, last = start("collective", transport, timeout_s=1.5)
    last.signal(signal.SIGSTOP)
    for member in others:
        assert member.event(1)["event"] == "CollectiveTimeoutError"
    last.signal(signal.SIGCONT)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_leaves_while_others_wait_for_it_is_named(start: Start, transport: str) -> None:
    *others, last = start("leaves", transport)
    assert last.event(1)["event"] == "closed"
    for member in others:
        error = member.event(1)
        assert error["event"] == "PeerLostError" and error["rank"] == 3, error
        assert "left the group" in error["message"], error
        assert member.end() == 0, member.noise
    assert last.end() == 0, last.noise


@pytest.mark.parametrize("scenario", ["interrupt-run", "interrupt-wait", "interrupt-limit", "interrupt-recv"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ctrl_c_ends_a_blocked_call(start: Start, transport: str, scenario: str) -> None:
    first, *others = start(scenario, transport, size=2)
    interrupted = first.signal(signal.SIGINT)
    error = first.event(1)
    assert error["event"] == "KeyboardInterrupt", error
    assert error["at"] - interrupted < NOTICE_S + LOAD_S
    for member in others:
        error = member.event(1)
        assert error["event"] in ("BrokenGroupError", "PeerLostError"), error
        assert "rank 0" in error["message"], error
        assert member.end() == 0, member.noise
    assert first.end() == 0, first.noise
