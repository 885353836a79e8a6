"""Watches the processes of the peers on this host: a kernel that waits for one that died is stopped at once."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping


class PeerWatch:
    """Calls ``lost(rank)`` when the process of a rank ends. Asleep until then.

    Args:
        processes: process id of each rank on this host, this one's left out. One that cannot be watched is not.
        lost: called once, from the thread that watches.
    """

    def __init__(self, processes: Mapping[int, int], lost: Callable[[int], None]) -> None:
        self._lost = lost
        self._ranks: dict[int, int] = {}
        for rank, pid in processes.items():
            try:
                self._ranks[os.pidfd_open(pid)] = rank
            except (OSError, AttributeError):  # another PID namespace, or an old kernel: time-outs remain
                continue
        self._stop, self._stopper = os.pipe()
        self._thread: threading.Thread | None = None
        if self._ranks:
            self._thread = threading.Thread(target=self._run, name="hccl_py-peers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for fd in (*self._ranks, self._stop):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll()]
        if self._stop not in ready:
            self._lost(self._ranks[ready[0]])

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._stopper < 0:
            return
        os.close(self._stopper)  # the other end becomes readable
        self._stopper = -1
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        for fd in (*self._ranks, self._stop):
            os.close(fd)
