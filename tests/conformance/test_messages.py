"""Point to point: tags, any source, self, both ways, unexpected order, zero size, wrong size, beside collectives."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import ConfigError, DesyncError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp

SMALL, LARGE = 100, 300_000  # elements: goes at once, asks first


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_ring_of_messages(groups: Any, transport: str, size: int) -> None:
    def pass_on(comm: Communicator) -> None:
        data, got = np.full(size, comm.rank, np.int32), np.full(size, -1, np.int32)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        work = comm.isend(data, right, tag=7)
        assert comm.recv(got, left, tag=7) == left
        work.wait()
        assert (got == left).all()

    groups.get(transport, 4).run(pass_on)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_both_directions_at_once(groups: Any, transport: str, size: int) -> None:
    def exchange(comm: Communicator) -> None:
        other = 1 - comm.rank
        got = [np.zeros(size) for _ in range(4)]
        receives = [comm.irecv(one, other, tag=i) for i, one in enumerate(got)]
        for i in range(4):
            comm.send(np.full(size, 10.0 * comm.rank + i), other, tag=i)
        for i, work in enumerate(receives):
            work.wait()
            assert work.source == other and (got[i] == 10 * other + i).all()

    groups.get(transport, 2).run(exchange)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_messages_are_matched_by_tag_not_by_arrival(groups: Any, transport: str, size: int) -> None:
    def match(comm: Communicator) -> None:
        tags = [5, 2**64 - 1, 0, 9]
        if comm.rank == 0:
            works = [comm.isend(np.full(size, float(i)), 1, tag=tag) for i, tag in enumerate(tags)]
            comm.barrier()
            for work in works:
                work.wait()
            return
        comm.barrier()  # all are under way, or ask
        for i in (3, 1, 0, 2):
            got = np.zeros(size)
            comm.recv(got, 0, tag=tags[i])
            assert (got == i).all()

    groups.get(transport, 2).run(match)


def test_messages_with_one_tag_keep_their_order_whatever_their_size(groups: Any, transport: str) -> None:
    sizes = [1, LARGE, 2, LARGE + 1, 0, 3]

    def order(comm: Communicator) -> None:
        if comm.rank == 0:
            works = [comm.isend(np.full(size, float(i)), 1, tag=1) for i, size in enumerate(sizes)]
            comm.barrier()
            for work in works:
                work.wait()
            return
        comm.barrier()
        for i, size in enumerate(sizes):
            got = np.zeros(size)
            comm.recv(got, -1, tag=1)  # a wrong one would have another size
            assert (got == i).all()

    groups.get(transport, 2).run(order)


def test_any_source_takes_from_everybody(groups: Any, transport: str) -> None:
    def collect(comm: Communicator) -> None:
        if comm.rank != 0:
            comm.send(np.full(SMALL, comm.rank), 0, tag=3)
            comm.send(np.full(LARGE, comm.rank), 0, tag=4)
            return
        for tag, size in ((3, SMALL), (4, LARGE)):
            sources = set()
            for _ in range(comm.size - 1):
                got = np.zeros(size, np.int64)
                source = comm.recv(got, tag=tag)
                assert (got == source).all()
                sources.add(source)
            assert sources == {1, 2, 3}

    groups.get(transport, 4).run(collect)


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
@pytest.mark.parametrize("world", [1, 2])
def test_to_oneself(groups: Any, transport: str, size: int, world: int) -> None:
    def talk(comm: Communicator) -> None:
        got, later = np.zeros(size), np.zeros(size)
        comm.send(np.full(size, 1.0), comm.rank, tag=1)
        assert comm.recv(got, comm.rank, tag=1) == comm.rank
        work = comm.irecv(later, -1, tag=2)
        comm.send(np.full(size, 2.0), comm.rank, tag=2)
        work.wait()
        assert work.source == comm.rank and (got == 1).all() and (later == 2).all()

    groups.get(transport, world).run(talk)


def test_zero_size_is_a_message(groups: Any, transport: str) -> None:
    def empty(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(0), 1, tag=1)
            comm.send(np.ones(1), 1, tag=1)
        else:
            one = np.zeros(1)
            assert comm.recv(np.zeros(0), 0, tag=1) == 0
            comm.recv(one, 0, tag=1)
            assert one[0] == 1

    groups.get(transport, 2).run(empty)


@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize(("sent", "room"), [(10, 12), (12, 10), (LARGE, LARGE + 1), (LARGE, 10), (0, 1), (1, 0)])
def test_wrong_size_is_an_error_that_names_both(
    groups: Any, transport: str, sent: int, room: int, posted_first: bool
) -> None:
    def mismatch(comm: Communicator) -> None:
        if comm.rank == 0:
            if posted_first:
                comm.barrier()
            work = comm.isend(np.ones(sent), 1, tag=6)
            if not posted_first:
                comm.barrier()
            work.wait()  # the sender did nothing wrong
        else:
            got = np.zeros(room)
            if not posted_first:
                comm.barrier()
            work = comm.irecv(got, 0, tag=6)
            if posted_first:
                comm.barrier()
            with pytest.raises(DesyncError, match=f"rank 0 sent {8 * sent} bytes with tag 6, .* {8 * room}"):
                work.wait()
            assert (got == 0).all()
        comm.barrier()
        again = np.full(5, comm.rank)  # the group goes on
        if comm.rank == 0:
            comm.send(again, 1, tag=6)
        else:
            comm.recv(again, 0, tag=6)
            assert (again == 0).all()

    groups.get(transport, 2).run(mismatch)


def test_messages_do_not_block_collectives_nor_they_them(groups: Any, transport: str) -> None:
    """Legal programs that a queue shared by both would deadlock."""

    def mix(comm: Communicator) -> None:
        total = np.ones(LARGE)
        got = np.zeros(LARGE)
        if comm.rank == 0:
            works = [comm.isend(np.full(LARGE, 5.0), 1, tag=i) for i in range(3)]
            comm.all_reduce(total)
            comm.barrier()
            for work in works:
                work.wait()
        else:
            started = comm.iall_reduce(total)  # before the receives
            comm.recv(got, 0, tag=2)
            started.wait()
            comm.barrier()
            comm.recv(got, 0, tag=0)
            comm.recv(got, 0, tag=1)
        assert (total == 2).all() and (comm.rank == 0 or (got == 5).all())

    groups.get(transport, 2).run(mix)


def test_a_receive_posted_before_a_collective_is_served_during_it(groups: Any, transport: str) -> None:
    def serve(comm: Communicator) -> None:
        got = np.zeros(LARGE)
        if comm.rank == 0:
            comm.send(np.full(LARGE, 3.0), 1, tag=1)  # ends only if rank 1 takes it while it waits in the barrier
            comm.barrier()
        else:
            work = comm.irecv(got, 0, tag=1)
            comm.barrier()
            work.wait()
            assert (got == 3).all()

    groups.get(transport, 2).run(serve)


def test_threads_of_one_rank_may_talk_at_once(transport: str) -> None:
    with Ranks(transport, 2) as ranks:

        def chat(comm: Communicator) -> None:
            failures: list[BaseException] = []

            def talk(tag: int) -> None:
                try:
                    for i in range(30):
                        size = (1, 2000, 9000)[(i + tag) % 3]
                        got = np.zeros(size)
                        work = comm.isend(np.full(size, 100.0 * comm.rank + tag), 1 - comm.rank, tag)
                        comm.recv(got, 1 - comm.rank, tag)
                        work.wait()
                        assert (got == 100 * (1 - comm.rank) + tag).all()
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures

        ranks.run(chat)


@pytest.mark.parametrize("number", [250, 3700, 3900, 4000])
def test_what_was_sent_arrives_though_the_sender_calls_nothing_more(transport: str, number: int) -> None:
    """Around the size of the socket's buffers: what is held back in the sender's process must go by itself."""
    sent, received = threading.Event(), threading.Event()
    with Ranks(transport, 2) as ranks:

        def stream(comm: Communicator) -> int:
            if comm.rank == 0:
                works = [comm.isend(np.full(250, i, np.float32), 1, tag=5) for i in range(number)]
                sent.set()
                received.wait(40)
                return len(works)
            sent.wait(40)
            got = np.zeros(250, np.float32)
            try:
                for i in range(number):
                    comm.irecv(got, 0, tag=5).wait(10.0)
                    assert got[0] == i
            finally:
                received.set()
            return number

        assert ranks.run(stream) == [number] * 2


def test_wrong_ranks_and_tags_are_refused(groups: Any, transport: str) -> None:
    def refuse(comm: Communicator) -> None:
        data = np.zeros(1)
        for peer in (2, -1, -7):
            with pytest.raises(ConfigError, match=f"rank {peer} is outside a world of 2"):
                comm.send(data, peer)
        for peer in (2, -2):
            with pytest.raises(ConfigError, match=f"rank {peer} is outside a world of 2"):
                comm.recv(data, peer)
        for tag in (-1, 2**64):
            with pytest.raises(ConfigError, match="tag"):
                comm.send(data, 1 - comm.rank, tag)
            with pytest.raises(ConfigError, match="tag"):
                comm.recv(data, 1 - comm.rank, tag)
        comm.all_reduce(data, op=ReduceOp.MAX)

    groups.get(transport, 2).run(refuse)
