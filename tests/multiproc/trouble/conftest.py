"""Starts ranks as plain processes that can be killed one by one, and reads what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hccl_py.core.env import child_environ

WORKERS = Path(__file__).parent / "workers"
LIMIT_S = 60.0


class Member:
    """One rank's process."""

    def __init__(self, command: list[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self.noise = ""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=child_environ(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1"),
        )  # fmt: skip
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                else:
                    self.noise += line
                self._changed.notify_all()

    def event(self, number: int) -> dict[str, Any]:
        """The event with this number, waited for."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: len(self.events) > number or not self._reader.is_alive(), timeout=LIMIT_S
            )
        assert there and len(self.events) > number, f"no event {number} after {self.events}: {self.noise}"
        return self.events[number]

    def tell(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; the time."""
        now = time.monotonic()
        os.kill(self._process.pid, number)
        return now

    def end(self) -> int:
        """Its exit status, waited for."""
        return self._process.wait(timeout=LIMIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


Start = Callable[..., list[Member]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(scenario, transport, size=4, timeout_s=30)``: connected ranks of workers/member.py, all ready."""
    with contextlib.ExitStack() as stack:

        def run(scenario: str, transport: str, size: int = 4, timeout_s: float = 30.0) -> list[Member]:
            members = []
            for rank in range(size):
                arguments = [scenario, str(rank), str(size), str(tmp_path), transport, str(timeout_s)]
                member = Member([sys.executable, str(WORKERS / "member.py"), *arguments])
                stack.callback(member.kill)
                members.append(member)
            for member in members:
                assert member.event(0)["event"] == "ready"
            return members

        yield run
