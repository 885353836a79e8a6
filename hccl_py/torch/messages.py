# mypy: disable-error-code="override,assignment"
# Torch's stubs overload these methods by argument type; here one method takes all forms.
"""The part of the process group between single ranks: messages, and what puts ranks in step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from hccl_py.core.errors import ConfigError
from hccl_py.torch import tensors as memory
from hccl_py.torch.group_base import GroupBase
from hccl_py.torch.monitored import MonitoredBarrier
from hccl_py.torch.work import HcclWork, to_seconds


class MessagingGroup(GroupBase):
    """What :class:`~hccl_py.torch.process_group.HcclProcessGroup` has beside collectives."""

    def send(self, tensors: Sequence[Tensor] | Tensor, dst: int, tag: int = 0) -> HcclWork:
        """Send one tensor to rank ``dst``."""
        tensor = one(tensors, "send")
        self._check_peer(dst, "send")
        if tensor.is_cuda:
            return self._message(tensor, dst, "send", True)
        memory.check(tensor, "send")
        home = memory.readable(tensor)
        handle = self._open().start_send(home.data_ptr(), _nbytes(home), dst, tag, keep=(home, tensor))
        return self._track(HcclWork(handle, [tensor], self._completer, in_order=False))

    def recv(self, tensors: Sequence[Tensor] | Tensor, src: int, tag: int = 0) -> HcclWork:
        """Receive one tensor from rank ``src``."""
        self._check_peer(src, "recv")
        tensor = one(tensors, "recv")
        if tensor.is_cuda:
            return self._message(tensor, src, "recv", False)
        return self._receive(tensor, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor] | Tensor, tag: int = 0) -> HcclWork:
        """Receive one tensor from whoever sends it; the work knows who did."""
        return self._receive(one(tensors, "recv"), -1, tag)

    recvAnysource = recv_anysource

    def _receive(self, tensor: Tensor, src: int, tag: int) -> HcclWork:
        if tensor.is_cuda:
            raise ConfigError("recv: a tensor on a GPU needs the rank that sends; recv from anybody is for CPU tensors")
        memory.check(tensor, "recv")
        home, copies = memory.writable(tensor, "recv")
        handle = self._open().start_recv(home.data_ptr(), _nbytes(home), src, tag, keep=(home, tensor))
        return self._track(HcclWork(handle, [tensor], self._completer, copies, in_order=False))

    def _check_peer(self, peer: int, call: str) -> None:
        if not 0 <= peer < self._size or peer == self._rank:
            raise ConfigError(f"{call}: rank {peer} is not another rank of this group of {self._size}")

    def resync(self) -> list[str]:
        """Go on after an error, or where ranks are no longer at the same place of their program. All ranks must call.

        What is under way fails; the ranks connect anew: see :meth:`Engine.resync <hccl_py.engine.Engine.resync>`.

        Returns:
            by rank, the line of its latest call at which ranks disagreed; "" where there was none.
        """
        places = self._open().resync()
        self._leave_device()
        self._staging = self._batch = self._coalescing = None
        self._sequence = 0
        self._resyncs += 1
        self._monitored = None
        return places

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier by the store, whose error names who did not come; a rank that is late finds the group as it was.

        Args:
            wait_all_ranks: name all that are missing, not the first only.
        """
        if self._monitored is None:
            store = PrefixStore(f"hccl_py/monitored/{self._resyncs}/", self.get_group_store())
            self._monitored = MonitoredBarrier(store, self._rank, self._size)
        seconds = to_seconds(timeout)
        self._open()
        self._monitored.meet(self._engine.timeout_s if seconds is None else seconds, wait_all_ranks)


def one(tensors: Sequence[Tensor] | Tensor, call: str) -> Tensor:
    """The single tensor that ``tensors`` is or holds."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ConfigError(f"{call}: {len(tensors)} tensors given; a rank has one device and passes one tensor a call")
    return tensors[0]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
