"""Exchange: a few bytes of every rank to every rank, on the group that trains; in the background if need be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import InternalError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine, Work


class Exchange:
    """At most ``capacity`` bytes a rank. All ranks have the same capacity and call the same methods in one order."""

    def __init__(self, engine: Engine, capacity: int) -> None:
        self._engine, self._capacity = engine, capacity
        self._out: npt.NDArray[np.uint8] = np.zeros(4 + capacity, np.uint8)
        self._in: npt.NDArray[np.uint8] = np.zeros(engine.size * (4 + capacity), np.uint8)
        self._each = 4 + capacity
        self._work: Work | None = None

    @property
    def under_way(self) -> bool:
        """True between :meth:`start` and :meth:`finish`."""
        return self._work is not None

    def start(self, data: bytes, upto: int | None = None) -> None:
        """Send ``data`` to all ranks, in the background; it is at most ``upto`` bytes on each of them."""
        most = self._capacity if upto is None else min(upto, self._capacity)
        if self.under_way or len(data) > most:
            raise InternalError(f"exchange of {len(data)} bytes; {most} fit, under way: {self.under_way}")
        self._each = 4 + most
        self._out[:4] = np.frombuffer(len(data).to_bytes(4, "little"), np.uint8)
        self._out[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
        self._work = self._engine.start(
            Collective.ALL_GATHER, ReduceOp.SUM, DType.UINT8, 0, self._out.ctypes.data, self._in.ctypes.data,
            self._each, keep=(self._out, self._in),
        )  # fmt: skip

    def finish(self) -> list[bytes]:
        """What each rank sent, by rank; waits for it."""
        assert self._work is not None
        work, self._work = self._work, None
        work.wait()
        rows = []
        for row in self._in[: self._engine.size * self._each].reshape(self._engine.size, self._each):
            length = int.from_bytes(row[:4].tobytes(), "little")
            rows.append(row[4 : 4 + length].tobytes())
        return rows

    def now(self, data: bytes) -> list[bytes]:
        """Both at once."""
        self.start(data)
        return self.finish()
