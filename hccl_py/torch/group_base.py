"""A process group without its calls: who it is, how requests are issued, and how it ends.

Torch sees a subclass of its own ProcessGroup and uses it as the group itself: no C++ is compiled against torch.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, Store

from hccl_py.core.errors import BrokenGroupError, ConfigError, TransportUnavailableError
from hccl_py.core.types import Collective
from hccl_py.engine import Engine
from hccl_py.torch import tensors as memory
from hccl_py.torch.agreement import Agreement
from hccl_py.torch.completer import Completer
from hccl_py.torch.device import DeviceGroupOfTensors, DeviceWork, MessageBatch, MessageWork, device_of
from hccl_py.torch.monitored import MonitoredBarrier
from hccl_py.torch.requests import Request
from hccl_py.torch.staging import Staging
from hccl_py.torch.work import HcclWork, WorkGroup, to_seconds

_log = logging.getLogger("hccl_py")
GROUPS_OWN = timedelta(milliseconds=-1)  # what options say if the user set no timeout
_JOIN_S = 10.0  # for threads that only have to notice that the engine has stopped


class GroupBase(ProcessGroup):
    """The part of :class:`~hccl_py.torch.process_group.HcclProcessGroup` that all its calls stand on."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        blocking: bool = False,
        exchange: Callable[[bytes], list[bytes]] | None = None,
    ) -> None:
        super().__init__(engine.rank, engine.size)  # type: ignore[call-arg]  # the form that subclasses may use
        self._engine = engine
        self._rank = engine.rank
        self._size = engine.size
        self._store = store
        self._blocking = blocking
        self._group_name = ""
        self._group_desc = "undefined"
        self._sequence = 0
        self._resyncs = 0
        self._coalescing: list[HcclWork] | None = None
        self._exchange = exchange
        self._device: DeviceGroupOfTensors | None = None  # what serves CUDA tensors, from the first on
        self._staging: Staging | None = None
        self._batch: MessageBatch | None = None
        self._monitored: MonitoredBarrier | None = None
        self._agreement = Agreement.of(engine)  # a thorough check before each collective, if asked for
        self._completer = Completer(f"hccl_py-futures-{engine.rank}")
        self._finished = HcclWork(None, [], self._completer)  # of calls after which nobody asks for more than wait()
        # runs once: at shutdown, when the group is collected, or when the interpreter exits
        self._close = weakref.finalize(self, _close, engine, self._completer, os.getpid())

    # Who we are. C++ asks by the first name, Python by the second.

    def getRank(self) -> int:
        """Rank of this process in the group."""
        return self._rank

    def getSize(self) -> int:
        """Number of ranks in the group."""
        return self._size

    rank = getRank
    size = getSize

    def getBackendName(self) -> str:
        """The name under which the backend is registered."""
        return "hccl_py"

    name = getBackendName
    _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """The name that torch gave to the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Called by torch once."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """The description that the user gave."""
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        """Called by torch once."""
        self._group_desc = desc

    def get_group_store(self) -> Store:
        """The store of the group."""
        if self._store is None:
            raise ConfigError("this process group was made without a store")
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if self._exchange else [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def supports_splitting(self) -> bool:
        """False: torch splits groups by new_group."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """False: a batch of sends and receives comes as single calls."""
        return False

    @property
    def supports_time_estimate(self) -> bool:
        """False."""
        return False

    def _set_sequence_number_for_group(self) -> None:
        """Sequence numbers start at 0 on every rank: there is nothing to agree on."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # Coalescing: one work for all that was issued in between.

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device | None = None) -> WorkGroup:
        works, self._coalescing = self._coalescing or [], None
        return self._together(works)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # The end.

    def shutdown(self) -> None:
        """Stop the engine and the threads of this group; what is still under way fails. Idempotent."""
        self._leave_device()
        self._close()

    def abort(self) -> None:
        """Make everything that is under way fail now, here and on the other ranks, then :meth:`shutdown`."""
        if self._close.alive:
            self._engine.abort("the process group was aborted")
        if self._device is not None:
            self._device.ranks.abort("the process group was aborted")
        self._leave_device()
        self._close()

    # Inside.

    def _issue(self, request: Request, opts: Any, timeout: timedelta | None = None) -> HcclWork:
        self._check_caller(request.collective.name.lower())
        engine = self._open()
        if self._agreement is not None:
            self._agreement.check(request, self._sequence)
        if request.keep and request.keep[0].is_cuda:
            return self._issue_on_device(request, opts)
        if request.collective is Collective.BARRIER and self._device is not None:
            torch.cuda.current_stream(self._device.device).synchronize()
        if timeout is None and opts is not None:
            timeout = getattr(opts, "timeout", None)
        timeout_s = None if timeout is None or timeout == GROUPS_OWN else to_seconds(timeout)
        blocking = self._coalescing is None and (self._blocking or not getattr(opts, "asyncOp", True))
        self._sequence += 1
        if blocking and timeout_s is None:
            request.run(engine)
            return HcclWork(None, request.result, self._completer)
        work = HcclWork(request.start(engine), request.result, self._completer, request.copies)
        if blocking and timeout_s is not None:
            work.wait(timedelta(seconds=timeout_s))
        return self._track(work)

    def _check_caller(self, call: str) -> None:
        if self._completer.is_current():
            raise ConfigError(
                f"{call} was called from the callback of a future. Callbacks run when results come in, in an order "
                "that differs between ranks; wait() for the work instead, or make the group with "
                "hccl_py.torch.Options(blocking=True)"
            )

    # CUDA tensors.

    def _issue_on_device(self, request: Request, opts: Any) -> HcclWork:
        device = device_of(request.keep, request.collective.name.lower())
        assert device is not None
        if self._batch is not None:
            self._batch.work()
        self._sequence += 1
        served = self._device or self._staging or self._meet(device)
        if served.device != device:
            raise ConfigError(f"tensors on {device}, but this rank of the group began on {served.device}")
        asynchronous = self._coalescing is not None or (not self._blocking and getattr(opts, "asyncOp", True))
        if isinstance(served, Staging):
            served.run(request)
            return self._track(HcclWork(None, request.result, self._completer))
        return self._track(served.issue(request, asynchronous))  # type: ignore[arg-type]  # a work all the same

    def _meet(self, device: torch.device) -> DeviceGroupOfTensors | Staging:
        """Connect the ranks' GPUs. All ranks come here with their first call."""
        if self._exchange is None or self._size == 1:
            self._staging = Staging(self._engine, device)
            return self._staging
        engine = self._engine
        try:
            self._device = DeviceGroupOfTensors(
                self._rank, self._size, device, self._exchange, engine.env, engine.timeout_s
            )
            return self._device
        except TransportUnavailableError as error:
            _log.info("GPU tensors go through host memory: %s", error)
            self._staging = Staging(engine, device)
            return self._staging

    def _message(self, tensor: Tensor, peer: int, call: str, outgoing: bool) -> HcclWork:
        """A send or a receive between GPUs: launched with its neighbours, when one is waited for."""
        memory.check(tensor, call)
        if not memory.is_plain(tensor):
            raise ConfigError(f"{call}: a tensor on a GPU must be contiguous to be a message; use .contiguous()")
        if self._batch is None:
            self._batch = MessageBatch(self._move)
        (self._batch.sends if outgoing else self._batch.recvs).append((tensor, peer))
        return MessageWork(self._batch, tensor)  # type: ignore[return-value]  # a work all the same

    def _move(self, batch: MessageBatch) -> Any:
        sends, recvs = batch.sends, batch.recvs
        if batch is self._batch:
            self._batch = None
        device = device_of([tensor for tensor, _ in (*sends, *recvs)], "send or recv")
        assert device is not None
        served = self._device or self._staging or self._meet(device)
        if isinstance(served, DeviceGroupOfTensors):
            return served.messages(sends, recvs)
        torch.cuda.current_stream(device).synchronize()
        homes = [torch.empty_like(tensor, device="cpu") for tensor, _ in recvs]
        outgoing = [tensor.cpu() for tensor, _ in sends]
        works = [
            self._engine.start_send(home.data_ptr(), home.numel() * home.element_size(), peer, 0, keep=home)
            for home, (_, peer) in zip(outgoing, sends, strict=True)
        ] + [
            self._engine.start_recv(home.data_ptr(), home.numel() * home.element_size(), peer, 0, keep=home)
            for home, (_, peer) in zip(homes, recvs, strict=True)
        ]
        for work in works:
            work.wait()
        for home, (tensor, _) in zip(homes, recvs, strict=True):
            tensor.copy_(home)
        return HcclWork(None, [tensor for tensor, _ in recvs], self._completer)

    def _leave_device(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def _issue_all(self, calls: Sequence[Request], opts: Any, timeout: timedelta | None = None) -> WorkGroup:
        return self._together([self._issue(request, opts, timeout) for request in calls])

    def _together(self, works: Sequence[HcclWork]) -> WorkGroup:
        """Several works as one."""
        on_device = [work for work in works if isinstance(work, DeviceWork)]
        if on_device and len(on_device) == len(works):
            return DeviceWork.all_of(on_device)  # type: ignore[return-value]  # a work all the same
        return WorkGroup(works, self._completer)

    def _issue_some(self, calls: Sequence[Request], opts: Any, timeout: timedelta | None) -> HcclWork | WorkGroup:
        return self._issue(calls[0], opts, timeout) if len(calls) == 1 else self._issue_all(calls, opts, timeout)

    def _track(self, work: HcclWork) -> HcclWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _open(self) -> Engine:
        if not self._close.alive:
            raise BrokenGroupError(f"process group {self._group_name!r} has been shut down; make a new one")
        return self._engine


def _close(engine: Engine, completer: Completer, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child ends; the group is its parent's
    engine.close()  # what is under way fails, so that the threads that wait for it end
    completer.close(_JOIN_S)
