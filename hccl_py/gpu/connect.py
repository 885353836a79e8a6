"""What connects the GPUs of a group's ranks: all of them, or none and the same error everywhere."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable

from hccl_py.core.env import Env
from hccl_py.core.errors import TransportUnavailableError
from hccl_py.gpu.group import DeviceRanks
from hccl_py.gpu.watch import PeerWatch

_MOST_RANKS = 8


def connect(
    rank: int, size: int, index: int, arch: str, exchange: Callable[[bytes], list[bytes]], env: Env, timeout_s: float
) -> DeviceRanks:
    """The ranks on their GPUs. Collective.

    Args:
        index: number of this rank's GPU; ``arch``: what to compile for.
        exchange: as :class:`DeviceRanks` takes it.

    Raises:
        TransportUnavailableError: the GPUs do not reach each other; the message says which and why. All ranks raise.
    """
    error = ""
    ranks: DeviceRanks | None = None
    if size > _MOST_RANKS:
        error = f"a group of {size} ranks, and kernels serve {_MOST_RANKS}"
    outcomes = exchange(f"{socket.gethostname()} {env.host_id or ''}".encode())
    if len(set(outcomes)) > 1:
        error = "ranks on different hosts"
    if not error:
        try:
            ranks = DeviceRanks(
                rank,
                size,
                exchange,
                ordinal=index,
                arch=arch,
                timeout_s=timeout_s,
                sms=env.gpu_sms or 0,
                cache=env.cache_folder(),
            )
        except TransportUnavailableError as failed:
            error = str(failed)
    for peer, outcome in enumerate(exchange(error.encode())):
        if outcome:
            if ranks is not None:
                ranks.close()
            raise TransportUnavailableError(f"rank {peer}: {outcome.decode()}", outcome.decode())
    assert ranks is not None
    return ranks


def watch_peers(ranks: DeviceRanks, exchange: Callable[[bytes], list[bytes]]) -> PeerWatch:
    """Stops the kernels of ``ranks`` when the process of a peer on this host ends. Collective."""
    places = [pickle.loads(word) for word in exchange(pickle.dumps((socket.gethostname(), os.getpid())))]
    here = places[ranks.rank]
    processes = {peer: pid for peer, (host, pid) in enumerate(places) if host == here[0] and pid != here[1]}
    return PeerWatch(processes, lambda peer: ranks.abort(f"the process of rank {peer} ended", peer))
