"""A watchdog: when a rank makes no progress in time, every rank prints its stacks and the job ends.

A benchmark of communication that hangs must say where; all ranks wait for one another, so all of them notice.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

EXIT_STATUS = 124  # as of timeout(1)


class Watchdog:
    """Ends the process unless :meth:`feed` is called every ``timeout_s`` seconds; a context manager.

    ``grace_s`` is the time between the stacks and the end: the launcher kills the other ranks as soon as one has gone,
    so all must have printed by then. If the interpreter itself is blocked, faulthandler's own timer does the same.
    """

    def __init__(
        self,
        rank: int,
        timeout_s: float,
        grace_s: float = 2.0,
        stream: TextIO | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._rank, self._timeout_s, self._grace_s = rank, timeout_s, grace_s
        self._stream = sys.stderr if stream is None else stream
        self._end = end
        self._doing = "starting"
        self._fed_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hccl_py bench watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._fed_s = time.monotonic()
        self._thread.start()
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        faulthandler.cancel_dump_traceback_later()
        self._thread.join()

    def feed(self, doing: str) -> None:
        """Say that there is progress, and what is done next."""
        self._doing = doing
        now_s = time.monotonic()
        if now_s - self._fed_s > self._timeout_s / 4:
            self._arm()
        self._fed_s = now_s

    def _arm(self) -> None:
        if self._stream is sys.stderr:
            faulthandler.dump_traceback_later(2 * (self._timeout_s + self._grace_s), exit=True)

    def _watch(self) -> None:
        while True:
            silent_s = time.monotonic() - self._fed_s
            if silent_s >= self._timeout_s:
                self._bark(silent_s)
                self._stop.wait(self._grace_s)
                self._end(EXIT_STATUS)
                return
            if self._stop.wait(min(self._timeout_s - silent_s, self._timeout_s / 4)):
                return

    def _bark(self, silent_s: float) -> None:
        with tempfile.TemporaryFile(mode="w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            stacks = file.read()
        lines = [f"no progress for {silent_s:.0f} s while {self._doing}; stacks of this rank:", *stacks.splitlines()]
        self._stream.write("".join(f"[rank {self._rank}] {line}\n" for line in lines))
        self._stream.flush()
