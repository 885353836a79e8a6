"""Odd inputs: right, or one clear error before any byte moves, and then nothing has changed anywhere."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import ConfigError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp

HUGE = "HUGE"  # set: the tests that need 4.3 GB and 15 seconds each


def _mapped(folder: Path, rank: int, count: int) -> Any:
    path = folder / f"rank{rank}"
    path.write_bytes(bytes(8 * count))
    return np.memmap(path, np.float64, "r+", shape=(count,))


@pytest.mark.parametrize("count", [1, 24, 50_000])
def test_memory_of_files(groups: Any, transport: str, count: int, tmp_path: Path) -> None:
    def reduce(comm: Communicator) -> None:
        data = _mapped(tmp_path, comm.rank, count)
        data[:] = comm.rank + 1
        comm.all_reduce(data)
        data.flush()
        assert (np.fromfile(tmp_path / f"rank{comm.rank}") == 6).all()
        shared = np.frombuffer(mmap.mmap(-1, 8 * count), np.float64)
        shared[:] = comm.rank
        comm.broadcast(shared, root=2)
        assert (shared == 2).all()

    groups.get(transport, 3).run(reduce)


def test_read_only_files_may_be_sent_but_not_written(groups: Any, transport: str, tmp_path: Path) -> None:
    def reduce(comm: Communicator) -> None:
        path, out = tmp_path / f"rank{comm.rank}", np.zeros(1000)
        np.full(1000, comm.rank + 1.0).tofile(path)
        data = np.memmap(path, np.float64, "r")
        comm.all_reduce(data, out)
        assert (out == 6).all()
        comm.broadcast(data if comm.rank == 0 else out)
        assert (out == (1 if comm.rank else 6)).all()
        for call in (lambda: comm.all_reduce(data), lambda: comm.all_gather(out[:1], data[:3])):
            with pytest.raises(ConfigError, match="read-only"):
                call()
        comm.barrier()

    groups.get(transport, 3).run(reduce)


def test_scalars_and_nothing(groups: Any, transport: str) -> None:
    def reduce(comm: Communicator) -> None:
        scalar = np.array(comm.rank + 1.0)
        comm.all_reduce(scalar)
        assert scalar == 6
        out = np.zeros((3, 1))
        comm.all_gather(np.array(float(comm.rank)), out)
        assert out.ravel().tolist() == [0, 1, 2]
        for shape in ((0,), (3, 0), (0, 4, 2)):
            nothing = np.zeros(shape)
            assert comm.all_reduce(nothing) is nothing
            comm.all_to_all(nothing, nothing.copy())
            comm.broadcast(nothing)
        with pytest.raises(ConfigError, match="elements"):
            comm.all_gather(np.zeros(0), np.zeros(3))
        comm.barrier()

    groups.get(transport, 3).run(reduce)


@pytest.mark.parametrize("count", [30, 60_000])
def test_what_does_not_lie_in_a_row_or_in_this_order_of_bytes_is_refused(
    groups: Any, transport: str, count: int
) -> None:
    def attempt(comm: Communicator) -> None:
        whole = np.arange(2 * count, dtype=np.float32)
        good = np.zeros(count, np.float32)
        odd = {
            "every second": whole[::2],
            "backwards": whole[:count][::-1],
            "columns": np.asfortranarray(whole.reshape(2, count).T[:, :1])[:, 0][::-1],
            "repeated": np.broadcast_to(np.float32(3), (count,)),
            "big-endian": whole[:count].astype(">f4"),
            "objects": np.full(count, None),
            "text": np.full(count, "a"),
            "records": np.zeros(count, [("a", "f4")]),
            "long double": np.zeros(count, np.longdouble),
            "times": np.zeros(count, "M8[s]"),
        }
        for name, data in odd.items():
            before, was_good = data.copy(), good.copy()
            for call in (
                lambda data=data: comm.all_reduce(data, good), lambda data=data: comm.all_reduce(good, data),
                lambda data=data: comm.iall_reduce(data), lambda data=data: comm.broadcast(data),
                lambda data=data: comm.prepare_reduce(data, good), lambda data=data: comm.send(data, 0),
                lambda data=data: comm.recv(data, 0), lambda data=data: comm.all_to_all(data, good),
            ):  # fmt: skip
                with pytest.raises(ConfigError, match=r"contiguous|supported|read-only"):
                    call()
            assert (data == before).all() and (good == was_good).all(), name
        assert (whole == np.arange(2 * count)).all()
        comm.all_reduce(good)

    groups.get(transport, 3).run(attempt)


@pytest.mark.parametrize("count", [30, 60_000])
def test_buffers_that_overlap_in_part_are_refused(groups: Any, transport: str, count: int) -> None:
    def attempt(comm: Communicator) -> None:
        whole = np.arange(3 * count, dtype=np.float32)
        calls = {
            "shifted": lambda: comm.all_reduce(whole[:count], whole[1 : count + 1]),
            "half": lambda: comm.all_reduce(whole[:count], whole[count // 2 : count // 2 + count], ReduceOp.MAX),
            "not the own block": lambda: comm.all_gather(whole[1 : count + 1], whole),
            "all to all": lambda: comm.all_to_all(whole[: 3 * (count // 3)], whole[1 : 3 * (count // 3) + 1]),
            "reduce_scatter": lambda: comm.reduce_scatter(whole, whole[1 : count + 1]),
        }
        for name, call in calls.items():
            with pytest.raises(ConfigError, match="overlap"):
                call()
            assert (whole == np.arange(3 * count)).all(), name
        comm.all_reduce(whole[:count], whole[count : 2 * count])  # side by side is fine
        assert (whole[count : 2 * count] == 3 * np.arange(count)).all()

    groups.get(transport, 3).run(attempt)


@pytest.mark.skipif(HUGE not in os.environ, reason="4.3 GB and 15 seconds: HUGE=1 runs it")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_more_than_2_to_the_31_elements(transport: str) -> None:
    count = (1 << 31) + 12_345
    with Ranks(transport, 2, {"timeout_s": 200.0}) as ranks:

        def reduce(comm: Communicator) -> None:
            data = np.zeros(count, np.uint8)
            data[:: 1 << 20] = comm.rank + 1
            data[-5:] = 10 * (comm.rank + 1)
            comm.all_reduce(data)
            assert (data[:: 1 << 20] == 3).all() and (data[-5:] == 30).all() and data[1] == 0
            if comm.rank == 0:
                data[-1] = 77
            comm.broadcast(data)
            assert data[-1] == 77 and data[-2] == 30
            if comm.rank == 0:
                data[-2] = 78
                comm.send(data, 1)
            else:
                comm.recv(data, 0)
            assert data[-2] == 78 and data[0] == 3

        ranks.run(reduce, 220.0)
