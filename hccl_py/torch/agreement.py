"""The thorough check: before each collective the ranks compare what the engine's own check cannot see.

The engine compares kind, operator, element type, count, root and position of every call, always. Two tensors of one
size in swapped order pass that. Here the shapes are compared too (``TORCH_DISTRIBUTED_DEBUG=DETAIL``) and the lines of
the user's program that called (``HCCL_PY_CHECK_SITES=1``), at the cost of a small collective each time.
"""

from __future__ import annotations

import ctypes

from torch.distributed.distributed_c10d import DebugLevel, get_debug_level

from hccl_py.core.errors import DesyncError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine
from hccl_py.sites import call_site, describe
from hccl_py.torch.requests import Request

_LINE_BYTES = 512
_ONE_SHAPE = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE, Collective.REDUCE_SCATTER)


class Agreement:
    """Compares the calls of all ranks of one group.

    Args:
        sites: compare call sites too. Only for programs in which every rank makes each call in the same line.
    """

    def __init__(self, engine: Engine, sites: bool) -> None:
        self._engine = engine
        self._sites = sites

    @staticmethod
    def of(engine: Engine) -> Agreement | None:
        """What the settings ask for; None: nothing."""
        sites = engine.env.check_sites
        if engine.size > 1 and (sites or get_debug_level() == DebugLevel.DETAIL):
            return Agreement(engine, sites)
        return None

    def check(self, request: Request, sequence: int) -> None:
        """Meet the other ranks, who must be about to make the same call.

        Raises:
            DesyncError: on all ranks, before the collective begins; the group can be used again.
        """
        rank, size = self._engine.rank, self._engine.size
        what = request.collective.name.lower()
        shape = tuple(request.result[0].shape) if request.collective in _ONE_SHAPE else ()
        compared = f"{what} of shape {list(shape)}" if shape else what
        site = describe(call_site())
        line = f"{compared}\0{site}".encode()[:_LINE_BYTES]
        own = ctypes.create_string_buffer(line, _LINE_BYTES)
        board = ctypes.create_string_buffer(_LINE_BYTES * size)
        self._engine.run(
            Collective.ALL_GATHER,
            ReduceOp.SUM,
            DType.UINT8,
            0,
            ctypes.addressof(own),
            ctypes.addressof(board),
            _LINE_BYTES,
        )
        calls = []
        for peer in range(size):
            theirs = board.raw[peer * _LINE_BYTES : (peer + 1) * _LINE_BYTES].rstrip(b"\0")
            text, _, place = theirs.decode(errors="replace").partition("\0")
            calls.append((text, place))
        keys = [call if self._sites else call[0] for call in calls]
        if len(set(keys)) == 1:
            return
        peer = next(other for other in range(size) if keys[other] != keys[rank])
        here, there = (f"{text} at {place}" for text, place in (calls[rank], calls[peer]))
        raise DesyncError(
            f"collective #{sequence}: rank {rank} calls {here}, but rank {peer} calls {there}. Nothing was moved; "
            "make the ranks issue the same calls in the same order",
            ours=here,
            theirs=there,
            peer=peer,
        )
