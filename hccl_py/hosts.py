"""The ranks of a communicator by host: a communicator of each host's ranks, and those that join the hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hccl_py.communicator import Communicator
from hccl_py.core.errors import CollectiveTimeoutError
from hccl_py.engine import Engine

_TAG = (1 << 30) + 6  # of messages by which parts of a communicator find each other


class PartBootstrap:
    """Some ranks of a communicator, who find each other by messages of it; see :class:`~hccl_py.bootstrap.Bootstrap`.

    Args:
        comm: of all.
        members: its ranks, ascending; this one is among them.
    """

    def __init__(self, comm: Communicator, members: list[int]) -> None:
        self._comm, self._members = comm, members
        self.rank = members.index(comm.rank)
        self.size = len(members)

    def allgather(self, data: bytes) -> list[bytes]:
        """By messages between all pairs."""
        sent = np.frombuffer(len(data).to_bytes(8, "little") + data, np.uint8).copy()
        lengths = self._exchange(sent[:8], [8] * self.size)
        sizes = [int.from_bytes(length, "little") for length in lengths]
        return self._exchange(sent[8:], sizes)

    def _exchange(self, own: np.ndarray[tuple[int], np.dtype[np.uint8]], sizes: list[int]) -> list[bytes]:
        boxes = [np.empty(size, np.uint8) for size in sizes]
        boxes[self.rank][:] = own
        others = [(peer, box) for peer, box in zip(self._members, boxes, strict=True) if peer != self._comm.rank]
        works = [self._comm.irecv(box, peer, _TAG) for peer, box in others]
        works += [self._comm.isend(own, peer, _TAG) for peer, _ in others]
        for work in works:
            work.wait()
        return [box.tobytes() for box in boxes]


@dataclass(frozen=True)
class HostParts:
    """One rank's place in a group that spans hosts.

    Attributes:
        local: the ranks of this host, in order.
        across: one rank of each host, by host: those that encode the same shard; None: this rank encodes none.
        shards: how many ranks of each host encode: as many as the host with the fewest ranks has.
    """

    local: Communicator
    across: Communicator | None
    shards: int

    def close(self) -> None:
        """Leave both. Idempotent."""
        self.local.close()
        if self.across is not None:
            self.across.close()

    def abort(self, why: str) -> None:
        """Fail what is under way in both."""
        for comm in (self.local, self.across):
            if comm is not None:
                comm.engine.abort(why)


def by_host(comm: Communicator) -> HostParts | None:
    """The parts of ``comm``; None where it is one host, or no host has two of its ranks. Collective."""
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(comm.engine.hosts):
        members.setdefault(host, []).append(rank)
    groups = list(members.values())
    if len(groups) < 2 or max(map(len, groups)) < 2:
        return None
    mine = members[comm.engine.hosts[comm.rank]]
    shards, place = min(map(len, groups)), mine.index(comm.rank)
    # The cluster's file and forced algorithms are for all ranks; parts plan for themselves.
    env = replace(comm.engine.env, topology=None, algorithm=())
    try:
        local = Communicator(Engine(PartBootstrap(comm, mine), env=env))
        others = sorted(group[place] for group in groups) if place < shards else []
        across = Communicator(Engine(PartBootstrap(comm, others), env=env)) if others else None
    except CollectiveTimeoutError:
        comm.engine.abort("a part of the group did not connect")
        raise
    return HostParts(local, across, shards)
