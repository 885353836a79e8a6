"""Bootstrap over a c10d Store: how the ranks of a process group exchange addresses. Leaves no keys behind."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store

from hccl_py.core.errors import CollectiveTimeoutError


class StoreBootstrap:
    """Exchanges bytes between all ranks through a store that they share.

    Args:
        store: shared by exactly these ranks, or prefixed so that no one else uses the same keys.
        timeout_s: how long to wait for the other ranks in each exchange.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._timeout_s = timeout_s
        self._round = 0

    def allgather(self, data: bytes) -> list[bytes]:
        """``data`` of every rank, in rank order. All ranks must call.

        Raises:
            CollectiveTimeoutError: if some rank did not come in time; the message names it.
        """
        prefix = f"hccl_py/{self._round}"
        self._round += 1
        keys = [f"{prefix}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], data)
        gathered: list[bytes] = []
        for rank, key in enumerate(keys):
            self._wait(key, rank)
            gathered.append(bytes(self._store.get(key)))
        if self._store.add(f"{prefix}/read", 1) == self.size:  # the last reader clears up
            for key in [*keys, f"{prefix}/read"]:
                self._store.delete_key(key)
        return gathered

    def _wait(self, key: str, rank: int) -> None:
        try:
            self._store.wait([key], timedelta(seconds=self._timeout_s))
        except RuntimeError as error:  # DistStoreError; the store does not say more
            raise CollectiveTimeoutError(
                f"rank {self.rank} waited {self._timeout_s:g} s for rank {rank} to join the process group: {error}",
                rank=self.rank,
                peer=rank,
                waited_s=self._timeout_s,
            ) from error
