"""DeviceCollectives: what a Communicator does with arrays in GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hccl_py.arguments import Arguments
from hccl_py.buffers import Buffer
from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, DesyncError
from hccl_py.core.types import Collective, DType, ReduceOp, allowed
from hccl_py.gpu.arrays import describe_on_device, stream_of
from hccl_py.gpu.connect import connect, watch_peers
from hccl_py.gpu.driver import Driver
from hccl_py.gpu.group import DeviceRanks
from hccl_py.gpu.watch import PeerWatch


class _Seen(NamedTuple):
    """An array of a call."""

    buffer: Buffer
    stream: int
    what: str


class DeviceCollectives:
    """The GPU of one rank: collectives in the order of streams, as NCCL has it; no call but the first blocks the host.

    A call runs on the stream of the array that gets the result, waits for what the streams of its other arrays hold by
    then, and they wait for it. The first call connects the GPUs: all ranks must make it, on arrays in GPU memory. A
    rank's GPU is that of its first array.

    Args:
        exchange: gives this rank's bytes to all, returns those of all in rank order.
        driver, join: what makes the driver's words and connects the ranks; tests have others.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Callable[[bytes], list[bytes]],
        env: Env,
        timeout_s: float,
        driver: Callable[[], Driver] = Driver,
        join: Callable[..., DeviceRanks] = connect,
    ) -> None:
        self._rank = rank
        self._size = size
        self._exchange = exchange
        self._env = env
        self._timeout_s = timeout_s
        self._join = join
        self._driver = driver()
        self._ordinal = -1
        self._ranks: DeviceRanks | None = None
        self._watch: PeerWatch | None = None

    def run(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Launch the collective ``name`` with the arguments of the Communicator's method."""
        seen: list[_Seen] = []

        def look(data: Any, what: str, writable: bool = False) -> Buffer:
            buffer = describe_on_device(data, what, writable)
            seen.append(_Seen(buffer, stream_of(data), what))
            return buffer

        call = getattr(Arguments(self._rank, self._size, look), name)(*arguments)
        collective, op, dtype, root, in_ptr, out_ptr, count = call
        if collective.reduces and not allowed(op, dtype):
            raise ConfigError(f"{name}: {ReduceOp(op).name} is not defined on {dtype.name.lower()}")
        self._check_gpu(seen)
        if self._size == 1:
            if in_ptr != out_ptr and count:
                self._copy(seen, out_ptr, in_ptr, count * dtype.itemsize)
            return
        ranks = self._connected(name)
        narrow = self._env.gpu_wire == "bf16" and collective is Collective.ALL_REDUCE and dtype is DType.FLOAT32
        wire = DType.BFLOAT16 if narrow and op in (ReduceOp.SUM, ReduceOp.AVG) else None
        self._on_stream(
            ranks, seen, lambda stream: ranks.run(collective, op, dtype, root, in_ptr, out_ptr, count, stream, wire)
        )

    def message(self, send: tuple[Any, int] | None, recv: tuple[Any, int] | None, tag: int) -> None:
        """Launch a message ``(array, peer)`` out, one in, or both at once."""
        if tag:
            raise ConfigError(f"tag {tag}: messages between GPUs have no tags; those of two ranks match in order")
        parts = [[0] * self._size for _ in range(4)]  # addresses and bytes, out and in
        seen = []
        for row, message, what in ((0, send, "sendbuf"), (2, recv, "recvbuf")):
            if message is None:
                continue
            data, peer = message
            if not 0 <= peer < self._size:
                raise ConfigError(f"a message between GPUs needs the rank of its peer, 0 to {self._size - 1}: {peer}")
            if peer == self._rank and (send is None or recv is None or send[1] != recv[1]):
                raise ConfigError("a rank sends to itself on a GPU by sendrecv, out and in at once")
            buffer = describe_on_device(data, what, writable=row == 2)
            seen.append(_Seen(buffer, stream_of(data), what))
            parts[row][peer], parts[row + 1][peer] = buffer.ptr or 16, buffer.nbytes
        self._check_gpu(seen)
        if self._size == 1:
            out, incoming = seen[0].buffer, seen[1].buffer
            if out.nbytes != incoming.nbytes:
                raise ConfigError(f"sendrecv: {out.nbytes} bytes go out and {incoming.nbytes} come in")
            self._copy(seen, incoming.ptr, out.ptr, out.nbytes)
            return
        if self._ranks is None and self._size > 2:
            raise ConfigError("the first call on arrays in GPU memory connects all ranks: make it a collective")
        ranks = self._connected("a message")
        self._on_stream(
            ranks, seen, lambda stream: ranks.run_parts(parts[0], parts[1], parts[2], parts[3], stream, True)
        )

    def _copy(self, seen: list[_Seen], to: int, source: int, num_bytes: int) -> None:
        """What a world of one does; without kernels, the host puts two streams in order."""
        several = len({array.stream for array in seen}) > 1
        if several:
            self._driver.synchronize(self._ordinal)
        self._driver.copy(to, source, num_bytes, _main_stream(seen), self._ordinal)
        if several:
            self._driver.synchronize(self._ordinal)

    def _on_stream(self, ranks: DeviceRanks, seen: list[_Seen], launch: Callable[[int], None]) -> None:
        stream = _main_stream(seen)
        others = {array.stream for array in seen} - {stream}
        for other in others:
            ranks.order(other, stream)
        launch(stream)
        for other in others:
            ranks.order(stream, other)

    def _check_gpu(self, seen: list[_Seen]) -> None:
        """All arrays on the one GPU of this rank, which the first of them chooses."""
        for buffer, _, what in seen:
            if not buffer.size:
                continue
            ordinal = self._driver.device_of(buffer.ptr, what)
            if self._ordinal < 0:
                self._ordinal = ordinal
            elif ordinal != self._ordinal:
                raise ConfigError(f"{what} is on GPU {ordinal}, but rank {self._rank} began on GPU {self._ordinal}")
        if self._ordinal < 0:
            raise ConfigError("the first call on arrays in GPU memory needs one with elements, to know the GPU")

    def _connected(self, name: str) -> DeviceRanks:
        if self._ranks is None:
            try:
                arch = self._driver.arch(self._ordinal)
                self._ranks = self._join(
                    self._rank, self._size, self._ordinal, arch, self._exchange, self._env, self._timeout_s
                )
            except DesyncError as error:
                text = (
                    f"rank {self._rank} called {name} on arrays in GPU memory, for the first time, and another rank "
                    f"did something else, such as the same on arrays in host memory: {error}"
                )
                raise DesyncError(text, ours=error.ours, theirs=error.theirs, peer=error.peer) from None
            self._watch = watch_peers(self._ranks, self._exchange)
        return self._ranks

    def close(self) -> None:
        """Wait for what this GPU has under way, then let the memory go. Idempotent."""
        if self._watch is not None:
            self._watch.close()
        if self._ranks is not None:
            if not self._ranks.failed:
                self._driver.synchronize(self._ordinal)
            self._ranks.close()


def _main_stream(seen: list[_Seen]) -> int:
    """The stream of the array that gets the result here, else of the only one."""
    return next((array.stream for array in seen if array.what == "recvbuf"), seen[-1].stream)
