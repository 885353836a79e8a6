"""The exchange kernels on the host: ranks are threads, warps are threads, the protocols are those of the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.core.errors import BrokenGroupError, CollectiveTimeoutError, DesyncError, PeerLostError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.gpu.group import DeviceRanks

F32, I32, U8 = DType.FLOAT32, DType.INT32, DType.UINT8


def tune(ranks: DeviceRanks, way: int) -> None:
    """By which kernels: SMALL, LARGE or CARRIED."""
    if way == CARRIED:
        ranks.tune(carry_bytes=1, carry_piece_bytes=65536)
    else:
        ranks.tune(small_bytes=way)


def on_ranks(size: int, work: Callable[[DeviceRanks], Any], way: int = 0, timeout_s: float = 30.0) -> list[Any]:
    """Run ``work`` on ``size`` ranks, threads of this process; results, or the exceptions, in rank order."""
    meeting = ThreadBootstrap.Meeting(size)
    results: list[Any] = [None] * size
    done = threading.Barrier(size)

    def rank_main(rank: int) -> None:
        ranks = DeviceRanks(rank, size, ThreadBootstrap(meeting, rank).allgather, kind="host", timeout_s=timeout_s)
        tune(ranks, way)
        try:
            results[rank] = work(ranks)
        except Exception as error:
            results[rank] = error
        done.wait()
        ranks.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def raise_errors(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def data(rank: int, count: int, dtype: Any = np.float32) -> Any:
    return (np.random.default_rng(rank).standard_normal(count) * 100).astype(dtype)


SMALL, LARGE, CARRIED = 16384, 0, -1


@pytest.mark.parametrize("way", [SMALL, LARGE, CARRIED])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 257, 4096, 90001])
@pytest.mark.parametrize("in_place", [False, True])
def test_all_reduce_sums_in_rank_order(way: int, count: int, in_place: bool) -> None:
    def work(ranks: DeviceRanks) -> Any:
        results = []
        for turn in range(4):  # both parities, counters that go on
            source = data(ranks.rank + 10 * turn, count)
            out = source if in_place else np.full_like(source, np.nan)
            ranks.run(Collective.ALL_REDUCE, ReduceOp.SUM, F32, 0, source.ctypes.data, out.ctypes.data, count, 0)
            results.append(out)
        return results

    for got in raise_errors(on_ranks(2, work, way)):
        for turn, out in enumerate(got):
            np.testing.assert_array_equal(out, data(10 * turn, count) + data(1 + 10 * turn, count))


@pytest.mark.parametrize("way", [SMALL, LARGE, CARRIED])
@pytest.mark.parametrize("offset", [0, 1])
def test_three_ranks_and_unaligned_memory(way: int, offset: int) -> None:
    count = 1001

    def work(ranks: DeviceRanks) -> Any:
        source = data(ranks.rank, count + offset)[offset:]
        out = np.full(count + offset, np.nan, np.float32)[offset:]
        ranks.run(Collective.ALL_REDUCE, ReduceOp.AVG, F32, 0, source.ctypes.data, out.ctypes.data, count, 0)
        whole = data(ranks.rank, count, np.int32)
        most = np.zeros(count, np.int32)
        ranks.run(Collective.REDUCE, ReduceOp.MAX, I32, 1, whole.ctypes.data, most.ctypes.data, count, 0)
        return out, most

    third = np.float32(1.0 / 3)
    results = raise_errors(on_ranks(3, work, way))
    expected = data(0, count + offset)[offset:] * third
    for rank in (1, 2):
        expected = expected + data(rank, count + offset)[offset:] * third
    for out, _ in results:
        np.testing.assert_array_equal(out, expected)
    most = np.maximum(np.maximum(data(0, count, np.int32), data(1, count, np.int32)), data(2, count, np.int32))
    np.testing.assert_array_equal(results[1][1], most)
    assert not results[0][1].any() and not results[2][1].any()


def test_cast_to_the_wire_gives_all_ranks_the_same_bits() -> None:
    count = 1003

    def work(ranks: DeviceRanks) -> Any:
        outs = []
        for way in (SMALL, LARGE, CARRIED):
            tune(ranks, way)
            source, out = data(ranks.rank, count), np.full(count, np.nan, np.float32)
            ranks.run(
                Collective.ALL_REDUCE,
                ReduceOp.SUM,
                F32,
                0,
                source.ctypes.data,
                out.ctypes.data,
                count,
                0,
                DType.BFLOAT16,
            )
            outs.append(out)
        return outs

    def rounded(values: Any) -> Any:
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)

    for outs in raise_errors(on_ranks(2, work)):
        for out in outs:
            np.testing.assert_array_equal(out, rounded(data(0, count)) + rounded(data(1, count)))


@pytest.mark.parametrize("way", [SMALL, LARGE, CARRIED])
@pytest.mark.parametrize("size", [2, 3])
def test_movements(way: int, size: int) -> None:
    count = 1000

    def work(ranks: DeviceRanks) -> Any:
        rank = ranks.rank
        mine = data(rank, count * size)
        got = {}
        for name, collective, root in (
            ("gathered", Collective.ALL_GATHER, 0),
            ("exchanged", Collective.ALL_TO_ALL, 0),
            ("broadcast", Collective.BROADCAST, 1),
            ("at_root", Collective.GATHER, 1),
            ("scattered", Collective.SCATTER, 1),
        ):
            got[name] = out = np.zeros(count * size, np.float32)
            ranks.run(collective, ReduceOp.SUM, F32, root, mine.ctypes.data, out.ctypes.data, count, 0)
        ranks.run(Collective.BARRIER, ReduceOp.SUM, U8, 0, 0, 0, 0, 0)
        return got

    results = raise_errors(on_ranks(size, work, way))
    whole = [data(rank, count * size) for rank in range(size)]
    firsts = np.concatenate([values[:count] for values in whole])
    for rank, got in enumerate(results):
        np.testing.assert_array_equal(got["gathered"], firsts)
        blocks = [values[rank * count : (rank + 1) * count] for values in whole]
        np.testing.assert_array_equal(got["exchanged"], np.concatenate(blocks))
        np.testing.assert_array_equal(got["broadcast"][:count], whole[1][:count])
        np.testing.assert_array_equal(got["scattered"][:count], whole[1][rank * count : (rank + 1) * count])
        np.testing.assert_array_equal(got["at_root"], firsts if rank == 1 else np.zeros_like(firsts))


def test_parts_and_messages() -> None:
    """Uneven blocks, none included; then a message between two of three ranks."""

    def work(ranks: DeviceRanks) -> Any:
        rank, size = ranks.rank, ranks.size
        sizes = [[(a * 37 + b * 1111) % 3000 for b in range(size)] for a in range(size)]  # from a to b
        send = [data(10 * rank + to, sizes[rank][to], np.uint8) for to in range(size)]
        recv = [np.zeros(sizes[of][rank], np.uint8) for of in range(size)]
        ranks.run_parts(
            [part.ctypes.data for part in send],
            [part.nbytes for part in send],
            [part.ctypes.data for part in recv],
            [part.nbytes for part in recv],
            0,
        )
        for of in range(size):
            np.testing.assert_array_equal(recv[of], data(10 * of + rank, sizes[of][rank], np.uint8))
        note = data(7, 500, np.uint8) if rank == 2 else np.zeros(500, np.uint8)
        if rank != 1:
            to, none = [note.ctypes.data if peer == 2 - rank else 0 for peer in range(3)], [0] * 3
            size_bytes = [500 if peer == 2 - rank else 0 for peer in range(3)]
            if rank == 2:
                ranks.run_parts(to, size_bytes, none, none, 0, message=True)
            else:
                ranks.run_parts(none, none, to, size_bytes, 0, message=True)
            np.testing.assert_array_equal(note, data(7, 500, np.uint8))

    raise_errors(on_ranks(3, work))


@pytest.mark.parametrize("way", [SMALL, LARGE, CARRIED])
def test_ranks_that_disagree_are_told(way: int) -> None:
    def work(ranks: DeviceRanks) -> None:
        memory = data(ranks.rank, 4096)
        root = ranks.rank  # each thinks itself the root
        ranks.run(Collective.BROADCAST, ReduceOp.SUM, F32, root, memory.ctypes.data, memory.ctypes.data, 100, 0)
        ranks.check()

    for rank, error in enumerate(on_ranks(2, work, way, timeout_s=5)):
        assert isinstance(error, DesyncError)
        assert error.peer == 1 - rank
        assert f"root {rank}" in error.ours and f"root {1 - rank}" in error.theirs


@pytest.mark.parametrize("way", [SMALL, LARGE, CARRIED])
def test_a_rank_that_does_not_come_is_named(way: int) -> None:
    def work(ranks: DeviceRanks) -> None:
        memory = data(ranks.rank, 4096)
        if ranks.rank == 0:
            ranks.run(Collective.ALL_REDUCE, ReduceOp.SUM, F32, 0, memory.ctypes.data, memory.ctypes.data, 4096, 0)
            ranks.check()

    error, other = on_ranks(2, work, way, timeout_s=0.2)
    assert other is None
    assert isinstance(error, CollectiveTimeoutError)
    assert error.peer == 1 and error.waited_s >= 0.2


def test_a_lost_peer_ends_the_wait() -> None:
    def work(ranks: DeviceRanks) -> Any:
        memory = data(ranks.rank, 4096)
        if ranks.rank == 0:
            threading.Timer(0.05, lambda: ranks.abort("rank 1 is gone", lost=1)).start()
            ranks.run(Collective.ALL_REDUCE, ReduceOp.SUM, F32, 0, memory.ctypes.data, memory.ctypes.data, 4096, 0)
            ranks.run(Collective.BARRIER, ReduceOp.SUM, U8, 0, 0, 0, 0, 0)

    error, _ = on_ranks(2, work, SMALL)
    assert isinstance(error, PeerLostError) and error.rank == 1


def test_a_closed_group_says_so() -> None:
    def work(ranks: DeviceRanks) -> None:
        ranks.close()
        ranks.run(Collective.BARRIER, ReduceOp.SUM, U8, 0, 0, 0, 0, 0)

    assert all(isinstance(error, BrokenGroupError) for error in on_ranks(2, work))
