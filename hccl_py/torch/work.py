"""Works: what c10d hands out for a call. They raise errors, hold tensors, and make futures only when asked.

C++ callers (the DDP reducer, functional collectives) use ``wait`` and ``get_future`` only. A future resolved with a
plain Python exception crashes them, so it is passed through ``then``, which makes a real C++ error of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork
from torch.futures import Future

from hccl_py.torch.completer import Completer, resolve
from hccl_py.torch.tensors import Copy, copy_home


class Handle(Protocol):
    """An operation under way in the engine."""

    @property
    def source(self) -> int:
        """The sender, of a message that was received."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until done; raise if it failed or nobody came in time."""

    def done(self) -> bool:
        """True once it ended, well or badly."""


def to_seconds(timeout: timedelta | None) -> float | None:
    """c10d says "the group's timeout" by None, zero or a negative time."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None


class _Waitable(TorchWork):
    """What both works share: the future."""

    _in_order = True
    _future: Any = None

    def __init__(self, completer: Completer) -> None:
        TorchWork.__init__(self)
        self._completer = completer

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the result tensors. Callbacks must not issue collectives on this group."""
        if self._future is None:
            raw: Future[Any] = Future()
            future = raw.then(lambda done: done.value())
            if self.is_completed():
                resolve(raw, self)
            else:
                self._completer.submit(raw, self, in_order=self._in_order)
            self._future = future
        return self._future


class HcclWork(_Waitable):
    """The work of one operation.

    Args:
        handle: the operation in the engine, or None if it is already complete.
        result: what the future holds.
        copies: staged results, brought home by the first who sees that the operation is done.
        completer: resolves futures that are asked for early.
        in_order: False for point-to-point messages.
    """

    # What most works never have, so that making one stays cheap.
    _copies: Sequence[Copy] = ()
    _lock: threading.Lock | None = None
    _error: Exception | None = None
    _source = -1

    def __init__(
        self,
        handle: Handle | None,
        result: list[Tensor],
        completer: Completer,
        copies: Sequence[Copy] = (),
        in_order: bool = True,
    ) -> None:
        TorchWork.__init__(self)
        self._completer = completer
        self._handle = handle
        self._result = result
        if copies:
            self._copies = copies
            self._lock = threading.Lock()
        if not in_order:
            self._in_order = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done. Raises what the engine raises: DesyncError, PeerLostError, CollectiveTimeoutError, ..."""
        if self._handle is not None:
            self._finish(to_seconds(timeout))
        elif self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True once the operation ended, well or badly; then the results are in place."""
        handle = self._handle
        if handle is None:
            return True
        if not handle.done():
            return False
        try:
            self._finish(None)
        except Exception:
            return True
        return True

    def is_success(self) -> bool:
        """True if the operation ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The error of a failed operation."""
        return self._error

    def result(self) -> list[Tensor]:
        """The result tensors, once done."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """The sender of a received message."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def _finish(self, timeout_s: float | None) -> None:
        handle = self._handle
        if handle is None:
            return
        try:
            handle.wait(timeout_s)
        except Exception as error:
            if handle.done():  # else it was only this wait that was too short
                self._error = error
                self._handle = None
            raise
        if self._lock is not None:
            with self._lock:
                copy_home(self._copies)
                self._copies = ()
        self._source = handle.source
        self._handle = None


class WorkGroup(_Waitable):
    """Several works as one: done when all are."""

    def __init__(self, works: Sequence[HcclWork], completer: Completer) -> None:
        super().__init__(completer)
        self._in_order = all(work._in_order for work in works)
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are done; raises the first error, after the others have ended."""
        first: Exception | None = None
        for work in self._works:
            try:
                work.wait(timeout)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return True

    def is_completed(self) -> bool:
        """True once all have ended."""
        return all([work.is_completed() for work in self._works])

    def is_success(self) -> bool:
        """True if all ended well."""
        return all([work.is_success() for work in self._works])

    def exception(self) -> Exception | None:
        """The first error, if any failed."""
        return next((work.exception() for work in self._works if work.exception() is not None), None)

    def result(self) -> list[Tensor]:
        """The result tensors of all works, in order."""
        return [tensor for work in self._works for tensor in work.result()]


WORK_CLASSES = (_Waitable, HcclWork, WorkGroup)
