"""Sums of buckets over ranks, started in the background: whole, in pieces, or as bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.torch.process_group import HcclProcessGroup

_ALL_REDUCE, _SUM = int(Collective.ALL_REDUCE), int(ReduceOp.SUM)
_UNIT = 64  # elements; pieces begin at multiples of it


class Started(Protocol):
    """What is under way. ``ended_s`` of some: when it was over, on the clock of ``time.perf_counter``."""

    def wait(self) -> None:
        """Block until it is over."""

    def done(self) -> bool:
        """True once it is over."""


class Several:
    """Some of them as one."""

    def __init__(self, parts: Sequence[Started]) -> None:
        self._parts = parts

    def wait(self) -> None:
        """Block until all are over."""
        for part in self._parts:
            part.wait()

    def done(self) -> bool:
        """True once all are over."""
        return all(part.done() for part in self._parts)

    @property
    def ended_s(self) -> float:
        """When the last one was over; 0: not known."""
        ends = [float(getattr(part, "ended_s", 0.0)) for part in self._parts]
        return max(ends) if all(ends) else 0.0


class Narrowed:
    """A sum that travels as bfloat16 and comes home as it was; None in place of ``work``: it is there."""

    def __init__(self, work: Started | None, narrow: Tensor, flat: Tensor) -> None:
        self._work, self._narrow, self._flat = work, narrow, flat

    def wait(self) -> None:
        """Block until it is over, and bring it home."""
        if self._work is not None:
            self._work.wait()
        self._flat.copy_(self._narrow)

    def done(self) -> bool:
        """True once nothing is left but to bring it home."""
        return self._work is None or self._work.done()

    @property
    def ended_s(self) -> float:
        """When it was over; 0: not known."""
        return float(getattr(self._work, "ended_s", 0.0))


def start_sum(
    group: HcclProcessGroup, flat: Tensor, dtype: DType, op: int = _SUM, chunk_bytes: int = 0
) -> Started | None:
    """Start the sum of ``flat`` over all ranks, in place; None: it is there.

    Args:
        dtype: of its elements, as they travel.
        op: a ReduceOp, SUM or AVG.
        chunk_bytes: of one all_reduce, at most; 0: all in one.
    """
    if chunk_bytes and flat.numel() * dtype.itemsize > chunk_bytes:
        step = max(chunk_bytes // dtype.itemsize // _UNIT, 1) * _UNIT
        parts = [_start(group, piece, dtype, op) for piece in torch.split(flat, step)]
        started = [part for part in parts if part is not None]
        return Several(started) if started else None
    return _start(group, flat, dtype, op)


def start_narrow_sum(group: HcclProcessGroup, flat: Tensor, op: int = _SUM, chunk_bytes: int = 0) -> Started:
    """As :func:`start_sum`, of float32 as bfloat16: ranks add in float32 and round at every hop."""
    narrow = flat.to(torch.bfloat16)
    return Narrowed(start_sum(group, narrow, DType.BFLOAT16, op, chunk_bytes), narrow, flat)


def _start(group: HcclProcessGroup, flat: Tensor, dtype: DType, op: int) -> Started | None:
    engine, ptr, count = group._open(), flat.data_ptr(), flat.numel()
    group._sequence += 1
    if group._blocking:
        engine.run(Collective.ALL_REDUCE, ReduceOp(op), dtype, 0, ptr, ptr, count)
        return None
    started = engine.start_shortly(_ALL_REDUCE, op, int(dtype), 0, ptr, ptr, count, flat)
    if started is False:  # a plan table is still to be loaded
        return engine.start(Collective.ALL_REDUCE, ReduceOp(op), dtype, 0, ptr, ptr, count, flat)
    return started
