"""Bootstrap over a c10d Store: how the ranks of a process group exchange addresses. Leaves no keys behind."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hccl_py.core.errors import CollectiveTimeoutError, ConfigError


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
        self._store.set(keys[self.rank], data)  # type: ignore[arg-type]  # takes bytes, too
        gathered: list[bytes] = []
        for rank, key in enumerate(keys):
            self._wait(key, f"rank {rank} to join the group", rank)
            gathered.append(bytes(self._store.get(key)))
        read, done = f"{prefix}/read", f"{prefix}/done"
        if self._store.add(read, 1) == self.size:
            self._store.set(done, "")
        if self.rank == 0:  # it may be the host of the store, which must live until all have read
            self._wait(done, "all ranks to read what they exchanged", -1)
            for key in (*keys, read, done):
                self._store.delete_key(key)
        return gathered

    def _wait(self, key: str, what: str, peer: int) -> None:
        try:
            self._store.wait([key], timedelta(seconds=self._timeout_s))
        except RuntimeError as error:  # DistStoreError, DistNetworkError: the store does not say more
            raise CollectiveTimeoutError(
                f"rank {self.rank} waited up to {self._timeout_s:g} s for {what}: {error}",
                rank=self.rank,
                peer=peer,
                waited_s=self._timeout_s,
            ) from error


def environment_bootstrap(timeout_s: float) -> StoreBootstrap:
    """The ranks of this job as torch's variables have them: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Raises:
        ConfigError: one of them is missing.
    """
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    except ValueError as error:
        raise ConfigError(f"torch cannot find the other ranks: {error}") from error
    return StoreBootstrap(PrefixStore("hccl_py_init", store), rank, size, timeout_s)
