"""Runs several commands as one job: output as it comes; when one fails or time is over, the others are ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import monotonic

Command = tuple[list[str], dict[str, str]]  # arguments, environment
_GRACE_S = 3.0


def run_together(commands: Sequence[Command], timeout_s: float) -> int:
    """Run the commands to their end.

    Returns:
        0, or the exit status of the first one that failed (a signal as 128 + its number); 124 if time was over.
    """
    running = [subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL) for words, environ in commands]
    until_s = monotonic() + timeout_s
    try:
        with ThreadPoolExecutor(len(running)) as pool:
            waiting = {pool.submit(process.wait) for process in running}
            try:
                return _first_failure(waiting, until_s)
            finally:
                _end(running)
    except KeyboardInterrupt:
        return 130


def _first_failure(waiting: set[Future[int]], until_s: float) -> int:
    while waiting:
        done, waiting = wait(waiting, timeout=max(until_s - monotonic(), 0.0), return_when=FIRST_COMPLETED)
        if not done:
            sys.stderr.write("hccl-py lab: time is over; the ranks are ended\n")
            return 124
        for future in done:
            status = future.result()
            if status != 0:
                return status if status > 0 else 128 - status
    return 0


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Gently first."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    until_s = monotonic() + _GRACE_S
    for process in running:
        try:
            process.wait(timeout=max(until_s - monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
