"""Abort, close, leave early, again and again: nothing hangs, nothing is left behind."""

from __future__ import annotations

import gc
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import BrokenGroupError, HcclError, PeerLostError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp


class Entered:
    """Lets a thread go on once others are blocked in their calls: they sleep, and stay asleep."""

    def __init__(self, number: int) -> None:
        self._tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._number = number

    def enter(self) -> None:
        self._tasks.put(threading.get_native_id())

    def wait(self) -> None:
        pause = threading.Event()
        for task in [self._tasks.get(timeout=30) for _ in range(self._number)]:
            asleep, until = 0, time.monotonic() + 30
            while asleep < 10 and time.monotonic() < until:
                state = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
                asleep = asleep + 1 if state == "S" else 0
                pause.wait(0.01)
            assert asleep == 10


def blocked(comm: Communicator, entered: Entered, call: Any) -> tuple[str, str]:
    """Do a call that cannot end; the kind and the text of what ended it."""
    entered.enter()
    with pytest.raises(HcclError) as caught:
        call(comm)
    with pytest.raises(BrokenGroupError):
        comm.barrier()
    return type(caught.value).__name__, str(caught.value)


WAITS: dict[str, Any] = {
    "run": lambda comm: comm.all_reduce(np.ones(10)),
    "large": lambda comm: comm.all_reduce(np.ones(500_000)),
    "wait": lambda comm: comm.iall_reduce(np.ones(10)).wait(),
    "wait with a limit": lambda comm: comm.iall_reduce(np.ones(10)).wait(60.0),
    "recv": lambda comm: comm.recv(np.ones(10), 2, tag=9),
    "recv from any": lambda comm: comm.recv(np.ones(10), tag=9),
    "send": lambda comm: comm.send(np.ones(1_000_000), 2, tag=9),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_abort_from_another_thread_ends_the_calls_of_all_ranks(transport: str, wait: Any) -> None:
    entered = Entered(2)
    with Ranks(transport, 3) as ranks:

        def run(comm: Communicator) -> tuple[str, str]:
            return blocked(comm, entered, wait) if comm.rank != 2 else ("", "")

        def abort() -> None:
            entered.wait()
            ranks.comms[0].engine.abort("enough of it")
            ranks.comms[0].engine.abort("twice is fine")

        thread = threading.Thread(target=abort)
        thread.start()
        first, second, _ = ranks.run(run)
        thread.join()
        assert first[0] == "BrokenGroupError" and "rank 0 aborted the group: enough of it" in first[1]
        assert second[0] in ("BrokenGroupError", "PeerLostError") and "rank 0" in second[1]
        with pytest.raises(HcclError, match="rank 0"):  # also the one that was not in a call
            ranks.comms[2].recv(np.ones(3), 0)


@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_close_by_another_thread_ends_the_calls_of_all_ranks(transport: str, wait: Any) -> None:
    entered = Entered(2)
    with Ranks(transport, 3) as ranks:

        def run(comm: Communicator) -> tuple[str, str]:
            return blocked(comm, entered, wait) if comm.rank != 2 else ("", "")

        def close() -> None:
            entered.wait()
            ranks.comms[0].close()

        thread = threading.Thread(target=close)
        thread.start()
        first, second, _ = ranks.run(run)
        thread.join()
        assert first[0] == "BrokenGroupError" and "rank 0 closed the group while work was under way" in first[1]
        assert second[0] in ("BrokenGroupError", "PeerLostError") and "rank 0" in second[1]


def test_a_rank_may_leave_when_its_part_is_done(transport: str) -> None:
    """The root of a broadcast sends and leaves; the others get it though one of them is late."""
    for size in (10, 200_000):
        gone = threading.Event()
        with Ranks(transport, 4) as ranks:

            def run(comm: Communicator, size: int = size, gone: threading.Event = gone) -> bool:
                comm.barrier()
                data = np.full(size, comm.rank)
                if comm.rank == 2 and transport == "tcp" and size == 10:
                    gone.wait(30)  # over shared memory the root waits for all to enter
                comm.broadcast(data)
                if comm.rank == 0:
                    comm.close()
                    gone.set()
                return bool((data == 0).all())

            assert ranks.run(run) == [True] * 4


def test_leaving_right_after_the_last_collective_harms_nobody(transport: str) -> None:
    for round_ in range(15):
        with Ranks(transport, 3) as ranks:

            def run(comm: Communicator, round_: int = round_) -> float:
                data = np.ones(1 + 3000 * (round_ % 3))
                comm.all_reduce(data)
                comm.close()
                return float(data[-1])

            assert ranks.run(run) == [3.0] * 3


def test_messages_that_were_sent_arrive_after_the_sender_has_left(transport: str) -> None:
    with Ranks(transport, 2) as ranks:
        gone = threading.Event()

        def run(comm: Communicator) -> int:
            if comm.rank == 0:
                works = [comm.isend(np.full(100, i), 1, tag=i) for i in range(20)]
                for work in works:
                    work.wait()
                comm.close()
                gone.set()
                return 20
            gone.wait(30)
            got = np.zeros(100, np.int64)
            for i in range(20):
                comm.recv(got, 0, tag=i)
                assert (got == i).all()
            with pytest.raises(PeerLostError, match="rank 0"):
                comm.recv(got, 0, tag=0)
            return 20

        assert ranks.run(run) == [20, 20]


def test_a_call_that_races_with_close_ends(transport: str) -> None:
    for round_ in range(60):
        with Ranks(transport, 1) as ranks:
            comm = ranks.comms[0]
            started = threading.Event()

            def run(comm: Communicator, round_: int = round_, started: threading.Event = started) -> str:
                data = np.ones(1)
                try:
                    while True:
                        if round_ % 2:
                            comm.all_reduce(data, op=ReduceOp.MAX)
                        else:
                            comm.iall_reduce(data).wait()
                        started.set()
                except HcclError as error:
                    return type(error).__name__

            def close(comm: Communicator = comm, started: threading.Event = started) -> None:
                started.wait(30)
                comm.close()

            closer = threading.Thread(target=close)
            closer.start()
            assert ranks.run(run, timeout_s=20) == ["BrokenGroupError"]
            closer.join()


def footprint() -> dict[str, int]:
    """What this process holds of the system."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status.partition("Threads:")[2].split()[0]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "files in /dev/shm": len(os.listdir("/dev/shm")),
        "resident KiB": int(status.partition("VmRSS:")[2].split()[0]),
    }


def test_two_hundred_groups_leave_nothing_behind(transport: str) -> None:
    def use(number: int) -> None:
        for i in range(number):
            with Ranks(transport, 2) as ranks:

                def run(comm: Communicator, i: int = i) -> None:
                    comm.all_reduce(np.ones(10))
                    if i % 4 == 0:
                        comm.iall_reduce(np.ones(10_000)).wait()
                        comm.isend(np.ones(3), comm.rank)  # never received

                ranks.run(run)

    use(10)
    before = footprint()
    use(200)
    after = footprint()
    grown = {what: after[what] - before[what] for what in before}
    assert grown["descriptors"] <= 0 and grown["threads"] <= 0 and grown["files in /dev/shm"] <= 0, grown
    assert grown["mappings"] < 20 and grown["resident KiB"] < 40 << 10, grown


def test_groups_that_break_leave_nothing_behind(transport: str) -> None:
    def use(number: int) -> None:
        for _ in range(number):
            with Ranks(transport, 2) as ranks:

                def run(comm: Communicator) -> None:
                    comm.barrier()
                    if comm.rank == 0:
                        comm.engine.abort("on purpose")
                    with pytest.raises(HcclError):
                        comm.recv(np.ones(3), 1 - comm.rank)

                ranks.run(run)

    use(5)
    before = footprint()
    use(40)
    after = footprint()
    for what in ("descriptors", "threads", "files in /dev/shm"):
        assert after[what] <= before[what], f"{what}: {before} {after}"


def test_a_group_that_is_dropped_without_close_is_closed() -> None:
    with Ranks("shm", 1) as ranks:
        ranks.run(lambda comm: comm.barrier())
    before = footprint()["descriptors"]
    ranks = Ranks("tcp", 2)
    comms = ranks.comms
    ranks.run(lambda comm: comm.barrier())
    ranks.comms = []
    ranks.close()  # its threads, not its group
    comms.clear()
    del ranks
    assert footprint()["descriptors"] <= before
