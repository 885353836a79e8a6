"""Communicator on arrays with __cuda_array_interface__, without a GPU: the memory is the host's, so are the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hccl_py
from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, DesyncError
from hccl_py.core.types import DType, ReduceOp
from hccl_py.gpu.arrays import describe_on_device, on_device, stream_of
from hccl_py.gpu.collectives import DeviceCollectives
from hccl_py.gpu.group import DeviceRanks


class Fake:
    """Says that the memory of a NumPy array is a GPU's."""

    def __init__(self, data: Any, /, stream: int | None = 1, gpu: int = 0, **changes: Any) -> None:
        self.data = data
        self.gpu = gpu
        self.__array_interface = {**data.__array_interface__, "version": 3, "stream": stream, **changes}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.__array_interface


class FakeDriver:
    """Copies as asked; knows what it was told to be on GPU 1."""

    def __init__(self, others: set[int]) -> None:
        self._others = others

    def device_of(self, ptr: int, what: str) -> int:
        return int(ptr in self._others)

    def arch(self, ordinal: int) -> str:
        return "host"

    def copy(self, to: int, source: int, num_bytes: int, stream: int, ordinal: int) -> None:
        import ctypes

        ctypes.memmove(to, source, num_bytes)

    def synchronize(self, ordinal: int) -> None:
        pass


def join(rank: int, size: int, index: int, arch: str, exchange: Any, env: Env, timeout_s: float) -> DeviceRanks:
    return DeviceRanks(rank, size, exchange, kind="host", timeout_s=30)


def on_ranks(size: int, work: Callable[[Communicator], Any], others: Any = ()) -> list[Any]:
    """``work`` on ranks that are threads; what they return or raise."""
    meeting, results, done = ThreadBootstrap.Meeting(size), [None] * size, threading.Barrier(size)

    def main(rank: int) -> None:
        with hccl_py.init(ThreadBootstrap(meeting, rank), Env(timeout_s=30)) as comm:
            comm._gpu = DeviceCollectives(
                rank, size, comm._exchange, comm.engine.env, 30, lambda: FakeDriver(set(others)), join
            )
            try:
                results[rank] = work(comm)
            except Exception as error:
                results[rank] = error
            done.wait()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def values(rank: int, count: int = 12) -> Any:
    return np.random.default_rng(rank).integers(-50, 50, count).astype(np.float32)


def everything(comm: Communicator) -> None:
    n, me = comm.size, comm.rank
    total, all_of_them = sum(values(rank) for rank in range(n)), np.concatenate([values(rank) for rank in range(n)])

    def out(count: int) -> Fake:
        return Fake(np.full(count, np.nan, np.float32), stream=7 + me)

    def check(got: Any, wanted: Any) -> None:
        np.testing.assert_array_equal(got.data, wanted)

    mine = Fake(values(me))
    check(comm.all_reduce(mine, out(12)), total)
    check(mine, values(me))
    check(comm.all_reduce(Fake(values(me)), op=ReduceOp.SUM), total)
    reduced = out(12)
    comm.reduce(mine, reduced if me == 1 % n else None, root=1 % n)
    if me == 1 % n:
        check(reduced, total)
    check(comm.broadcast(Fake(values(me)), root=n - 1), values(n - 1))
    check(comm.all_gather(mine, out(12 * n)), all_of_them)
    check(comm.reduce_scatter(mine, out(12 // n)), total.reshape(n, -1)[me])
    check(comm.all_to_all(mine, out(12)), np.concatenate([values(r).reshape(n, -1)[me] for r in range(n)]))
    gathered = out(12 * n)
    comm.gather(mine, gathered if me == 0 else None)
    if me == 0:
        check(gathered, all_of_them)
    check(comm.scatter(mine if me == 0 else None, out(12 // n)), values(0).reshape(n, -1)[me])
    incoming = out(12)
    assert comm.sendrecv(mine, (me + 1) % n, incoming, (me - 1) % n) == (me - 1) % n
    check(incoming, values((me - 1) % n))
    if n > 1:
        if me == 0:
            comm.send(mine, 1)
        if me == 1:
            assert comm.recv(incoming, 0) == 0
            check(incoming, values(0))


@pytest.mark.parametrize("size", [1, 2])  # the host has kernels for float32 sums of two; tests/gpu has the rest
def test_every_collective(size: int) -> None:
    for result in on_ranks(size, everything):
        if isinstance(result, Exception):
            raise result


def test_streams_are_put_in_order() -> None:
    """The call waits for the other array's stream, and that one for the call."""

    def work(comm: Communicator) -> list[Any]:
        comm.all_reduce(Fake(values(0)))
        told: list[Any] = []
        ranks = comm._gpu._ranks
        assert ranks is not None
        order, launch = ranks.order, ranks.launch
        ranks.order = lambda *streams: (told.append(streams), order(0, 0))[1]
        ranks.launch = lambda *a: (told.append(a[8]), launch(*a[:8], 0, *a[9:]))[1]
        comm.all_reduce(Fake(values(0), stream=5), Fake(values(1), stream=6))
        comm.all_reduce(Fake(values(0), stream=5), Fake(values(1), stream=5))
        return told

    assert on_ranks(2, work) == [[(5, 6), 6, (6, 5), 5]] * 2


BAD: dict[str, tuple[Callable[[Communicator], Any], str]] = {
    "host in": (lambda c: c.all_reduce(values(0), Fake(values(0))), "sendbuf is not in GPU memory"),
    "host out": (lambda c: c.all_gather(Fake(values(0)), values(0)), "recvbuf is not in GPU memory"),
    "dtype": (lambda c: c.all_reduce(Fake(np.zeros(3, np.complex64))), "elements of type complex64; supported"),
    "order": (lambda c: c.all_reduce(Fake(np.zeros(3, ">f4"))), "elements of type >f4"),
    "strides": (lambda c: c.broadcast(Fake(np.zeros((4, 4))[:, :2])), "not contiguous"),
    "readonly": (lambda c: c.all_reduce(Fake(values(0), data=(16, True))), "read-only"),
    "mask": (lambda c: c.all_reduce(Fake(values(0), mask=Fake(values(0)))), "mask"),
    "stream": (lambda c: c.all_reduce(Fake(values(0), stream=0)), "stream 0"),
    "sizes": (lambda c: c.all_reduce(Fake(values(0)), Fake(values(0, 3))), "1 blocks of 12"),
    "types": (lambda c: c.all_reduce(Fake(values(0)), Fake(np.zeros(12))), "different element types"),
    "op": (lambda c: c.all_reduce(Fake(values(0)), op=ReduceOp.BAND), "BAND is not defined on float32"),
    "root": (lambda c: c.broadcast(Fake(values(0)), root=9), "root 9"),
    "tag": (lambda c: c.send(Fake(values(0)), 1, tag=3), "no tags"),
    "anybody": (lambda c: c.recv(Fake(values(0))), "rank of its peer"),
    "itself": (lambda c: c.send(Fake(values(0)), c.rank), "by sendrecv"),
    "twin": (lambda c: c.iall_reduce(Fake(values(0))), "in the memory of a device"),
    "prepared": (lambda c: c.prepare_all_reduce(Fake(values(0))), "in the memory of a device"),
    "codec": (lambda c: c.all_reduce(Fake(values(0)), codec="int8"), "in the memory of a device"),
}


def test_what_one_rank_can_judge_is_refused_before_anything_happens() -> None:
    def work(comm: Communicator) -> None:
        for name, (call, words) in BAD.items():
            with pytest.raises(ConfigError) as caught:
                call(comm)
            assert words in str(caught.value), name
        comm.all_reduce(Fake(values(0)))

    assert on_ranks(2, work) == [None, None]


def test_another_gpu_than_the_first_is_refused() -> None:
    elsewhere = values(0)

    def work(comm: Communicator) -> None:
        comm.all_reduce(Fake(values(0)))
        with pytest.raises(ConfigError, match=r"is on GPU 1, but rank . began on GPU 0"):
            comm.all_reduce(Fake(elsewhere))

    assert on_ranks(2, work, {elsewhere.ctypes.data}) == [None, None]


def test_a_first_message_in_a_larger_world_is_refused() -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ConfigError, match="make it a collective"):
            comm.send(Fake(values(0)), (comm.rank + 1) % 3)

    assert on_ranks(3, work) == [None] * 3


def test_ranks_with_different_kinds_of_memory_hear_of_it() -> None:
    def work(comm: Communicator) -> None:
        comm.all_reduce(Fake(values(0)) if comm.rank == 0 else values(1))

    on_gpu, on_host = on_ranks(2, work)
    assert isinstance(on_gpu, DesyncError) and "arrays in host memory" in str(on_gpu)
    assert isinstance(on_host, DesyncError)


def test_the_array_says_its_type_where_the_interface_cannot() -> None:
    class Named(Fake):
        dtype = "torch.bfloat16"

    assert describe_on_device(Named(np.zeros(3, np.uint16)), "x").dtype is DType.BFLOAT16
    assert describe_on_device(Fake(np.zeros(3, bool)), "x")[1:] == (3, DType.BOOL)
    assert on_device(Fake(values(0))) and not on_device(values(0))


def test_streams_by_the_interface() -> None:
    assert [stream_of(Fake(values(0), stream)) for stream in (None, 1, 2, 4096)] == [0, 0, 2, 4096]
