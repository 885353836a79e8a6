"""Starts ranks as plain processes that can be killed one by one, and reads what they say."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hccl_py.core.env import child_environ
from hccl_py.launch import Job

WORKERS = Path(__file__).parent / "workers"
LIMIT_S = 60.0

Event = dict[str, Any]


class Members:
    """The ranks of one group."""

    def __init__(self, job: Job, size: int) -> None:
        self._job = job
        self._events: list[list[Event]] = [[] for _ in range(size)]
        self._noise: list[str] = []
        self._over = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._job.lines():
            with self._changed:
                if line.startswith("{"):
                    event = json.loads(line)
                    self._events[event["rank"]].append(event)
                else:
                    self._noise.append(line)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def event(self, rank: int, number: int) -> Event:
        """What the rank said as its ``number``-th, waited for."""
        events = self._events[rank]
        with self._changed:
            self._changed.wait_for(lambda: len(events) > number or self._over, timeout=LIMIT_S)
        assert len(events) > number, f"rank {rank} said {events}, no event {number}:\n" + "\n".join(self._noise)
        return events[number]

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to the rank; return the time before."""
        pid, now = self.event(rank, 0)["pid"], time.monotonic()
        os.kill(pid, number)
        return now

    def wait_asleep(self, rank: int) -> None:
        """Return once the rank's main thread sleeps: it is blocked in its call."""
        stat, pause, seen, until = (
            Path(f"/proc/{self.event(rank, 0)['pid']}/stat"),
            threading.Event(),
            0,
            time.monotonic() + LIMIT_S,
        )
        while seen < 5 and time.monotonic() < until:
            seen = seen + 1 if stat.read_text().rpartition(")")[2].split()[0] == "S" else 0
            pause.wait(0.02)
        assert seen == 5

    def ended_well(self, *ranks: int) -> None:
        """Assert that these ranks end with status 0."""
        for rank in ranks:
            number = 0
            while self.event(rank, number)["event"] != "exit":
                number += 1
            assert self._events[rank][-1]["status"] == 0, "\n".join(self._noise)


Start = Callable[..., Members]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(scenario, transport, size=3, timeout_s=30)``: connected ranks of workers/member.py, all ready."""
    jobs: list[Job] = []

    def run(scenario: str, transport: str, size: int = 3, timeout_s: float = 30.0) -> Members:
        command = [
            sys.executable,
            str(WORKERS / "member.py"),
            scenario,
            str(size),
            str(tmp_path),
            transport,
            str(timeout_s),
        ]
        jobs.append(Job(command, LIMIT_S, child_environ(OMP_NUM_THREADS="1")))
        members = Members(jobs[-1].__enter__(), size)
        for rank in range(size):
            assert members.event(rank, 0)["event"] == "ready"
        return members

    yield run
    for job in jobs:
        job.__exit__(None, None, None)
