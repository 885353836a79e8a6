"""Nodes: runs tasks as ranks on the hosts of a lab, each launch with a time limit, and says how each rank ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest
from lab import Lab

from hccl_py.core.env import child_environ

AGENT = Path(__file__).with_name("agent.py")
TASKS = Path(__file__).with_name("tasks.py")
_START_LIMIT_S = 90.0
_SHOWN_LINES = 60

TWO_BY_TWO = (0, 0, 1, 1)  # by rank, its host
INTERLEAVED = (0, 1, 0, 1)


@dataclass
class Ending:
    """How a rank ended: with a value, an error, or neither: it was killed."""

    value: Any = None
    kinds: list[str] = field(default_factory=list)  # classes of the error, its own first
    text: str = ""
    has: dict[str, Any] = field(default_factory=dict)  # attributes of the error
    at_s: float = 0.0  # when it was raised, by time.monotonic()
    status: int | None = None


class Nodes:
    """An agent on each node of a lab, which forks the ranks. A context manager."""

    def __init__(self, lab: Lab, log: Path, tasks: Path = TASKS) -> None:
        self.lab = lab
        self._tasks = tasks
        self._log = log
        self._agents: list[subprocess.Popen[str]] = []
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._launches = 0
        self._current: Launch | None = None

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(
        self,
        task: str,
        hosts: Sequence[int] = TWO_BY_TWO,
        *,
        limit_s: float = 30.0,
        environ: Mapping[str, str] | None = None,
        environ_of: Mapping[int, Mapping[str, str]] | None = None,
        **arguments: Any,
    ) -> Launch:
        """Start a function of the file of tasks on as many ranks as ``hosts`` has entries.

        Args:
            hosts: the node of each rank.
            limit_s: then all is killed and the test fails.
            environ: variables of all ranks; ``environ_of`` of some.
            arguments: of the function.
        """
        if not self._agents:
            self._start_agents()
        self._launches += 1
        torch = {
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": self.lab.address(hosts[0]),
            "MASTER_PORT": str(29500 + self._launches),
        }
        for node, agent in enumerate(self._agents):
            ranks = [
                {"rank": rank, "environ": {"RANK": str(rank), **(environ_of or {}).get(rank, {})}}
                for rank, host in enumerate(hosts)
                if host == node
            ]
            launch = {"task": task, "limit_s": limit_s - 1.0, "arguments": arguments, "ranks": ranks}
            assert agent.stdin is not None
            agent.stdin.write(json.dumps({**launch, "environ": {**torch, **(environ or {})}}) + "\n")
            agent.stdin.flush()
        self._current = Launch(self, len(hosts), limit_s, f"{task} on hosts {list(hosts)}")
        return self._current

    def run(self, task: str, hosts: Sequence[int] = TWO_BY_TWO, **options: Any) -> list[Any]:
        """Run a task to its end; what each rank returned."""
        return self.start(task, hosts, **options).values()

    def settle(self) -> None:
        """End what a test that failed has left under way."""
        if self._current is not None and not self._current.over:
            self.kill()

    def kill(self) -> None:
        """End the agents and all that they started; the next launch starts them anew."""
        for agent in self._agents:
            try:
                os.killpg(agent.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.lab.kill()
        for agent in self._agents:
            agent.wait()
            for stream in (agent.stdin, agent.stdout):
                if stream is not None:
                    stream.close()
        self._agents.clear()
        self._current = None
        self._events = queue.SimpleQueue()

    def next_event(self, until_s: float) -> dict[str, Any]:
        """Raises queue.Empty at ``until_s`` of time.monotonic()."""
        return self._events.get(timeout=max(until_s - time.monotonic(), 0.0))

    def give_up(self, why: str) -> NoReturn:
        """End everything, and the test with it."""
        self.kill()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        pytest.fail("\n".join([why, *lines]), pytrace=False)

    def _start_agents(self) -> None:
        environ = child_environ(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", GLOO_SOCKET_IFNAME="eth0")
        with self._log.open("w", encoding="utf-8") as log:
            for node in range(self.lab.nodes):
                agent = subprocess.Popen(
                    [*self.lab.prefix(node), sys.executable, str(AGENT), str(self._tasks)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environ,
                    text=True,
                    start_new_session=True,
                )
                self._agents.append(agent)
                threading.Thread(target=_read, args=(agent, self._events), daemon=True).start()
        until_s = time.monotonic() + _START_LIMIT_S
        for _ in self._agents:
            try:
                event = self.next_event(until_s)
            except queue.Empty:
                self.give_up(f"the agents of the lab did not start in {_START_LIMIT_S:g} s")
            if not event.get("ready"):
                self.give_up(f"an agent of the lab did not start: {event}")


class Launch:
    """Ranks under way."""

    def __init__(self, nodes: Nodes, ranks: int, limit_s: float, what: str) -> None:
        self._nodes = nodes
        self._what = f"{what}, limit {limit_s:g} s"
        self._until_s = time.monotonic() + limit_s
        self._endings = [Ending() for _ in range(ranks)]
        self._told: dict[str, dict[int, int]] = {}

    @property
    def over(self) -> bool:
        """All ranks have ended, as far as events have been taken in."""
        return all(ending.status is not None for ending in self._endings)

    def processes(self, event: str) -> dict[int, int]:
        """Wait until all ranks have told ``event``; their process ids by rank."""
        for _ in self._progress():
            if len(self._told.get(event, {})) == len(self._endings):
                return self._told[event]
        self._fail(f"the ranks ended before all told {event!r}")

    def told(self, event: str) -> set[int]:
        """The ranks that have told ``event`` so far."""
        return set(self._told.get(event, {}))

    def endings(self) -> list[Ending]:
        """Wait for the end of all ranks."""
        for _ in self._progress():
            pass
        return self._endings

    def values(self) -> list[Any]:
        """Wait for the end of all ranks; what they returned. Fails if one of them did not."""
        endings = self.endings()
        if any(ending.kinds or ending.status != 0 for ending in endings):
            self._fail("not all ranks ended well")
        return [ending.value for ending in endings]

    def errors(self) -> list[Ending]:
        """Wait for the end of all ranks; the errors they raised. Fails if one of them did not raise."""
        endings = self.endings()
        if not all(ending.kinds or ending.status == -signal.SIGKILL for ending in endings):
            self._fail("some rank raised nothing")
        return [ending for ending in endings if ending.kinds]

    def _progress(self) -> Iterator[None]:
        """Take in events, one at a time, until all ranks have ended."""
        while not self.over:
            try:
                event = self._nodes.next_event(self._until_s)
            except queue.Empty:
                self._fail("not all ranks ended in time")
            self._take(event)
            yield

    def _take(self, event: dict[str, Any]) -> None:
        if "rank" not in event:
            self._fail(f"an agent of the lab ended: {event}")
        ending = self._endings[event["rank"]]
        if "event" in event:
            self._told.setdefault(event["event"], {})[event["rank"]] = event["process"]
        elif "raised" in event:
            for name, value in event["raised"].items():
                setattr(ending, name, value)
        elif "status" in event:
            ending.status = event["status"]
        else:
            ending.value = event["returned"]

    def _fail(self, why: str) -> NoReturn:
        lines = [f"rank {rank}: {ending}" for rank, ending in enumerate(self._endings)]
        self._nodes.give_up("\n".join([f"{why} ({self._what})", *lines]))


def _read(agent: subprocess.Popen[str], events: queue.SimpleQueue[dict[str, Any]]) -> None:
    assert agent.stdout is not None
    try:
        for line in agent.stdout:
            events.put(json.loads(line))
    except ValueError:
        pass  # closed by kill(), in the middle of a line
    events.put({"over": agent.pid})
