"""Status and Request: what a receive found, and operations under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hccl_py.core.errors import ConfigError, HcclError
from hccl_py.engine import Work
from hccl_py.mpistyle.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from hccl_py.mpistyle.datatype import Datatype, kind_of


class Status:
    """Of a receive: who sent, with which tag, how much."""

    def __init__(self) -> None:
        self.source, self.tag, self.error, self.count = ANY_SOURCE, ANY_TAG, 0, 0

    def put(self, source: int, tag: int, num_bytes: int) -> None:
        """Say what was received."""
        self.source, self.tag, self.count = source, tag, num_bytes

    def Get_source(self) -> int:
        """The rank that sent."""
        return self.source

    def Get_tag(self) -> int:
        """The tag of the message."""
        return self.tag

    def Get_error(self) -> int:
        """0: errors are raised."""
        return self.error

    def Get_count(self, datatype: Datatype | str = "B") -> int:
        """How many elements came; UNDEFINED if the bytes are no whole number of them."""
        size = kind_of(datatype).itemsize
        return self.count // size if self.count % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype | str = "B") -> int:
        """As :meth:`Get_count`, for basic datatypes."""
        return self.Get_count(datatype)

    def Is_cancelled(self) -> bool:
        """Never: nothing can be cancelled."""
        return False


def fill(status: Status | None, source: int, tag: int, num_bytes: int) -> None:
    """Say in a status, if there is one, what was received."""
    if status is not None:
        status.put(source, tag, num_bytes)


class Request:
    """An operation under way; ``wait`` and ``test`` also give the object that a receive in lower case got.

    Args:
        works: what the engine is doing; None: nothing (REQUEST_NULL, or a message to or from nobody).
        end: called once when all is over: puts results in their places and fills in a status; returns an object.
    """

    def __init__(self, works: Sequence[Work] | None = None, end: Callable[[Status | None], Any] | None = None) -> None:
        self._works = list(works or ())
        self._end = end
        self._result: Any = None

    def _finish(self, status: Status | None) -> Any:
        end, self._end = self._end, None
        self._works = []
        if end is not None:
            self._result = end(status)
        return self._result

    def wait(self, status: Status | None = None) -> Any:
        """Wait until it is over; the object that was received, or None."""
        for work in self._works:
            work.wait()
        return self._finish(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is over, and :meth:`wait`'s result."""
        if not all(work.done() for work in self._works):
            return False, None
        return True, self.wait(status)

    def Wait(self, status: Status | None = None) -> bool:
        """Wait until it is over."""
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is over."""
        return self.test(status)[0]

    def Free(self) -> None:
        """Nothing to free: the engine keeps what it needs until it is done with it."""

    def Cancel(self) -> None:
        """Raises ConfigError: what was started cannot be taken back."""
        raise ConfigError("Request.Cancel: hccl_py cannot take back what was started")

    cancel = Cancel

    def __bool__(self) -> bool:
        return bool(self._works) or self._end is not None

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Wait for all; their results. The first error is raised when all are over."""
        results, failed = [], None
        for i, request in enumerate(requests):
            try:
                results.append(request.wait(statuses[i] if statuses is not None and i < len(statuses) else None))
            except HcclError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return results

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Wait for all."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait until one is over: its index, or UNDEFINED if none is under way, and its result."""
        if not any(requests):
            return UNDEFINED, None
        while True:
            for i, request in enumerate(requests):
                if request:
                    over, result = request.test(status)
                    if over:
                        return i, result
            time.sleep(0)  # others may want the core

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait until one is over: its index."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Wait until at least one is over: the indices of those that are; None if none is under way."""
        first = cls.Waitany(requests, statuses[0] if statuses else None)
        if first == UNDEFINED:
            return None
        return [first, *(i for i, request in enumerate(requests) if request and request.Test())]

    @classmethod
    def testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> tuple[bool, Any]:
        """Whether all are over, and their results."""
        if not all(work.done() for request in requests for work in request._works):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are over."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Index of one that is over (UNDEFINED: none), whether there is one or none is under way, and its result."""
        for i, request in enumerate(requests):
            if request:
                over, result = request.test(status)
                if over:
                    return i, True, result
        return UNDEFINED, not any(requests), None

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Index of one that is over, and whether there is one or none is under way."""
        return cls.testany(requests, status)[:2]


def nothing_to_do(end: Callable[[Status | None], Any] | None = None) -> Request:
    """A request that is over."""
    return Request((), end)
