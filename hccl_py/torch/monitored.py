"""A barrier that says who did not come, all of them if asked, and leaves the group as it was.

It goes through the store of the group, not through the engine: a rank that is late finds a group that still works.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta

from torch._C._distributed_c10d import Store

from hccl_py.core.errors import CollectiveTimeoutError

_GRACE_S = 5.0  # for rank 0 to tell the others what it found


class MonitoredBarrier:
    """The monitored barriers of one group, counted; all ranks must count alike."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._count = 0

    def meet(self, timeout_s: float, wait_all_ranks: bool) -> None:
        """Return when all ranks have come.

        Args:
            wait_all_ranks: name all ranks that are missing, instead of the first.

        Raises:
            CollectiveTimeoutError: on all ranks that came: some did not.
        """
        prefix = str(self._count)
        self._count += 1
        began_s = time.monotonic()
        if self._rank == 0:
            missing = self._missing(prefix, began_s + timeout_s, wait_all_ranks)
            self._store.set(f"{prefix}/verdict", json.dumps(missing))
            if self._count > 1 and not missing:  # everybody has left the one before
                self._forget(str(self._count - 2))
        else:
            self._store.set(f"{prefix}/{self._rank}", "")
            if self._came(f"{prefix}/verdict", timeout_s + _GRACE_S):
                missing = json.loads(self._store.get(f"{prefix}/verdict"))
            else:
                missing = [0]
        if missing:
            who = ", ".join(f"rank {rank}" for rank in missing)
            waited_s = time.monotonic() - began_s
            raise CollectiveTimeoutError(
                f"rank {self._rank}: monitored_barrier #{self._count - 1}: {who} did not come in {timeout_s:g} s",
                rank=self._rank,
                peer=missing[0],
                waited_s=waited_s,
            )

    def _missing(self, prefix: str, deadline_s: float, wait_all_ranks: bool) -> list[int]:
        missing = []
        for peer in range(1, self._size):
            if not self._came(f"{prefix}/{peer}", max(deadline_s - time.monotonic(), 0.001)):
                missing.append(peer)
                if not wait_all_ranks:
                    break
        return missing

    def _came(self, key: str, timeout_s: float) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError:  # DistStoreError: the time is over
            return False
        return True

    def _forget(self, prefix: str) -> None:
        for key in ("verdict", *range(1, self._size)):
            self._store.delete_key(f"{prefix}/{key}")
