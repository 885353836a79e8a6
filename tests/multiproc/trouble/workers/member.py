"""A group of plain processes: ``member.py SCENARIO SIZE FOLDER TRANSPORT TIMEOUT_S``.

One process loads everything and forks a rank each (nothing native runs yet); the ranks meet by files in FOLDER, so that
no launcher interferes with what happens to them. Each prints one line of JSON per event, with the time of the system's
monotonic clock, the forking one when a rank has ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hccl_py
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.engine import Work


class FileBootstrap:
    """Ranks that exchange bytes by files, renamed into place when they are complete."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._folder = folder
        self._round = 0

    def allgather(self, data: bytes) -> list[bytes]:
        self._round += 1
        mine = self._folder / f"{self._round}-{self.rank}"
        new = self._folder / f"{mine.name}.new"
        new.write_bytes(data)
        new.rename(mine)
        pause = threading.Event()
        paths = [self._folder / f"{self._round}-{rank}" for rank in range(self.size)]
        while not all(path.exists() for path in paths):
            pause.wait(0.005)
        return [path.read_bytes() for path in paths]


class Voice:
    """Says what happens to one rank, a line at a time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def say(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "rank": self.rank, "at": time.monotonic(), **more}) + "\n"
        os.write(1, line.encode())  # at once and in one piece: all ranks share the pipe

    def attempt(self, call: Callable[[], Any]) -> None:
        """Do it and say how it ended."""
        try:
            call()
        except BaseException as error:
            lost = {"lost": error.rank} if isinstance(error, hccl_py.PeerLostError) else {}
            late = {"late": error.peer} if isinstance(error, hccl_py.CollectiveTimeoutError) else {}
            self.say(type(error).__name__, message=str(error), **lost, **late)
        else:
            self.say("done")


def connect(folder: str, rank: int, size: int, transport: str, timeout_s: float) -> Communicator:
    hosts = {"host_id": f"host{2 * rank // size}"} if transport == "mixed" else {}
    env = Env(transports=("shm", "tcp") if transport == "mixed" else (transport,), timeout_s=timeout_s, **hosts)
    return hccl_py.init(FileBootstrap(Path(folder), rank, size), env)


def stream(comm: Communicator, data: Any) -> None:
    while True:
        comm.all_reduce(data)


def poll(work: Work) -> None:
    """Wait as one who never calls wait(): the progress thread must notice what is wrong."""
    pause = threading.Event()
    while not work.done():
        pause.wait(0.01)
    work.wait()


def interruptible(voice: Voice, call: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    voice.say("calling")
    call()


def run(scenario: str, rank: int, size: int, folder: str, transport: str, timeout_s: float) -> None:
    """What one rank does."""
    faulthandler.dump_traceback_later(55, exit=True)
    voice, forever, last = Voice(rank), threading.Event(), size - 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    comm = connect(folder, rank, size, transport, timeout_s)
    data = np.ones(300_000 if scenario == "large" else 100)
    comm.all_reduce(np.ones(4))
    voice.say("ready", pid=os.getpid())
    plain: dict[str, Callable[[], Any]] = {  # the last rank never comes
        "collective": lambda: comm.all_reduce(data),
        "large": lambda: comm.all_reduce(data),
        "barrier": comm.barrier,
        "recv": lambda: comm.recv(data, last),
        "send": lambda: comm.send(np.ones(1_000_000), last),
        "started": lambda: comm.iall_reduce(data).wait(),
        "polled": lambda: poll(comm.iall_reduce(data)),
    }
    interrupted: dict[str, Callable[[], Any]] = {  # rank 0 is
        "interrupt-run": lambda: comm.all_reduce(data),
        "interrupt-wait": lambda: comm.iall_reduce(data).wait(),
        "interrupt-limit": lambda: comm.iall_reduce(data).wait(60.0),
        "interrupt-recv": lambda: comm.recv(data, 1),
    }
    if scenario in plain:
        if rank == last:
            forever.wait()
        voice.attempt(plain[scenario])
        voice.attempt(comm.barrier)
    elif scenario == "stream":  # all go on until one is lost
        voice.attempt(lambda: stream(comm, data))
    elif scenario == "later":  # lost while nobody calls
        if rank == last:
            forever.wait()
        signal.sigwait([signal.SIGUSR1])
        voice.attempt(comm.barrier)
    elif scenario == "leaves":  # the last rank closes in order
        if rank != last:
            voice.attempt(lambda: comm.all_reduce(data))
    elif scenario in interrupted:
        if rank == 0:
            voice.attempt(lambda: interruptible(voice, interrupted[scenario]))
        else:
            voice.attempt(lambda: comm.recv(data, 0))
    comm.close()
    voice.say("closed")


def main() -> None:
    scenario, size, folder, transport, timeout_s = sys.argv[1:6]
    ranks: dict[int, int] = {}
    for rank in range(int(size)):
        pid = os.fork()
        if pid == 0:
            run(scenario, rank, int(size), folder, transport, float(timeout_s))
            return
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        Voice(ranks.pop(pid)).say("exit", status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
