"""Prepared collectives do what the plain ones do, again and again, and are checked each time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import BrokenGroupError, ConfigError, DesyncError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp

ROOT = 1


def pairs(comm: Communicator) -> dict[str, tuple[int, int, Callable[..., Any], Callable[..., Any]]]:
    """By collective: blocks sent, blocks received, the plain method and the prepared one."""
    n, root = comm.size, ROOT
    return {
        "all_reduce": (1, 1, comm.all_reduce, comm.prepare_all_reduce),
        "max": (
            1,
            1,
            lambda a, b: comm.all_reduce(a, b, ReduceOp.MAX),
            lambda a, b: comm.prepare_all_reduce(a, b, ReduceOp.MAX),
        ),
        "reduce": (
            1,
            1,
            lambda a, b: comm.reduce(a, b, root=root),
            lambda a, b: comm.prepare_reduce(a, b, root=root),
        ),
        "broadcast": (1, 1, lambda a, b: comm.broadcast(b, root), lambda a, b: comm.prepare_broadcast(b, root)),
        "all_gather": (1, n, comm.all_gather, comm.prepare_all_gather),
        "reduce_scatter": (n, 1, comm.reduce_scatter, comm.prepare_reduce_scatter),
        "all_to_all": (n, n, comm.all_to_all, comm.prepare_all_to_all),
        "gather": (1, n, lambda a, b: comm.gather(a, b, root), lambda a, b: comm.prepare_gather(a, b, root)),
        "scatter": (n, 1, lambda a, b: comm.scatter(a, b, root), lambda a, b: comm.prepare_scatter(a, b, root)),
        "barrier": (1, 1, lambda a, b: comm.barrier(), lambda a, b: comm.prepare_barrier()),
    }


@pytest.mark.parametrize("transport", ["loopback", "shm", "tcp"])
@pytest.mark.parametrize("count", [3, 100_000])
def test_prepared_equals_plain(groups: Any, transport: str, count: int) -> None:
    def task(comm: Communicator) -> list[str]:
        wrong = []
        for name, (sent, received, plain, prepare) in pairs(comm).items():
            source = np.zeros(sent * count, np.int64)
            expected, found = np.zeros(received * count, np.int64), np.zeros(received * count, np.int64)
            prepared = prepare(source, found)
            for turn in range(3):
                source[:] = np.arange(source.size) * (comm.rank + 2) + turn
                expected[:] = found[:] = comm.rank + turn
                plain(source, expected)
                if turn == 1:
                    prepared.start()
                    assert prepared.wait()
                else:
                    prepared.run()
                if not np.array_equal(expected, found):
                    wrong.append(f"{name} {turn}")
        return wrong

    assert groups.get(transport, 3).run(task) == [[], [], []]


def test_a_rank_may_call_plainly_what_another_has_prepared(groups: Any) -> None:
    def task(comm: Communicator) -> float:
        data = np.ones(2)
        if comm.rank == 0:
            comm.prepare_all_reduce(data).run()
        else:
            comm.all_reduce(data)
        return float(data[1])

    assert groups.get("shm", 3).run(task) == [3.0] * 3


def test_the_contract_is_checked_and_names_where_it_was_prepared() -> None:
    def task(comm: Communicator) -> str:
        small, large = np.ones(2), np.ones(3)
        prepared = comm.prepare_all_reduce(small if comm.rank == 0 else large)
        with pytest.raises(DesyncError) as caught:
            prepared.run()
        comm.barrier()  # nothing moved
        assert np.all(small == 1) and np.all(large == 1)
        return str(caught.value)

    with Ranks("shm", 2) as ranks:
        for text in ranks.run(task):
            assert "2 elements" in text and "3 elements" in text and "test_prepared.py:" in text


def test_started_once_at_a_time(groups: Any) -> None:
    def task(comm: Communicator) -> None:
        data = np.ones(2)
        prepared = comm.prepare_all_reduce(data)
        assert prepared.done() and prepared.wait()  # nothing was started
        prepared.start()
        for call in (prepared.start, prepared.run):
            with pytest.raises(ConfigError, match="wait"):
                call()
        while not prepared.done():
            pass
        assert prepared.wait() and data[0] == comm.size
        prepared.run()

    groups.get("shm", 2).run(task)


def test_a_wait_may_end_before_the_call() -> None:
    def task(comm: Communicator) -> bool:
        data = np.ones(2)
        prepared = comm.prepare_all_reduce(data)
        if comm.rank == 0:
            prepared.start()
            over = prepared.wait(0.01)
            comm.send(data[:0], 1)
            return over or not prepared.wait()
        comm.recv(data[:0], 0)
        prepared.run()
        return bool(data[0] != 2)

    with Ranks("shm", 2) as ranks:
        assert ranks.run(task) == [False, False]


def test_what_is_wrong_is_refused_when_it_is_prepared(groups: Any) -> None:
    def task(comm: Communicator) -> None:
        with pytest.raises(ConfigError, match="elements"):
            comm.prepare_all_gather(np.ones(2), np.ones(2))
        with pytest.raises(ConfigError, match="root 7"):
            comm.prepare_broadcast(np.ones(2), 7)
        with pytest.raises(ConfigError, match="avg"):
            comm.prepare_all_reduce(np.ones(2, np.int32), op=ReduceOp.AVG)

    groups.get("shm", 2).run(task)


def test_buffers_live_as_long_as_the_prepared_call_and_it_ends_with_the_group() -> None:
    def task(comm: Communicator) -> None:
        data = np.ones(2)
        alive = weakref.ref(data)
        prepared = comm.prepare_all_reduce(data)
        del data
        gc.collect()
        assert alive() is not None
        comm.close()
        with pytest.raises(BrokenGroupError):
            prepared.run()
        del prepared
        gc.collect()
        assert alive() is None

    with Ranks("shm", 2) as ranks:
        ranks.run(task)
