"""Chaos: ranks of ``Communicator`` programs are killed, stopped or slowed at random moments; the others must say who.

``python tests/perf/chaos.py --runs 300``: each run forks 2 to 6 ranks, which connect and make random collectives whose
results they check, over shm, tcp or both, with a deadline of 2 s. A run passes if no rank hangs past the deadline and
2 s more, no result is wrong, nothing is left behind; and the errors should name a rank that was harmed. Exits 1
otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hccl_py
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.core.errors import CollectiveTimeoutError

DEADLINE_S = 2.0
MORE_S = 2.0  # past the deadline: a hang
HARMS = ("kill", "stop", "slow", "kill two")
TRANSPORTS = ("shm", "tcp", "mixed")


@dataclass(frozen=True)
class Plan:
    """What is done to whom, and when."""

    seed: int
    size: int
    transport: str
    harm: str
    victims: tuple[int, ...]
    in_start: bool  # while the ranks connect
    after_s: float

    @staticmethod
    def draw(seed: int) -> Plan:
        """The plan of a run."""
        rng = random.Random(seed)
        size, harm = rng.randint(2, 6), rng.choice(HARMS)
        number = 2 if harm == "kill two" and size > 2 else 1
        in_start = rng.random() < 0.25
        after_s = rng.uniform(0, 0.06) if in_start else rng.uniform(0.0, 0.4)
        victims = tuple(rng.sample(range(size), number))
        return Plan(seed, size, rng.choice(TRANSPORTS), harm, victims, in_start, after_s)


class Files:
    """Ranks that exchange bytes by files; one that does not come within the deadline is named."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.rank, self.size, self._folder, self._round = rank, size, folder, 0

    def allgather(self, data: bytes) -> list[bytes]:
        """What each rank gave."""
        self._round += 1
        new = self._folder / f"{self._round}-{self.rank}.new"
        new.write_bytes(data)
        new.rename(new.with_suffix(""))
        paths = [self._folder / f"{self._round}-{rank}" for rank in range(self.size)]
        pause, until = threading.Event(), time.monotonic() + DEADLINE_S
        while missing := [rank for rank, path in enumerate(paths) if not path.exists()]:
            if time.monotonic() > until:
                raise CollectiveTimeoutError(f"rank {missing[0]} did not come", self.rank, peer=missing[0])
            pause.wait(0.002)
        return [path.read_bytes() for path in paths]


def member(plan: Plan, rank: int, folder: Path, out: int) -> None:
    """One rank: connects, then makes collectives until something is wrong."""

    def say(event: str, **more: Any) -> None:
        os.write(out, (json.dumps({"rank": rank, "event": event, "at": time.monotonic(), **more}) + "\n").encode())

    host = f"host{2 * rank // plan.size}" if plan.transport == "mixed" else None
    names = ("shm", "tcp") if plan.transport == "mixed" else (plan.transport,)
    try:
        comm = hccl_py.init(
            Files(folder, rank, plan.size), Env(transports=names, timeout_s=DEADLINE_S, log_level="error", host_id=host)
        )
        say("ready")
        for number, call in enumerate(calls(plan, comm)):
            if not call():
                say("wrong", number=number)
                return
    except hccl_py.HcclError as error:
        named = getattr(error, "peer", None)
        named = error.rank if isinstance(error, hccl_py.PeerLostError) else named
        say("error", kind=type(error).__name__, named=named, text=str(error)[:300])
    except BaseException as error:
        say("crash", kind=type(error).__name__, text=repr(error)[:300])


def calls(plan: Plan, comm: Communicator) -> Iterator[Any]:
    """Collectives in the same random order on all ranks; each returns whether its result is right."""
    rng, rank, size = random.Random(plan.seed), comm.rank, comm.size
    pause = threading.Event()
    total = size * (size + 1) // 2
    while True:
        count = rng.choice((1, 100, 5_000, 200_000))
        root, idle_s = rng.randrange(size), rng.choice((0.0, 0.0, 0.003))
        which = rng.choice(("all_reduce", "iall_reduce", "broadcast", "all_gather", "barrier", "exchange"))
        mine, gathered = np.full(count, rank + 1.0, np.float32), np.zeros(count * size, np.float32)

        def call(which: str = which, mine: Any = mine, gathered: Any = gathered, root: int = root) -> bool:
            if which == "all_reduce":
                comm.all_reduce(mine)
                return bool((mine == total).all())
            if which == "iall_reduce":
                comm.iall_reduce(mine).wait()
                return bool((mine == total).all())
            if which == "broadcast":
                comm.broadcast(mine, root=root)
                return bool((mine == root + 1).all())
            if which == "all_gather":
                comm.all_gather(mine, gathered)
                return bool((gathered.reshape(size, -1) == np.arange(1, size + 1)[:, None]).all())
            if which == "exchange":
                got = gathered[: len(mine)]
                comm.sendrecv(mine, (rank + 1) % size, got, (rank - 1) % size)
                return bool((got == (rank - 1) % size + 1).all())
            comm.barrier()
            return True

        yield call
        if idle_s:
            pause.wait(idle_s)


@dataclass
class Outcome:
    """What a run showed."""

    plan: Plan
    hangs: list[int] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)  # wrong results, crashes, ranks that said nothing
    errors: list[dict[str, Any]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    named: int = 0  # errors that name one of the victims

    @property
    def good(self) -> bool:
        """No hang, nothing wrong, nothing left."""
        return not (self.hangs or self.wrong or self.leftovers)


def traces() -> set[str]:
    """What a group could leave behind on this machine once its processes are gone."""
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "hccl_py" in name}


class Run:
    """The processes of one plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._outcome, self._before = plan, Outcome(plan), traces()
        self._in, out = os.pipe()
        self._said: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(plan.size)}
        self._rest = b""
        self._pids = {}
        for rank in range(plan.size):
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(self._in)
                    member(plan, rank, folder, out)
                finally:
                    os._exit(0)
            self._pids[rank] = pid
        os.close(out)

    def outcome(self) -> Outcome:
        """Do the harm, and watch what comes of it."""
        plan = self._plan
        if not plan.in_start:
            self._listen(10.0, lambda: all(self._said.values()))
        self._listen(plan.after_s, lambda: False)
        harmed = set(plan.victims)
        for victim in plan.victims:
            if plan.harm == "slow":
                os.kill(self._pids[victim], signal.SIGSTOP)
                self._listen(0.3, lambda: False)
                os.kill(self._pids[victim], signal.SIGCONT)
                self._listen(0.2, lambda: False)
            os.kill(self._pids[victim], signal.SIGSTOP if plan.harm == "stop" else signal.SIGKILL)
        began_s = time.monotonic()
        survivors = set(range(plan.size)) - harmed
        limit_s = DEADLINE_S + MORE_S + (2 * DEADLINE_S if plan.in_start else 0)  # each step of it
        self._listen(limit_s, lambda: all(self._ended(rank) for rank in survivors))
        outcome = self._outcome
        for rank in sorted(survivors):
            last: dict[str, Any] = self._said[rank][-1] if self._said[rank] else {"event": "nothing", "rank": rank}
            if not self._ended(rank):
                outcome.hangs.append(rank)
            elif last["event"] != "error":
                outcome.wrong.append(last)
            else:
                outcome.errors.append({**last, "after_s": last["at"] - began_s})
                outcome.named += last["named"] in harmed or any(f"rank {victim}" in last["text"] for victim in harmed)
        outcome.wrong += [one for said in self._said.values() for one in said if one["event"] in ("wrong", "crash")]
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._in)
        outcome.leftovers = sorted(traces() - self._before)
        return outcome

    def _ended(self, rank: int) -> bool:
        return bool(self._said[rank]) and self._said[rank][-1]["event"] != "ready"

    def _listen(self, limit_s: float, enough: Any) -> None:
        until = time.monotonic() + limit_s
        while not enough() and (left := until - time.monotonic()) > 0:
            if not select.select([self._in], [], [], min(left, 0.1))[0]:
                continue
            new = os.read(self._in, 65536)
            if not new:
                return  # all have ended
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self._said[event["rank"]].append(event)


def main() -> int:
    """Run the plans of many seeds; print what failed and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each has the next")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began_s, outcomes = time.monotonic(), []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(Run(Plan.draw(seed), Path(folder)).outcome())
        outcome = outcomes[-1]
        if not outcome.good or outcome.named < len(outcome.errors):
            print(outcome, flush=True)
    errors = sum(len(outcome.errors) for outcome in outcomes)
    summary: dict[str, Any] = {
        "runs": len(outcomes),
        "hangs": sum(len(outcome.hangs) for outcome in outcomes),
        "wrong": sum(len(outcome.wrong) for outcome in outcomes),
        "leftovers": sum(len(outcome.leftovers) for outcome in outcomes),
        "errors": errors,
        "right_rank": sum(outcome.named for outcome in outcomes) / max(1, errors),
        "latest_s": max((error["after_s"] for outcome in outcomes for error in outcome.errors), default=0.0),
        "kinds": Counter(error["kind"] for outcome in outcomes for error in outcome.errors),
        "seconds": time.monotonic() - began_s,
    }
    print(json.dumps(summary))
    if arguments.json:
        arguments.json.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return 0 if all(outcome.good for outcome in outcomes) and summary["right_rank"] >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
