"""Requests on CUDA tensors: launched on a stream, in the order of that stream; no thread of the host waits.

The first call with a CUDA tensor connects the ranks' GPUs; it must be a collective of the group, or a message in a
group of two. Ranks whose GPUs reach each other's memory use the kernels of :mod:`hccl_py.gpu`; others go through host
memory and the engine (:mod:`hccl_py.torch.staging`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork
from torch.futures import Future

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, HcclError
from hccl_py.core.types import DType
from hccl_py.gpu.connect import connect, watch_peers
from hccl_py.gpu.group import DeviceRanks
from hccl_py.torch.dtypes import PLAIN
from hccl_py.torch.requests import Request
from hccl_py.torch.streams import new_event, new_stream
from hccl_py.torch.tensors import Copy, copy_home


class DeviceWork(TorchWork):
    """What a stream will have done. ``wait`` makes the current stream wait; the host goes on."""

    def __init__(self, ranks: DeviceRanks, result: list[Tensor], device: torch.device, event: Any, stream: Any) -> None:
        super().__init__()
        self._ranks = ranks
        self._result = result
        self._device = device
        self._event = event  # None: it was issued on the stream of the caller
        self._stream = stream
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait. Raises what kernels have reported so far."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        if self._ranks.failed:
            self._ranks.check()
        return True

    @staticmethod
    def all_of(works: Sequence[DeviceWork]) -> DeviceWork:
        """Several works of one group as one: they were issued on one stream, so the last is done when all are."""
        last = works[-1]
        result = [tensor for work in works for tensor in work._result]
        return DeviceWork(last._ranks, result, last._device, last._event, last._stream)

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """True once the device is done, or has given up."""
        event = self._event
        if event is None:
            event = new_event()
            event.record(torch.cuda.current_stream(self._device))
        return bool(event.query()) or self._ranks.failed

    def is_success(self) -> bool:
        """True if it is done and nothing was reported."""
        return self.is_completed() and not self._ranks.failed

    def exception(self) -> Exception | None:
        """What was reported, if anything."""
        try:
            self._ranks.check()
        except HcclError as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """The result tensors, for use on the current stream."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """Messages on devices come from the rank that was named."""
        raise ConfigError("a message between GPUs has no source but the one that recv named")

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future whose values are for use on the stream that is current where they are taken."""
        if self._future is None:
            future: Future[Any] = Future(devices=[self._device])
            if self._event is None:
                future.set_result(self._result)
            else:
                before = torch._C._cuda_getCurrentStream(self._device.index)
                torch._C._cuda_setStream(self._stream.stream_id, self._device.index, self._stream.device_type)
                try:
                    future.set_result(self._result)
                finally:
                    torch._C._cuda_setStream(*before)
            self._future = future
        return self._future


class _Launched(DeviceWork):
    """What was issued on the stream of the caller: one for all such calls of which nobody asks for more than wait()."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raise what kernels have reported so far."""
        if self._ranks.has_failed():
            self._ranks.check()
        return True


class DeviceGroupOfTensors:
    """The GPU of one rank in a process group.

    Args:
        exchange: as :class:`~hccl_py.gpu.group.DeviceRanks` takes it.

    Raises:
        TransportUnavailableError: the GPUs do not reach each other; the message says which and why. All ranks raise.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        exchange: Callable[[bytes], list[bytes]],
        env: Env,
        timeout_s: float,
    ) -> None:
        self.device = device
        self.size = size
        self._wire = DType.BFLOAT16 if env.gpu_wire == "bf16" else None
        self._side: Any = None
        index = device.index
        self._stream_of: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._index = index
        major, minor = torch.cuda.get_device_capability(index)
        with torch.cuda.device(index):
            self.ranks = connect(rank, size, index, f"sm_{major}{minor}", exchange, env, timeout_s)
        self._launched = _Launched(self.ranks, [], device, None, None)
        self._watch = watch_peers(self.ranks, exchange)

    def issue(self, request: Request, asynchronous: bool) -> DeviceWork:
        """Launch a collective: on the current stream, or asynchronously on one of our own."""
        if request.dtype is DType.FLOAT32 and self._wire is not None and request.collective == 0 and request.op <= 1:
            wire: DType | None = self._wire
        else:
            wire = None

        def launch(stream: int) -> None:
            if request.in_counts is None or request.out_counts is None:
                self.ranks.run(
                    request.collective,
                    request.op,
                    request.dtype,
                    request.root,
                    request.in_ptr,
                    request.out_ptr,
                    request.count,
                    stream,
                    wire,
                    asynchronous,
                )
            else:
                item = request.dtype.itemsize
                send = _parts(request.in_ptr, request.in_counts, item)
                recv = _parts(request.out_ptr, request.out_counts, item)
                self.ranks.run_parts(*send, *recv, stream)

        return self._on_stream(launch, request.keep, request.copies, request.result, asynchronous)

    def quick_all_reduce(self, tensor: Tensor, op: int, asynchronous: bool) -> DeviceWork | None:
        """An all_reduce in place of a plain tensor, in a few microseconds less. None: take the long way.

        Args:
            op: number of a :class:`~hccl_py.core.types.ReduceOp`.
        """
        plain = PLAIN.get(tensor.dtype)
        index = self._index
        if (
            plain is None
            or not plain[1][op]
            or tensor.get_device() != index
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
            or tensor.is_neg()
        ):
            return None
        dtype, ptr, current = plain[0], tensor.data_ptr(), self._stream_of(index)
        wire = self._wire if self._wire is not None and dtype == DType.FLOAT32 and op <= 1 else dtype
        if not asynchronous:
            if self.ranks.launch(0, op, dtype, wire, 0, ptr, ptr, tensor.numel(), current):
                return None  # its kernels are not loaded
            return self._launched
        side = self._side
        if side is None:
            side = self._side = new_stream(self.device)
        stream = side.cuda_stream
        self.ranks.order(current, stream)
        if self.ranks.launch(0, op, dtype, wire, 0, ptr, ptr, tensor.numel(), stream, True):
            return None
        tensor.record_stream(side)
        event = new_event()
        event.record(side)
        return DeviceWork(self.ranks, [tensor], self.device, event, side)

    def messages(self, sends: Sequence[tuple[Tensor, int]], recvs: Sequence[tuple[Tensor, int]]) -> DeviceWork:
        """Several messages at once: ``(tensor, peer)`` each. Those between two ranks match in order."""
        result = [tensor for tensor, _ in recvs]

        def launch(stream: int) -> None:
            outgoing, incoming = list(sends), list(recvs)
            while outgoing or incoming:  # a launch takes one message a peer and direction
                send, outgoing = _first_of_each(outgoing, self.size)
                recv, incoming = _first_of_each(incoming, self.size)
                self.ranks.run_parts(*send, *recv, stream, message=True)

        keep = tuple(tensor for tensor, _ in (*sends, *recvs))
        return self._on_stream(launch, keep, (), result, True)

    def _on_stream(
        self,
        launch: Callable[[int], None],
        keep: Sequence[Tensor],
        copies: Sequence[Copy],
        result: list[Tensor],
        asynchronous: bool,
    ) -> DeviceWork:
        device = self.device
        if not asynchronous:
            launch(self._stream_of(self._index))
            if copies:
                copy_home(copies)
            return DeviceWork(self.ranks, result, device, None, None)
        side = self._side
        if side is None:
            side = self._side = new_stream(device)
        self.ranks.order(self._stream_of(self._index), side.cuda_stream)
        launch(side.cuda_stream)
        if copies:
            with torch.cuda.stream(side):
                copy_home(copies)
        for tensor in keep:
            tensor.record_stream(side)
        event = new_event()
        event.record(side)
        return DeviceWork(self.ranks, result, device, event, side)

    def close(self) -> None:
        """Wait for what this GPU has under way, then let the memory go. Idempotent."""
        self._watch.close()
        if not self.ranks.failed:
            torch.cuda.synchronize(self.device)
        self.ranks.close()


class MessageBatch:
    """Messages that were asked for one by one and are launched together, at the first wait for one of them.

    Launched one by one, two large sends to each other would each wait for the receive behind the other.
    """

    def __init__(self, launch: Callable[[MessageBatch], TorchWork]) -> None:
        self.sends: list[tuple[Tensor, int]] = []
        self.recvs: list[tuple[Tensor, int]] = []
        self._launch = launch
        self._work: TorchWork | None = None

    def work(self) -> TorchWork:
        """The work of all of them, launched by now."""
        if self._work is None:
            self._work = self._launch(self)
        return self._work


class MessageWork(TorchWork):
    """A send or a receive between GPUs."""

    def __init__(self, batch: MessageBatch, tensor: Tensor) -> None:
        super().__init__()
        self._batch = batch
        self._tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the batch of this message."""
        return bool(self._batch.work().wait())

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """True once the device is done."""
        return bool(self._batch.work().is_completed())

    def is_success(self) -> bool:
        """True if it is done and nothing was reported."""
        return bool(self._batch.work().is_success())

    def result(self) -> list[Tensor]:
        """The tensor, for use on the current stream."""
        self.wait()
        return [self._tensor]


def device_of(tensors: Sequence[Tensor], call: str) -> torch.device | None:
    """The GPU that all ``tensors`` are on, or None for tensors in host memory.

    Raises:
        ConfigError: they are on several devices.
    """
    first = tensors[0].device if tensors else None
    if first is None or first.type == "cpu":
        return None
    for tensor in tensors:
        if tensor.device != first:
            raise ConfigError(f"{call}: tensors on {first} and {tensor.device} in one call")
    return first


def _parts(start: int, counts: Sequence[int], item: int) -> tuple[list[int], list[int]]:
    """Addresses and sizes of blocks one after the other."""
    sizes = [count * item for count in counts]
    addresses = [start + sum(sizes[:index]) for index in range(len(sizes))]
    return addresses, sizes


def _first_of_each(
    messages: Sequence[tuple[Tensor, int]], size: int
) -> tuple[tuple[list[int], list[int]], list[tuple[Tensor, int]]]:
    """The first message of each peer, by rank, and the others. An empty one has an address that nobody reads."""
    addresses, sizes, rest = [0] * size, [0] * size, []
    for tensor, peer in messages:
        if addresses[peer]:
            rest.append((tensor, peer))
        else:
            addresses[peer] = tensor.data_ptr() or 16
            sizes[peer] = tensor.numel() * tensor.element_size()
    return (addresses, sizes), rest
