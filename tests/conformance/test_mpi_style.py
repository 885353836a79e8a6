"""mpi4py's methods on a Communicator and on MPI's Comm, against NumPy: values, in place, blocks with gaps, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import MPI, ConfigError, DesyncError
from hccl_py.communicator import Communicator
from hccl_py.mpistyle.comm import Comm

WORLD = 3


def given(rank: int, count: int = 6) -> Any:
    """What a rank gives: small whole numbers, so that sums are exact."""
    return np.arange(count, dtype=np.float64) + 10 * rank


ALL = np.stack([given(rank) for rank in range(WORLD)])


def check(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got).reshape(-1), np.asarray(want).reshape(-1))


def face(comm: Communicator) -> Comm:
    return Comm(lambda: comm)


def test_reductions(groups: Any, transport: str) -> None:
    def reduce(comm: Communicator) -> None:
        mine, total = given(comm.rank), ALL.sum(0)
        for spec in (lambda a: a, lambda a: [a, MPI.DOUBLE], lambda a: [a, 6, MPI.DOUBLE], lambda a: memoryview(a)):
            out = np.zeros(6)
            comm.Allreduce(spec(mine), spec(out))
            check(out, total)
            comm.Allreduce(spec(mine), spec(out), op=MPI.MAX)
            check(out, ALL.max(0))
            out[:] = mine
            comm.Allreduce(MPI.IN_PLACE, spec(out), MPI.PROD)
            check(out, ALL.prod(0))
            out[:] = 0
            comm.Iallreduce(spec(mine), spec(out), MPI.MIN).Wait()
            check(out, ALL.min(0))
        out = np.zeros(6)
        comm.Reduce(mine, out if comm.rank == 1 else None, MPI.SUM, root=1)
        check(out, total if comm.rank == 1 else np.zeros(6))
        out[:] = mine
        comm.Reduce(MPI.IN_PLACE if comm.rank == 2 else out, out if comm.rank == 2 else None, root=2)
        check(out, total if comm.rank == 2 else mine)
        out[:] = 0
        comm.Ireduce(mine, out if comm.rank == 0 else None).wait()
        check(out, total if comm.rank == 0 else np.zeros(6))
        flags = np.array([True, comm.rank == 0])
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.LAND)
        check(flags, [True, False])
        pairs = np.array([1 + 2j, 3], np.complex64) * (comm.rank + 1)
        comm.Allreduce(MPI.IN_PLACE, pairs)
        check(pairs, np.array([1 + 2j, 3]) * 6)

    groups.get(transport, WORLD).run(reduce)


def test_scattered_reductions(groups: Any, transport: str) -> None:
    def scatter(comm: Communicator) -> None:
        mine, total = given(comm.rank), ALL.sum(0)
        block = slice(2 * comm.rank, 2 * comm.rank + 2)
        out = np.zeros(2)
        comm.Reduce_scatter_block(mine, out)
        check(out, total[block])
        comm.Ireduce_scatter_block(mine, [out, MPI.DOUBLE], MPI.MAX).Wait()
        check(out, ALL.max(0)[block])
        data = mine.copy()
        comm.Reduce_scatter_block(MPI.IN_PLACE, data)
        check(data[:2], total[block])
        comm.Reduce_scatter(mine, out)
        check(out, total[block])
        counts = [3, 1, 2]
        begin, out = sum(counts[: comm.rank]), np.zeros(4)
        comm.Reduce_scatter(mine, out, counts, op=MPI.MIN)
        check(out, [*ALL.min(0)[begin : begin + counts[comm.rank]], *[0] * (4 - counts[comm.rank])])
        data = mine.copy()
        comm.Reduce_scatter(MPI.IN_PLACE, data, counts)
        check(data[: counts[comm.rank]], total[begin : begin + counts[comm.rank]])

    groups.get(transport, WORLD).run(scatter)


def test_equal_blocks(groups: Any, transport: str) -> None:
    def move(comm: Communicator) -> None:
        mine, size, rank = given(comm.rank), comm.size, comm.rank
        buf = mine.copy()
        comm.Bcast([buf, MPI.DOUBLE], root=1)
        check(buf, ALL[1])
        comm.Ibcast(buf[:3] if rank == 2 else np.zeros(3), root=2).Wait()
        out = np.zeros(18)
        comm.Allgather(mine, out)
        check(out, ALL)
        out = np.zeros((size, 6))
        out[rank] = mine
        comm.Allgather(MPI.IN_PLACE, out)
        check(out, ALL)
        out[:] = 0
        comm.Iallgather([mine, 6, MPI.DOUBLE], [out, 6, MPI.DOUBLE]).Wait()
        check(out, ALL)
        out = np.zeros(18)
        comm.Gather(mine, out if rank == 1 else None, root=1)
        check(out, ALL if rank == 1 else np.zeros(18))
        out[6 * rank : 6 * rank + 6] = mine
        comm.Gather(MPI.IN_PLACE if rank == 1 else mine, out if rank == 1 else None, root=1)
        if rank == 1:
            check(out, ALL)
        out[:] = 0
        comm.Igather(mine, out if rank == 0 else None).Wait()
        check(out, ALL if rank == 0 else np.zeros(18))
        part = np.zeros(2)
        comm.Scatter(mine if rank == 2 else None, part, root=2)
        check(part, ALL[2, 2 * rank : 2 * rank + 2])
        comm.Iscatter(mine if rank == 0 else None, [part, MPI.DOUBLE]).Wait()
        check(part, ALL[0, 2 * rank : 2 * rank + 2])
        data = mine.copy()
        comm.Scatter(data if rank == 2 else None, MPI.IN_PLACE if rank == 2 else part, root=2)
        check(data, mine)
        swapped = ALL.reshape(size, size, 2)[:, rank]
        out = np.zeros(6)
        comm.Alltoall(mine, out)
        check(out, swapped)
        out[:] = mine
        comm.Alltoall(MPI.IN_PLACE, out)
        check(out, swapped)
        out[:] = 0
        comm.Ialltoall(mine, out).Wait()
        check(out, swapped)
        comm.Barrier()
        comm.Ibarrier().Wait()

    groups.get(transport, WORLD).run(move)


@pytest.mark.parametrize("gaps", [False, True])
def test_blocks_of_different_sizes(groups: Any, transport: str, gaps: bool) -> None:
    counts = [2, 0, 3]
    places = [4, 9, 0] if gaps else [0, 2, 2]

    def laid_out(fill: float = -1.0) -> Any:
        out = np.full(9, fill)
        for rank, (count, begin) in enumerate(zip(counts, places, strict=True)):
            out[begin : begin + count] = given(rank)[:count]
        return out

    def move(comm: Communicator) -> None:
        rank, count = comm.rank, counts[comm.rank]
        spec: Any = lambda array: [array, (counts, places), MPI.DOUBLE]  # noqa: E731
        out = np.full(9, -1.0)
        comm.Allgatherv([given(rank), count], spec(out))
        check(out, laid_out())
        out = np.full(9, -1.0)
        out[places[rank] : places[rank] + count] = given(rank)[:count]
        comm.Allgatherv(MPI.IN_PLACE, spec(out))
        check(out, laid_out())
        out = np.full(9, -1.0)
        comm.Gatherv([given(rank), count], spec(out) if rank == 1 else None, root=1)
        check(out, laid_out() if rank == 1 else np.full(9, -1.0))
        part = np.full(4, -1.0)
        comm.Scatterv(spec(laid_out()) if rank == 2 else None, part, root=2)
        check(part, [*given(rank)[:count], *[-1] * (4 - count)])
        # rank r sends r + s elements to rank s
        sends, receives = [rank + to for to in range(3)], [rank + of for of in range(3)]
        at = [8, 5, 0] if gaps else [0, rank, 2 * rank + 1]
        data, out = np.full(14, -1.0), np.full(14, -1.0)
        want = np.full(14, -1.0)
        for other in range(3):
            data[at[other] : at[other] + sends[other]] = 100 * rank + 10 * other
            want[at[other] : at[other] + receives[other]] = 100 * other + 10 * rank
        comm.Alltoallv([data, (sends, at), MPI.DOUBLE], [out, (receives, at), MPI.DOUBLE])
        check(out, want)
        comm.Alltoallv(MPI.IN_PLACE, [data, (sends, at), MPI.DOUBLE])
        check(data, want)

    groups.get(transport, WORLD).run(move)


@pytest.mark.parametrize("count", [5, 50_000])
def test_messages(groups: Any, transport: str, count: int) -> None:
    def exchange(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        out, status = np.full(count + 3, -1.0), MPI.Status()
        sending = comm.Isend([given(comm.rank, count), MPI.DOUBLE], right, tag=7)
        comm.Recv(out, status=status)  # shorter than the buffer, anybody's, any tag
        sending.Wait()
        check(out[:count], given(left, count))
        check(out[count:], [-1, -1, -1])
        assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (left, 7, count)
        assert status.Get_count() == 8 * count and status.Get_elements("d") == count
        requests = [comm.Irecv(np.zeros(count), left, tag) for tag in (1, 2)]
        for tag in (2, 1):
            comm.Send(given(comm.rank, count), right, tag)
        assert MPI.Request.Waitall(requests) and not any(requests)
        out = np.zeros(count)
        comm.Sendrecv(given(comm.rank, count), right, 3, out, left, 3, status)
        check(out, given(left, count))
        comm.Sendrecv_replace([out, MPI.DOUBLE], left, recvtag=0)
        check(out, given(comm.rank, count))
        comm.Send(out, MPI.PROC_NULL)
        comm.Recv(out, MPI.PROC_NULL, status=status)
        assert status.count == 0 and status.source == MPI.PROC_NULL
        with pytest.raises(DesyncError, match="room for 8"):
            comm.Sendrecv(out, right, 4, out[:1], left, 4)
        comm.Barrier()

    groups.get(transport, WORLD).run(exchange)


def test_any_tag_leaves_messages_of_other_kinds_alone(groups: Any, transport: str) -> None:
    def exchange(comm: Communicator) -> None:
        world, out = face(comm), np.zeros(3)
        if comm.rank == 0:
            world.send("object", 1, tag=5)
            comm.send(np.ones(3), 1, tag=1 << 50)
            world.Send(np.full(3, 2.0), 1, tag=5)
        elif comm.rank == 1:
            world.Recv(out)
            check(out, [2, 2, 2])
            assert world.recv() == "object"
            comm.recv(out, tag=1 << 50)
            check(out, [1, 1, 1])

    groups.get(transport, 2).run(exchange)


@pytest.mark.parametrize("size", [3, 5000])
def test_objects(groups: Any, transport: str, size: int) -> None:
    def exchange(comm: Communicator) -> None:
        world, rank = face(comm), comm.rank
        mine = {"rank": rank, "list": list(range(size)), "text": "x" * size}
        every = [{**mine, "rank": other} for other in range(WORLD)]
        right, left = (rank + 1) % WORLD, (rank - 1) % WORLD
        assert world.bcast(mine if rank == 1 else None, root=1) == every[1]
        assert world.allgather(mine) == every
        assert world.gather(mine, root=2) == (every if rank == 2 else None)
        assert world.scatter(every if rank == 0 else None) == mine
        assert world.alltoall([(rank, other, "x" * size) for other in range(WORLD)]) == [
            (other, rank, "x" * size) for other in range(WORLD)
        ]
        assert world.allreduce([rank]) == [0, 1, 2] and world.reduce(rank, MPI.MAX) == (2 if rank == 0 else None)
        assert world.scan(rank + 1) == [1, 3, 6][rank] and world.exscan(rank + 1) == [None, 1, 3][rank]
        assert world.allreduce((rank % 2, rank), MPI.MAXLOC) == (1, 1)
        status = MPI.Status()
        requests = [world.irecv(source=left, tag=tag) for tag in (1, 1, 2)]
        sends = [world.isend([tag, number, mine], right, tag) for tag, number in ((2, 0), (1, 1), (1, 2))]
        got = MPI.Request.waitall(requests)
        MPI.Request.waitall(sends)
        assert got == [[tag, number, every[left]] for tag, number in ((1, 1), (1, 2), (2, 0))]
        assert world.sendrecv(mine, right, source=left, status=status) == every[left] and status.source == left
        world.barrier()

    groups.get(transport, WORLD).run(exchange)


def test_objects_that_are_waited_for_in_another_order(groups: Any, transport: str) -> None:
    def exchange(comm: Communicator) -> None:
        world = face(comm)
        if comm.rank == 0:
            for number in range(3):
                world.send([number] * 3000, 1)
            return
        first, second, third = (world.irecv(source=0) for _ in range(3))
        assert third.wait() == [2] * 3000 and MPI.Request.waitany([second])[1] == [1] * 3000
        while not (found := first.test())[0]:
            pass
        assert found[1] == [0] * 3000 and MPI.Request.waitany([first, second])[0] == MPI.UNDEFINED
        assert MPI.Request.Waitsome([first]) is None and MPI.Request.testall([first, third])[0]

    groups.get(transport, 2).run(exchange)


def test_groups_of_some_ranks(transport: str) -> None:
    with Ranks(transport if transport != "loopback" else "shm", 4) as ranks:

        def split(comm: Communicator) -> None:
            world = face(comm)
            half = world.Split(comm.rank % 2, key=-comm.rank)
            assert half is not None and half.size == 2 and half.rank == (comm.rank < 2)
            assert half.allgather(comm.rank) == [comm.rank % 2 + 2, comm.rank % 2]
            assert world.Split(MPI.UNDEFINED if comm.rank else 0) is None or comm.rank == 0
            again = world.Dup()
            out = np.zeros(1)
            again.Allreduce(np.ones(1), out)
            assert out[0] == 4 and (again.Get_rank(), again.Get_size()) == (comm.rank, 4)
            for part in (half, again):
                part.Free()
                part.Free()

        ranks.run(split)


def test_mistakes_are_one_error_and_nothing_moves(groups: Any) -> None:
    def attempt(comm: Communicator) -> None:
        a, b = np.ones(6), np.zeros(6)
        for call, message in (
            (lambda: comm.Allreduce(a, b, MPI.MAXLOC), "lower case"),
            (lambda: comm.Allreduce(a, b, MPI.LAND), "bool only"),
            (lambda: comm.Allreduce(a + 0j, b + 0j, MPI.MAX), "complex"),
            (lambda: comm.Allreduce(a, [b, 5, MPI.DOUBLE]), "6 elements|5 elements"),
            (lambda: comm.Allreduce(a, b.astype("f4")), "different element types"),
            (lambda: comm.Allgatherv(a[:2], [b, [1, 1, 1], MPI.DOUBLE]), "2 elements are not the 1"),
            (lambda: comm.Reduce(MPI.IN_PLACE, b, root=(comm.rank + 1) % comm.size), "for the root"),
            (lambda: comm.Send(a, 9), "dest 9 is outside"),
            (lambda: comm.Send(a, 1, tag=1 << 30), "TAG_UB"),
            (lambda: comm.Recv(a, 0, tag=-7), "tag -7"),
            (lambda: face(comm).alltoall([1]), "sequence of 3"),
            (lambda: face(comm).allgather(object()), "HCCL_PY_PICKLE=any"),
            (lambda: comm.Irecv(b"123", 0), "read-only"),
        ):
            with pytest.raises(ConfigError, match=message):
                call()  # type: ignore[no-untyped-call]
        assert (b == 0).all()
        comm.Barrier()

    groups.get("shm", WORLD).run(attempt)


def test_ranks_that_trust_each_other_send_anything() -> None:
    from datetime import date

    with Ranks("shm", 2, {"pickle": "any"}) as ranks:
        assert (
            ranks.run(lambda comm: face(comm).allgather(date(2020, 1, 1 + comm.rank)))
            == [[date(2020, 1, 1), date(2020, 1, 2)]] * 2
        )
