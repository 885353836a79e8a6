"""Messages that stay where they are: lent from private and shared memory, landed in shared memory, and mixtures."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py.communicator import Communicator, Registration
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.scheduler.program import Lends

COUNT = 20_003  # elements of a block: several pieces, no round number
_LEND = {"slot_bytes": 64, "shared_from_bytes": 64, "private_from_bytes": 64, "segment_bytes": 4096}
Array = np.ndarray[Any, Any]
Allocate = Callable[[Communicator, int], Array]


def _private(_: Communicator, count: int) -> Array:
    return np.zeros(count, np.int64)


def _empty(comm: Communicator, count: int) -> Array:
    return comm.empty(count, np.int64)


def _ordinary(count: int) -> Array:
    """On pages of its own: what malloc gives for a large array."""
    return np.frombuffer(mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.int64)


def _registered(comm: Communicator, count: int) -> Array:
    array = _ordinary(count)
    comm.register(array)
    return array


def _mixed(comm: Communicator, count: int) -> Array:
    return (_private, _empty, _registered)[comm.rank % 3](comm, count)


KINDS = {"private": _private, "empty": _empty, "registered": _registered, "mixed": _mixed}


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks that lend whatever is not tiny."""
    with Ranks("shm", request.param, _LEND) as ranks:
        yield ranks


def _given(rank: int, size: int, round_: int) -> Array:
    return np.arange(size, dtype=np.int64) * (rank + 3) + rank * 1_000_003 + round_


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_all_collectives_from_any_memory(ranks: Ranks, kind: str, in_place: bool) -> None:
    """Two rounds on the same buffers, the inputs new each time; what was not to be written is as it was."""
    world, make = ranks.size, KINDS[kind]

    def task(comm: Communicator) -> None:
        small, large = make(comm, COUNT), make(comm, COUNT * world)
        small_out, large_out = make(comm, COUNT), make(comm, COUNT * world)
        for round_ in range(2):
            mine = [_given(r, COUNT, round_) for r in range(world)]
            wide = [_given(r, COUNT * world, round_) for r in range(world)]
            block = slice(comm.rank * COUNT, (comm.rank + 1) * COUNT)

            out = small if in_place else small_out
            small[:] = mine[comm.rank]
            comm.all_reduce(small, out)
            np.testing.assert_array_equal(out, sum(mine))
            if not in_place:
                np.testing.assert_array_equal(small, mine[comm.rank])

            small[:] = mine[comm.rank]
            comm.reduce(small, out, root=world - 1)
            if comm.rank == world - 1:
                np.testing.assert_array_equal(out, sum(mine))

            small[:] = mine[comm.rank]
            comm.broadcast(small, root=1)
            np.testing.assert_array_equal(small, mine[1])

            source = large_out[block] if in_place else small
            source[:] = mine[comm.rank]
            comm.all_gather(source, large_out)
            np.testing.assert_array_equal(large_out, np.concatenate(mine))

            large[:] = wide[comm.rank]
            out = large[block] if in_place else small_out
            comm.reduce_scatter(large, out)
            np.testing.assert_array_equal(out, sum(wide)[block])

            large[:] = wide[comm.rank]
            out = large if in_place else large_out
            comm.all_to_all(large, out)
            np.testing.assert_array_equal(out, np.concatenate([data[block] for data in wide]))

    ranks.run(task)


@pytest.mark.parametrize("kind", ["private", "empty"])
def test_how_often_memory_is_touched(ranks: Ranks, kind: str) -> None:
    """The engine's own counters, for an all-reduce.

    Shared: each contribution is read once, each result written once by the rank that folds it, which copies it to the
    others from its cache. Private: contributions of others pass through a piece of staging memory.
    """
    world = ranks.size
    share = 16 * 1024  # elements; every rank folds one share
    share_bytes = 8 * share

    def task(comm: Communicator) -> tuple[int, int, int]:
        send, recv = KINDS[kind](comm, share * world), KINDS[kind](comm, share * world)
        comm.all_reduce(send, recv)
        return comm.engine.traffic

    others = world - 1
    for read, written, staged in ranks.run(task):
        if kind == "empty":
            assert read == share_bytes * (world + others)  # fold; copies of the result for the others
            assert written == share_bytes * world
            assert staged == 0
        else:
            assert read == share_bytes * (others + world + others)  # into staging; fold; results of the others
            assert written == share_bytes * (others + 1 + others)
            assert staged == share_bytes * others


def test_from_which_size_on_messages_are_lent() -> None:
    """Both settings change what is staged."""

    def staged(in_place: bool = False, **settings: int) -> int:
        def task(comm: Communicator) -> int:
            make = _empty if "shared_from_bytes" in settings else _private
            send, recv = make(comm, 16384), make(comm, 16384)  # two shares of 64 KiB
            comm.all_reduce(recv if in_place else send, recv)
            return comm.engine.traffic[2]

        with Ranks("shm", 2, {"slot_bytes": 64, **settings}) as two:
            return max(two.run(task))

    assert staged(shared_from_bytes=64 * 1024) == 0
    assert staged(shared_from_bytes=64 * 1024 + 1, private_from_bytes=0) == 2 * 64 * 1024
    assert staged(shared_from_bytes=0, private_from_bytes=0) == 2 * 64 * 1024
    assert staged(private_from_bytes=16 * 1024) == 64 * 1024  # of what is folded, four times the setting
    assert staged(private_from_bytes=16 * 1024 + 1) == 2 * 64 * 1024
    assert staged(in_place=True, private_from_bytes=1) == 2 * 64 * 1024  # never
    assert staged(in_place=True, shared_from_bytes=1, private_from_bytes=0) == 0


def test_memory_comes_and_goes(ranks: Ranks) -> None:
    """Arrays that die between calls, views that outlive them, and many of them."""

    def task(comm: Communicator) -> None:
        views = []
        for round_ in range(6):
            array = comm.empty((3, COUNT), np.int64)
            assert not array.any()
            array[1] = comm.rank + round_
            comm.all_reduce(array[1])
            views.append(array[1, :10])
            del array
            gc.collect()
        for round_, view in enumerate(views):
            assert (view == sum(range(comm.size)) + comm.size * round_).all()

    ranks.run(task)


def test_registered_arrays_keep_their_contents(ranks: Ranks) -> None:
    """When they are registered, when that ends, and when they die registered."""

    def task(comm: Communicator) -> None:
        array = _ordinary(COUNT)
        array[:] = np.arange(COUNT)
        registration = comm.register(array)
        assert isinstance(registration, Registration)
        np.testing.assert_array_equal(array, np.arange(COUNT))
        comm.all_reduce(array)
        registration.release()
        registration.release()
        np.testing.assert_array_equal(array, np.arange(COUNT) * comm.size)
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, np.arange(COUNT) * comm.size**2)
        comm.register(array)
        del array

    ranks.run(task)


def test_memory_that_cannot_be_shared_is_refused(ranks: Ranks) -> None:
    """Shared, mapped and read-only memory, nothing at all, and wrong shapes."""

    def task(comm: Communicator) -> None:
        fixed = np.arange(10_000)
        fixed.flags.writeable = False
        shared = np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8)
        for wrong in (comm.empty(5000), shared, fixed, np.zeros(0)):
            with pytest.raises(ConfigError, match=r"registered|read-only"):
                comm.register(wrong)
        with pytest.raises(ConfigError, match="negative"):
            comm.empty((3, -1))
        with pytest.raises(ConfigError, match="not enough memory"):  # before anybody is killed for it
            comm.empty(1 << 45)
        assert comm.empty(0).size == 0 and comm.empty((), "int8").shape == ()

    ranks.run(task)


def test_which_plans_lend(ranks: Ranks) -> None:
    """What the built-in table uses for large all-reduces lends on every rank."""
    plan = ranks.comms[0].engine.planner.table(Collective.ALL_REDUCE).entries[-1].plan
    assert plan.lends is Lends.ALWAYS
    assert all(plan.program(rank).lends is Lends.ALWAYS for rank in range(ranks.size))
