"""The thread that resolves futures: started with the first one that is asked for before its work is done.

Callbacks of a future run on the thread that resolves it. A collective issued there would come in an order that differs
between ranks, so the process group refuses it (:meth:`Completer.is_current`).
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Protocol

from torch import Tensor
from torch.futures import Future


class Waitable(Protocol):
    """What the completer needs of a work."""

    def wait(self) -> bool:
        """Block until done; raise if it failed."""

    def result(self) -> list[Tensor]:
        """The tensors that the future holds."""


def resolve(future: Future[Any], work: Waitable) -> None:
    """Wait for ``work`` and hand its result, or its error, to ``future``."""
    try:
        work.wait()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(work.result())


class Completer:
    """Resolves the futures of one process group; collectives in the order of issue, point-to-point as it comes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[Future[Any], Waitable] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idents: set[int] = set()
        self._main: threading.Thread | None = None

    def submit(self, future: Future[Any], work: Waitable, *, in_order: bool) -> None:
        """Resolve ``future`` when ``work`` is done.

        Args:
            in_order: True for collectives, which finish in the order of issue. Point-to-point messages do not: each
                gets a thread of its own, so that none waits behind another.
        """
        with self._lock:
            if in_order:
                self._queue.put((future, work))
                if self._main is None:
                    self._main = self._start(self._run)
            else:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._start(resolve, future, work)

    def is_current(self) -> bool:
        """True on a thread of this completer: in a callback of one of its futures."""
        return bool(self._idents) and threading.get_ident() in self._idents

    def close(self, timeout_s: float) -> None:
        """End the threads. The works must be done or fail soon: close the engine first. Idempotent."""
        with self._lock:
            threads = list(self._threads)
            if self._main is not None:
                self._queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _start(self, run: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=self._marked, args=(run, *arguments), name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _marked(self, run: Any, *arguments: Any) -> None:
        ident = threading.get_ident()
        self._idents.add(ident)
        try:
            run(*arguments)
        finally:
            self._idents.discard(ident)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            resolve(*item)
            del item  # the tensors of a finished work must not live until the next one comes
