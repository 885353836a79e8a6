"""What one rank alone can judge of a collective's arguments, and what becomes of them: addresses and counts."""

from __future__ import annotations

from typing import Any, Protocol

from hccl_py.buffers import Buffer, describe
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp

CallArgs = tuple[Collective, ReduceOp, DType, int, int, int, int]  # of Engine.run, start and prepare

_NOTHING = Buffer(0, 0, DType.UINT8)


class Describe(Protocol):
    """Tells where an array lies, as :func:`~hccl_py.buffers.describe` does for those in host memory."""

    def __call__(self, data: Any, what: str, writable: bool = False) -> Buffer:
        """The buffer. Raises ConfigError."""


class Arguments:
    """The arguments of the collectives of one rank; each method raises ConfigError for what is wrong here."""

    def __init__(self, rank: int, size: int, look: Describe = describe) -> None:
        self._rank = rank
        self._size = size
        self._look = look

    def all_reduce(self, sendbuf: Any, recvbuf: Any, op: ReduceOp) -> CallArgs:
        """Equal buffers, or one."""
        if recvbuf is None:
            out = self._look(sendbuf, "sendbuf", writable=True)
        else:
            out = self._look(recvbuf, "recvbuf", writable=True)
        data = out if recvbuf is None else self._look(sendbuf, "sendbuf")
        _same("all_reduce", data, out, 1)
        return Collective.ALL_REDUCE, op, data.dtype, 0, data.ptr, out.ptr, data.size

    def reduce(self, sendbuf: Any, recvbuf: Any, op: ReduceOp, root: int) -> CallArgs:
        """Equal buffers, or one; only the root's receives."""
        self.check_root(root)
        data = self._look(sendbuf, "sendbuf")
        out = _NOTHING
        if self._rank == root:
            out = self._look(sendbuf, "sendbuf", True) if recvbuf is None else self._look(recvbuf, "recvbuf", True)
            _same("reduce", data, out, 1)
        return Collective.REDUCE, op, data.dtype, root, data.ptr, out.ptr, data.size

    def broadcast(self, buf: Any, root: int) -> CallArgs:
        """One buffer, which the root may only read."""
        self.check_root(root)
        data = self._look(buf, "buf", writable=self._rank != root)
        return Collective.BROADCAST, ReduceOp.SUM, data.dtype, root, data.ptr, data.ptr, data.size

    def all_gather(self, sendbuf: Any, recvbuf: Any) -> CallArgs:
        """``recvbuf`` is as large as all that is sent."""
        data, out = self._look(sendbuf, "sendbuf"), self._look(recvbuf, "recvbuf", writable=True)
        _same("all_gather", data, out, self._size)
        return Collective.ALL_GATHER, ReduceOp.SUM, data.dtype, 0, data.ptr, out.ptr, data.size

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: ReduceOp) -> CallArgs:
        """``sendbuf`` is as large as all that is received."""
        data, out = self._look(sendbuf, "sendbuf"), self._look(recvbuf, "recvbuf", writable=True)
        _same("reduce_scatter", out, data, self._size)
        return Collective.REDUCE_SCATTER, op, data.dtype, 0, data.ptr, out.ptr, out.size

    def all_to_all(self, sendbuf: Any, recvbuf: Any) -> CallArgs:
        """Equal buffers, of one block a rank."""
        data, out = self._look(sendbuf, "sendbuf"), self._look(recvbuf, "recvbuf", writable=True)
        _same("all_to_all", data, out, 1)
        if data.size % self._size:
            raise ConfigError(f"all_to_all: {data.size} elements cannot be cut in {self._size} equal blocks")
        return Collective.ALL_TO_ALL, ReduceOp.SUM, data.dtype, 0, data.ptr, out.ptr, data.size // self._size

    def gather(self, sendbuf: Any, recvbuf: Any, root: int) -> CallArgs:
        """The root's ``recvbuf`` is as large as all that is sent."""
        self.check_root(root)
        data, out = self._look(sendbuf, "sendbuf"), _NOTHING
        if self._rank == root:
            out = self._look(recvbuf, "recvbuf", writable=True)
            _same("gather", data, out, self._size)
        return Collective.GATHER, ReduceOp.SUM, data.dtype, root, data.ptr, out.ptr, data.size

    def scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> CallArgs:
        """The root's ``sendbuf`` is as large as all that is received."""
        self.check_root(root)
        data, out = _NOTHING, self._look(recvbuf, "recvbuf", writable=True)
        if self._rank == root:
            data = self._look(sendbuf, "sendbuf")
            _same("scatter", out, data, self._size)
        return Collective.SCATTER, ReduceOp.SUM, out.dtype, root, data.ptr, out.ptr, out.size

    def barrier(self) -> CallArgs:
        """None."""
        return Collective.BARRIER, ReduceOp.SUM, DType.UINT8, 0, 0, 0, 0

    def check_root(self, root: int) -> None:
        """Raise ConfigError unless it is a rank."""
        if not 0 <= root < self._size:
            raise ConfigError(f"root {root} is outside a world of {self._size}")


def check_tag(tag: int) -> int:
    """The tag itself. Raises ConfigError unless it is a number of 64 bits."""
    if not 0 <= tag < 1 << 64:
        raise ConfigError(f"tag {tag} is not a number of 0 to 2**64 - 1")
    return tag


def _same(name: str, small: Buffer, large: Buffer, blocks: int) -> None:
    """Raise unless ``large`` is ``blocks`` times ``small``."""
    if small.dtype is not large.dtype:
        types = f"{small.dtype.name.lower()} and {large.dtype.name.lower()}"
        raise ConfigError(f"{name}: the buffers have different element types, {types}")
    if small.size * blocks != large.size:
        raise ConfigError(
            f"{name}: {blocks} blocks of {small.size} elements are not the {large.size} elements of the other buffer"
        )
