"""CUDA tensors through host memory: for ranks whose GPUs do not reach each other (other hosts, or more than eight).

A large all_reduce is cut in pieces: while one is on the wire, the next comes from the GPU and the last goes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.engine import Engine
from hccl_py.torch.requests import Request
from hccl_py.torch.streams import new_event, new_stream
from hccl_py.torch.tensors import copy_home

_PIECE_BYTES = 4 << 20
_DEPTH = 3  # pieces under way


class Staging:
    """Runs requests on CUDA tensors over the engine of a group. Calls return when the results are in place.

    A call in the capture of a graph raises ConfigError.
    """

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine = engine
        self.device = device
        self._pinned: dict[tuple[str, int], Tensor] = {}
        self._in: Any = new_stream(device)
        self._out: Any = new_stream(device)

    def run(self, request: Request) -> None:
        """Do it; on return the current stream has the results."""
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "these ranks' GPUs do not reach each other, so that collectives go through host memory: that cannot be "
                "part of a CUDA graph"
            )
        current = torch.cuda.current_stream(self.device)
        self._in.wait_stream(current)
        self._out.wait_stream(current)
        if request.collective is Collective.ALL_REDUCE:
            self._in_pieces(request)
        else:
            self._whole(request)
        current.wait_stream(self._out)
        if request.copies:
            copy_home(request.copies)

    def _whole(self, request: Request) -> None:
        size, rank, item = self._engine.size, self._engine.rank, request.dtype.itemsize
        blocks_in, blocks_out = _blocks(request, size, rank)
        into = self._buffer("in", blocks_in * item)
        out = self._buffer("out", blocks_out * item)
        if blocks_in:
            with torch.cuda.stream(self._in):
                into.copy_(_bytes_at(request.in_ptr, blocks_in * item, self.device), non_blocking=True)
            self._in.synchronize()
        in_ptr, out_ptr = into.data_ptr() if blocks_in else 0, out.data_ptr() if blocks_out else 0
        if request.collective is Collective.BROADCAST:
            in_ptr = out_ptr = into.data_ptr() if rank == request.root else out.data_ptr()
        replace(request, in_ptr=in_ptr, out_ptr=out_ptr, copies=()).run(self._engine)
        if blocks_out and not (request.collective is Collective.BROADCAST and rank == request.root):
            with torch.cuda.stream(self._out):
                _bytes_at(request.out_ptr, blocks_out * item, self.device).copy_(out, non_blocking=True)
            self._out.synchronize()  # the buffer is used again

    def _in_pieces(self, request: Request) -> None:
        item = request.dtype.itemsize
        piece = max(1, _PIECE_BYTES // item)
        starts = deque(range(0, request.count, piece)) or deque([0])
        ring = self._buffer("ring", (_DEPTH + 1) * piece * item)
        coming: deque[tuple[int, int, Tensor, Any]] = deque()
        moving: deque[tuple[int, int, Tensor, Any]] = deque()
        leaving: deque[Any] = deque()
        turn = 0
        while starts or coming or moving:
            while starts and len(coming) + len(moving) + len(leaving) <= _DEPTH:
                start = starts.popleft()
                count = min(piece, request.count - start)
                slot = ring[turn * piece * item :][: count * item]
                turn = (turn + 1) % (_DEPTH + 1)
                event = new_event()
                with torch.cuda.stream(self._in):
                    if count:
                        slot.copy_(
                            _bytes_at(request.in_ptr + start * item, count * item, self.device), non_blocking=True
                        )
                    event.record(self._in)
                coming.append((start, count, slot, event))
            if coming and len(moving) < 2:
                start, count, slot, event = coming.popleft()
                event.synchronize()
                part = replace(request, in_ptr=slot.data_ptr(), out_ptr=slot.data_ptr(), count=count, copies=())
                moving.append((start, count, slot, part.start(self._engine)))
                continue
            if moving:
                start, count, slot, work = moving.popleft()
                work.wait()
                event = new_event()
                with torch.cuda.stream(self._out):
                    if count:
                        _bytes_at(request.out_ptr + start * item, count * item, self.device).copy_(
                            slot, non_blocking=True
                        )
                    event.record(self._out)
                leaving.append(event)
            if leaving and (leaving[0].query() or len(leaving) == _DEPTH or not (coming or moving)):
                leaving.popleft().synchronize()
        while leaving:
            leaving.popleft().synchronize()

    def _buffer(self, name: str, size_bytes: int) -> Tensor:
        room = max(4096, 1 << (size_bytes - 1).bit_length()) if size_bytes else 4096
        key = (name, room)
        if key not in self._pinned:
            self._pinned = {k: v for k, v in self._pinned.items() if k[0] != name}  # one of each
            self._pinned[key] = torch.empty(room, dtype=torch.uint8, pin_memory=True)
        return self._pinned[key][:size_bytes]


class _Memory:
    """Memory of a device as torch takes it in."""

    def __init__(self, ptr: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (ptr, False),
            "version": 3,
        }


def _bytes_at(ptr: int, size_bytes: int, device: torch.device) -> Tensor:
    return torch.as_tensor(_Memory(ptr, size_bytes), device=device)


def _blocks(request: Request, size: int, rank: int) -> tuple[int, int]:
    """Elements of the input and of the output of this rank."""
    if request.in_counts is not None and request.out_counts is not None:
        return sum(request.in_counts), sum(request.out_counts)
    count, root = request.count, rank == request.root
    return {
        Collective.ALL_REDUCE: (count, count),
        Collective.REDUCE: (count, count if root else 0),
        Collective.BROADCAST: (count if root else 0, 0 if root else count),
        Collective.ALL_GATHER: (count, count * size),
        Collective.REDUCE_SCATTER: (count * size, count),
        Collective.ALL_TO_ALL: (count * size, count * size),
        Collective.GATHER: (count, count * size if root else 0),
        Collective.SCATTER: (count * size if root else 0, count),
        Collective.BARRIER: (0, 0),
    }[request.collective]
