"""One rank of a group of plain processes: ``member.py SCENARIO RANK SIZE FOLDER TRANSPORT TIMEOUT_S``.

The ranks meet by files in FOLDER, so that no launcher notices what happens to them. Each prints one line of JSON per
event, with the time of the system's monotonic clock.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import hccl_py
from hccl_py.core.env import Env


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


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)


def attempt(call: Any) -> None:
    """Do it and say how it ended."""
    try:
        call()
    except BaseException as error:
        say(type(error).__name__, message=str(error), rank=getattr(error, "rank", -2), peer=getattr(error, "peer", -2))
    else:
        say("done")


def connect(folder: str, rank: int, size: int, transport: str, timeout_s: float) -> Any:
    hosts = {"host_id": f"host{2 * rank // size}"} if transport == "mixed" else {}
    env = Env(transports=("shm", "tcp") if transport == "mixed" else (transport,), timeout_s=timeout_s, **hosts)
    return hccl_py.init(FileBootstrap(Path(folder), rank, size), env)


def main() -> None:
    scenario, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    last, timeout_s = rank == size - 1, float(sys.argv[6])
    forever = threading.Event()
    comm = connect(sys.argv[4], rank, size, sys.argv[5], timeout_s)
    data = np.ones(300_000 if scenario == "large" else 100)
    comm.all_reduce(np.ones(4))
    say("ready", pid=os.getpid())
    if scenario in ("collective", "large", "barrier"):  # the last rank never comes
        if last:
            forever.wait()
        attempt(comm.barrier if scenario == "barrier" else lambda: comm.all_reduce(data))
        attempt(lambda: comm.all_reduce(data))
    elif scenario == "stream":  # it goes on until somebody is lost
        def stream() -> None:
            while True:
                comm.all_reduce(data)

        attempt(stream)
    elif scenario == "recv":
        if last:
            forever.wait()
        attempt(lambda: comm.recv(data, size - 1))
    elif scenario == "send":
        if last:
            forever.wait()
        attempt(lambda: comm.send(np.ones(1_000_000), size - 1))
    elif scenario == "started":
        if last:
            forever.wait()
        work = comm.iall_reduce(data)
        attempt(work.wait)
    elif scenario == "polled":  # nobody waits: the progress thread must notice
        if last:
            forever.wait()
        work = comm.iall_reduce(data)
        while not work.done():
            forever.wait(0.01)
        attempt(work.wait)
    elif scenario == "later":  # lost while nobody calls
        if not last:
            sys.stdin.readline()
            attempt(lambda: comm.all_reduce(data))
        else:
            forever.wait()
    elif scenario == "leaves":  # the last rank closes in order
        if not last:
            attempt(lambda: comm.all_reduce(data))
    elif scenario.startswith("interrupt"):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank != 0:
            attempt(lambda: comm.recv(data, 0))
            return
        calls = {
            "interrupt-run": lambda: comm.all_reduce(data),
            "interrupt-wait": lambda: comm.iall_reduce(data).wait(),
            "interrupt-limit": lambda: comm.iall_reduce(data).wait(60.0),
            "interrupt-recv": lambda: comm.recv(data, 1),
        }
        attempt(calls[scenario])
    comm.close()
    say("closed")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(50, exit=True)
    main()
