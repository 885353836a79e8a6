"""Run by mpirun with pytest-mpi (tests/multiproc/test_mpi.py starts it): hccl_py.init() and real processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hccl_py
from hccl_py import ConfigError, DesyncError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp

pytestmark = pytest.mark.mpi(min_size=2)

SIZES = [0, 1, 1000, 200_003]


@pytest.fixture(scope="module")
def comm() -> Iterator[Communicator]:
    from mpi4py import MPI

    with hccl_py.init() as comm:
        assert (comm.rank, comm.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
        yield comm


@pytest.mark.parametrize("count", SIZES)
def test_against_mpi_itself(comm: Communicator, count: int) -> None:
    from mpi4py import MPI

    world, n, r = MPI.COMM_WORLD, comm.size, comm.rank
    mine = np.random.default_rng(r).integers(-(2**62), 2**62, count)
    blocks = np.random.default_rng(100 + r).integers(0, 2**31, n * count)
    want, got = np.zeros_like(mine), np.zeros_like(mine)
    world.Allreduce(mine, want, MPI.MAX)
    np.testing.assert_array_equal(comm.all_reduce(mine, got, ReduceOp.MAX), want)
    many_want, many_got = np.zeros_like(blocks), np.zeros_like(blocks)
    world.Allgather(mine, many_want)
    np.testing.assert_array_equal(comm.all_gather(mine, many_got), many_want)
    world.Alltoall(blocks, many_want)
    np.testing.assert_array_equal(comm.all_to_all(blocks, many_got), many_want)
    world.Reduce_scatter_block(blocks, want)
    np.testing.assert_array_equal(comm.reduce_scatter(blocks, got), want)
    for root in range(n):
        want[:] = mine
        world.Bcast(want, root)
        np.testing.assert_array_equal(comm.broadcast(mine.copy(), root), want)
        world.Scatter(blocks if r == root else None, want, root)
        np.testing.assert_array_equal(comm.scatter(blocks if r == root else None, got, root), want)
        world.Gather(mine, many_want if r == root else None, root)
        comm.gather(mine, many_got if r == root else None, root)
        world.Reduce(mine, want if r == root else None, MPI.MIN, root)
        comm.reduce(mine, got if r == root else None, ReduceOp.MIN, root)
        if r == root:
            np.testing.assert_array_equal(many_got, many_want)
            np.testing.assert_array_equal(got, want)


def test_started_work_and_messages(comm: Communicator) -> None:
    n, r = comm.size, comm.rank
    for size in (10, 300_000):
        total, got = np.full(size, 1.0), np.zeros(size)
        works = [comm.iall_reduce(total), comm.isend(np.full(size, float(r)), (r + 1) % n, tag=size), comm.ibarrier()]
        assert comm.recv(got, tag=size) == (r - 1) % n
        for work in works:
            work.wait()
        assert (total == n).all() and (got == (r - 1) % n).all()


def test_ranks_that_disagree_all_know_and_go_on(comm: Communicator) -> None:
    data = np.full(100, float(comm.rank))
    with pytest.raises(DesyncError) as caught:
        comm.all_reduce(data, op=ReduceOp.MAX if comm.rank == 1 else ReduceOp.SUM)
    assert "sum" in str(caught.value) and "max" in str(caught.value)
    assert str(caught.value).count("test_collectives.py:") == 2
    assert (data == comm.rank).all()
    assert (comm.all_reduce(np.ones(10)) == comm.size).all()


def test_what_one_rank_refuses_does_not_trouble_the_others(comm: Communicator) -> None:
    if comm.rank == 0:
        with pytest.raises(ConfigError):
            comm.all_reduce(np.ones(8)[::2])
    assert (comm.all_reduce(np.ones(8)) == comm.size).all()


def test_groups_one_after_the_other() -> None:
    for i in range(3):
        with hccl_py.init() as comm:
            assert (comm.all_reduce(np.full(5, i)) == comm.size * i).all()


def test_groups_of_parts_of_the_world() -> None:
    from mpi4py import MPI

    from hccl_py.bootstrap import MpiBootstrap

    part = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
    with hccl_py.init(MpiBootstrap(part)) as comm, hccl_py.init() as everybody:
        assert comm.size == part.size
        assert (comm.all_reduce(np.full(5, MPI.COMM_WORLD.rank % 2)) == comm.size * (MPI.COMM_WORLD.rank % 2)).all()
        assert (everybody.all_reduce(np.ones(5)) == everybody.size).all()
    part.Free()
