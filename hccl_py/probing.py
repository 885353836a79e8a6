"""A probe of the network: in every round each rank sends a little to one other, and sees what comes in how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile

import numpy as np

from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine
from hccl_py.scheduler.measurement import Probe, ProbeRun

HEAD_BYTES = 256 * 1024  # goes first and is not timed: shapers let a burst through, and connections speed up
BODY_BYTES = 256 * 1024  # twice, timed apart: a rank that looks late makes one of them seem quick, and the other slow
_MOST_ROUNDS = 8
_TAG = (1 << 64) - 0x68636C  # a range that no program is likely to use


def rounds(world: int) -> tuple[int, ...]:
    """By how many ranks receivers are shifted from senders in each round: all shifts, or 1, 2, 4, ... and back."""
    if world - 1 <= _MOST_ROUNDS:
        return tuple(range(1, world))
    doubling = tuple(takewhile(lambda shift: shift < world, (1 << power for power in range(_MOST_ROUNDS))))
    return tuple(dict.fromkeys((*doubling[: _MOST_ROUNDS // 2], *(world - s for s in doubling[: _MOST_ROUNDS // 2]))))


def probe(engine: Engine, step: int, number: int, clock: Callable[[], float] = time.perf_counter) -> Probe:
    """What this rank received. All ranks must call it at once, with nothing else under way."""
    begin_s = clock()
    rank, world = engine.rank, engine.size
    sizes = (HEAD_BYTES, BODY_BYTES, BODY_BYTES)
    out, into = (np.zeros(max(sizes), np.uint8) for _ in range(2))
    runs = []
    for turn, shift in enumerate(rounds(world)):
        dst, src = (rank + shift) % world, (rank - shift) % world
        received = []
        if engine.transport_to(src) == "tcp":
            received = [engine.start_recv(into.ctypes.data, n, src, _TAG, keep=into) for n in sizes]
        engine.run(Collective.BARRIER, ReduceOp.SUM, DType.UINT8, 0, 0, 0, 0)
        sent = []
        if engine.transport_to(dst) == "tcp":
            sent = [engine.start_send(out.ctypes.data, n, dst, _TAG, keep=out) for n in sizes]
        for work in (*received, *sent):
            work.wait()
        if received:
            head_s, middle_s, end_s = (work.ended_s for work in received)
            runs.append(ProbeRun(turn, src, BODY_BYTES, max(middle_s - head_s, end_s - middle_s, 1e-6)))
    return Probe(step, rank, number, clock() - begin_s, tuple(runs))
