"""DeviceRanks: the ranks of a group that reach each other's GPU memory, and the collectives on addresses there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from hccl_py import _native
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.gpu.compiler import Compiler, variant

DEFAULT_SMS = 64
SMALL_BYTES = 1024 * 1024
CARRY_ASIDE_BYTES = 1024 * 1024
NEVER = (1 << 64) - 1


class DeviceRanks:
    """One rank's side. Calls return at once; what they do is in the order of their stream.

    Args:
        kind: ``cuda``, or ``host`` for ranks that are threads of this process (a stream is the caller then).
        ordinal: number of the device.
        arch: what to compile for, ``sm_90`` or the like; ``host``.
        exchange: gives this rank's bytes to all, returns those of all in rank order. Used once, at the start.
        timeout_s: how long a kernel waits for a peer.
        sms: multiprocessors that a kernel may use, at most, the same on all ranks (0: 64).
        cache: folder for compiled kernels.

    Raises:
        TransportUnavailableError: no driver, or the GPUs do not reach each other's memory.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Callable[[bytes], list[bytes]],
        *,
        kind: str = "cuda",
        ordinal: int = 0,
        arch: str = "host",
        timeout_s: float = 600.0,
        sms: int = 0,
        cache: Path | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.sms = sms or DEFAULT_SMS
        self._compiler = Compiler(arch, size, cache)
        self._native = _native.DeviceGroup(kind, ordinal, rank, size)
        self.tune()
        for peer, handle in enumerate(exchange(self._native.handle())):
            if peer != rank:
                self._native.map(peer, handle)
        self._close = weakref.finalize(self, self._native.close)
        self.launch = self._native.run  # the arguments of run as plain numbers; 0, or kernels are missing
        self.order = self._native.order  # of two streams: the second waits for what the first holds now
        self.has_failed = self._native.failed

    def tune(
        self,
        sms: int | None = None,
        small_bytes: int = SMALL_BYTES,
        small_threads: int = 0,
        large_threads: int = 0,
        large_blocks: int = 0,
        takers: int = 0,
        batches: int = 0,
        slots: int = 0,
        carry_bytes: int = NEVER,
        carry_aside_bytes: int = CARRY_ASIDE_BYTES,
        carry_piece_bytes: int = 0,
        bulk: bool = True,
    ) -> None:
        """Choose how kernels are launched; the same on all ranks, between the same calls (0: by size).

        Args:
            carry_bytes: from which size on a copy engine carries the data; ``carry_aside_bytes``: of calls ``aside``.
            bulk: push by bulk copies through shared memory where the GPU has them (sm_90).
        """
        self.sms = self.sms if sms is None else sms
        shape = small_threads, large_threads, large_blocks, takers, batches, slots
        carried = carry_bytes, carry_aside_bytes, carry_piece_bytes, bulk
        self._native.set_options(self.timeout_s, self.sms, small_bytes, *shape, *carried)

    def run(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        out_ptr: int,
        count: int,
        stream: int,
        wire: DType | None = None,
        aside: bool = False,
    ) -> None:
        """Launch a collective on ``stream``. Arguments as :meth:`hccl_py.engine.Engine.run`.

        Args:
            wire: type in which elements travel (None: their own); float32 may travel as bfloat16.
            aside: other work is under way beside it, and wants the multiprocessors: a copy engine carries the data.

        Raises:
            DesyncError, CollectiveTimeoutError, PeerLostError, BrokenGroupError: an earlier call went wrong.
        """
        carried = dtype if wire is None else wire
        while missing := self.launch(collective, op, dtype, carried, root, in_ptr, out_ptr, count, stream, aside):
            self._load(missing - 1)

    def run_parts(
        self,
        send: Sequence[int],
        send_bytes: Sequence[int],
        recv: Sequence[int],
        recv_bytes: Sequence[int],
        stream: int,
        message: bool = False,
    ) -> None:
        """Send a part to each rank and receive one from each: addresses and bytes by rank.

        Args:
            message: point to point: nobody waits for ranks without a part, and sizes are not compared.
        """
        s, sb, r, rb = list(send), list(send_bytes), list(recv), list(recv_bytes)
        while missing := self._native.run_parts(s, sb, r, rb, message, stream):
            self._load(missing - 1)

    def _load(self, key: int) -> None:
        self._native.add_kernels(key, self._compiler.image(*variant(key)))

    def check(self) -> None:
        """Raise what a kernel has reported, or what ended the group."""
        self._native.check()

    @property
    def failed(self) -> bool:
        """True once :meth:`check` would raise."""
        return self._native.failed()

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self._native.launches

    def abort(self, why: str, lost: int = -1) -> None:
        """End what is under way, here; later calls raise (PeerLostError if a rank is ``lost``)."""
        self._native.abort(lost, why)

    def close(self) -> None:
        """Give the memory back. Nothing of this group may be under way. Idempotent."""
        self._close()
