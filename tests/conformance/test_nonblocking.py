"""Non-blocking collectives: many at once, in any order, without a wait, from several threads and groups."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import CollectiveTimeoutError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp


def test_many_at_once_waited_for_in_any_order(groups: Any, transport: str) -> None:
    sizes = [1, 1000, 0, 70_000, 17, 300_000] * 5

    def start_and_wait(comm: Communicator) -> None:
        data = [np.full(size, comm.rank + i, np.float32) for i, size in enumerate(sizes)]
        works = [comm.iall_reduce(one) for one in data]
        order = np.random.default_rng(comm.rank).permutation(len(works))  # another one on each rank
        for i in order:
            works[i].wait()
            assert works[i].done()
            np.testing.assert_array_equal(data[i], np.full(sizes[i], 3 * i + 3, np.float32))

    groups.get(transport, 3).run(start_and_wait)


def test_every_collective_has_a_form_that_does_not_block(groups: Any, transport: str) -> None:
    world, count = 4, 50

    def start_all(comm: Communicator) -> None:
        rank, root = comm.rank, 2
        mine, blocks = np.full(count, rank + 1.0), np.repeat(np.arange(world) * 10.0 + rank, count)
        reduced, reduced_root, scattered, received = (np.zeros(count) for _ in range(4))
        gathered, gathered_root, exchanged = (np.zeros(world * count) for _ in range(3))
        shared = np.full(count, rank + 0.5)
        works = [
            comm.iall_reduce(mine, reduced),
            comm.ireduce(mine, reduced_root if rank == root else None, ReduceOp.MAX, root),
            comm.ibroadcast(shared, root),
            comm.iall_gather(mine, gathered),
            comm.ireduce_scatter(blocks, scattered),
            comm.iall_to_all(blocks, exchanged),
            comm.igather(mine, gathered_root if rank == root else None, root),
            comm.iscatter(blocks if rank == root else None, received, root),
            comm.ibarrier(),
        ]
        for work in reversed(works):
            work.wait()
        everybody = np.repeat(np.arange(world) + 1.0, count)
        assert (reduced == 10).all() and (shared == root + 0.5).all() and (mine == rank + 1).all()
        assert (gathered == everybody).all() and (scattered == 40.0 * rank + 6).all()
        assert (exchanged == np.repeat(np.arange(world) + 10.0 * rank, count)).all()
        assert (received == 10.0 * rank + root).all()
        if rank == root:
            assert (reduced_root == 4).all() and (gathered_root == everybody).all()

    groups.get(transport, world).run(start_all)


def test_work_dropped_without_wait_goes_on_and_keeps_its_buffers(groups: Any, transport: str) -> None:
    late = threading.Event()

    def drop(comm: Communicator) -> tuple[bool, bool]:
        if comm.rank == 1:
            late.wait(30)
        data, kept = np.ones(100_000), np.zeros(100_000)
        alive = weakref.ref(data)
        comm.iall_reduce(data, kept)  # rank 1 has not come yet: it must outlive this line
        del data
        gc.collect()
        held = alive() is not None
        if comm.rank == 0:
            late.set()
        comm.barrier()
        for _ in range(300):  # works that are over are let go as others start
            comm.iall_reduce(np.ones(1)).wait()
        gc.collect()
        return (held or comm.rank == 1) and bool((kept == 2).all()), alive() is None

    assert groups.get(transport, 2).run(drop) == [(True, True)] * 2


def test_wait_with_a_time_limit_gives_up_and_the_work_goes_on(groups: Any, transport: str) -> None:
    tried = threading.Event()

    def wait(comm: Communicator) -> bool:
        data = np.ones(10)
        if comm.rank == 1:
            tried.wait(30)
        work = comm.iall_reduce(data)
        if comm.rank == 0:
            try:
                with pytest.raises(CollectiveTimeoutError, match=r"still under way after 0\.05 s"):
                    work.wait(0.05)
                assert not work.done() and (data == 1).all()
            finally:
                tried.set()
        work.wait(30)
        work.wait()  # again is fine
        return bool((data == 2).all())

    assert groups.get(transport, 2).run(wait) == [True, True]


def test_blocking_and_started_calls_keep_their_order(groups: Any, transport: str) -> None:
    def mix(comm: Communicator) -> None:
        for i in range(30):
            first, second, third = np.full(3, 1.0), np.full(5000, 10.0 + i), np.full(2, comm.rank + 0.0)
            work = comm.iall_reduce(first)
            comm.all_reduce(second, op=ReduceOp.MAX)  # queues behind the started one
            other = comm.ibroadcast(third, root=i % comm.size)
            assert (second == 10 + i).all()
            other.wait()
            work.wait()
            assert (first == 3).all() and (third == i % comm.size).all()

    groups.get(transport, 3).run(mix)


def test_started_work_ends_while_nobody_waits(groups: Any, transport: str) -> None:
    """The process's own thread drives it."""
    done = threading.Barrier(2, timeout=30)

    def watch(comm: Communicator) -> None:
        data = np.ones(200_000)
        work = comm.iall_reduce(data)
        pause = threading.Event()
        for _ in range(3000):
            if work.done():
                break
            pause.wait(0.01)
        assert work.done()
        done.wait()
        work.wait()
        assert (data == 2).all()

    groups.get(transport, 2).run(watch)


def test_several_groups_of_one_process_do_not_disturb_each_other(transport: str) -> None:
    with Ranks(transport, 2) as first, Ranks(transport, 3) as second, Ranks(transport, 2) as third:
        failures: list[BaseException] = []

        def use(ranks: Ranks, value: float) -> None:
            def loop(comm: Communicator) -> None:
                for i in range(50):
                    data = np.full(1 + 600 * (i % 7), value + i)
                    work = comm.iall_reduce(data)
                    work.wait()
                    assert (data == comm.size * (value + i)).all()

            try:
                ranks.run(loop)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=use, args=pair) for pair in ((first, 1.0), (second, 100.0), (third, 0.5))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_one_rank_may_be_in_two_groups_and_order_them_differently(transport: str) -> None:
    """Rank 0 waits for group A first, rank 1 for group B: a queue shared by both would deadlock."""
    with Ranks(transport, 2) as a, Ranks(transport, 2) as b:

        def cross(comm: Communicator) -> bool:
            mine = [a.comms[comm.rank], b.comms[comm.rank]]
            data = [np.ones(100_000), np.ones(100_000)]
            works = [one.iall_reduce(x) for one, x in zip(mine, data, strict=True)]
            for i in (0, 1) if comm.rank == 0 else (1, 0):
                works[i].wait()
            return all((x == 2).all() for x in data)

        assert a.run(cross) == [True, True]
