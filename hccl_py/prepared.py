"""Prepared collectives: everything that can be looked up or checked in advance is, once; then a call costs one call.

MPI 4 calls these persistent collectives (``MPI_Allreduce_init``, standard section 6.13).
"""

from __future__ import annotations

from typing import Any

from hccl_py._native import Prepared
from hccl_py.arguments import Arguments
from hccl_py.core.types import ReduceOp
from hccl_py.engine import Engine


class PreparedCollectives:
    """The ``prepare_*`` methods of a Communicator.

    Each takes what the plain method takes and moves nothing. The :class:`Prepared` that it returns keeps the buffers
    alive and does the collective each time it is asked to: ``run()``, or ``start()`` and later ``wait()`` or
    ``done()``. Preparing is no collective, running is: all ranks must run in the same order, prepared or not (a rank
    may have prepared what another calls plainly), and the contract is checked each time. Raises ConfigError as the
    plain methods do; the rest is raised when it runs.
    """

    _engine: Engine
    _arguments: Arguments

    def prepare_all_reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM) -> Prepared:
        """Prepare ``all_reduce`` on these buffers (``recvbuf`` None: in place)."""
        return self._engine.prepare(*self._arguments.all_reduce(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def prepare_reduce(self, sendbuf: Any, recvbuf: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Prepared:
        """Prepare ``reduce`` on these buffers."""
        return self._engine.prepare(*self._arguments.reduce(sendbuf, recvbuf, op, root), keep=(sendbuf, recvbuf))

    def prepare_broadcast(self, buf: Any, root: int = 0) -> Prepared:
        """Prepare ``broadcast`` of this buffer."""
        return self._engine.prepare(*self._arguments.broadcast(buf, root), keep=buf)

    def prepare_all_gather(self, sendbuf: Any, recvbuf: Any) -> Prepared:
        """Prepare ``all_gather`` on these buffers."""
        return self._engine.prepare(*self._arguments.all_gather(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def prepare_reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp = ReduceOp.SUM) -> Prepared:
        """Prepare ``reduce_scatter`` on these buffers."""
        return self._engine.prepare(*self._arguments.reduce_scatter(sendbuf, recvbuf, op), keep=(sendbuf, recvbuf))

    def prepare_all_to_all(self, sendbuf: Any, recvbuf: Any) -> Prepared:
        """Prepare ``all_to_all`` on these buffers."""
        return self._engine.prepare(*self._arguments.all_to_all(sendbuf, recvbuf), keep=(sendbuf, recvbuf))

    def prepare_gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> Prepared:
        """Prepare ``gather`` on these buffers."""
        return self._engine.prepare(*self._arguments.gather(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def prepare_scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Prepared:
        """Prepare ``scatter`` on these buffers."""
        return self._engine.prepare(*self._arguments.scatter(sendbuf, recvbuf, root), keep=(sendbuf, recvbuf))

    def prepare_barrier(self) -> Prepared:
        """Prepare ``barrier``."""
        return self._engine.prepare(*self._arguments.barrier())


__all__ = ["Prepared", "PreparedCollectives"]
