"""What one rank can judge alone, in a world of one; the conformance tests have the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hccl_py
from hccl_py import BrokenGroupError, ConfigError
from hccl_py.bootstrap import SingleBootstrap
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.core.types import ReduceOp


@pytest.fixture
def comm() -> Iterator[Communicator]:
    with hccl_py.init(SingleBootstrap(), Env()) as comm:
        yield comm


def test_init_without_a_launcher_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    with hccl_py.init() as comm:
        assert (comm.rank, comm.size) == (0, 1)
        assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]


def test_a_world_of_one_does_every_collective(comm: Communicator) -> None:
    data, out = np.arange(4.0), np.zeros(4)
    for result in (
        comm.all_reduce(data, out), comm.reduce(data, out), comm.broadcast(data), comm.all_gather(data, out),
        comm.reduce_scatter(data, out), comm.all_to_all(data, out), comm.gather(data, out), comm.scatter(data, out),
    ):  # fmt: skip
        assert result.tolist() == [0, 1, 2, 3]
    comm.barrier()
    comm.ibarrier().wait()
    work = comm.irecv(out, 0, tag=4)
    comm.send(data + 1, 0, tag=4)
    work.wait()
    assert work.source == 0 and out.tolist() == [1, 2, 3, 4]


Call = Callable[[Communicator, Any, Any], Any]
TWO_BUFFERS: dict[str, Call] = {
    "all_reduce": lambda comm, a, b: comm.all_reduce(a, b),
    "iall_reduce": lambda comm, a, b: comm.iall_reduce(a, b),
    "reduce": lambda comm, a, b: comm.reduce(a, b),
    "ireduce": lambda comm, a, b: comm.ireduce(a, b),
    "all_gather": lambda comm, a, b: comm.all_gather(a, b),
    "iall_gather": lambda comm, a, b: comm.iall_gather(a, b),
    "reduce_scatter": lambda comm, a, b: comm.reduce_scatter(a, b),
    "ireduce_scatter": lambda comm, a, b: comm.ireduce_scatter(a, b),
    "all_to_all": lambda comm, a, b: comm.all_to_all(a, b),
    "iall_to_all": lambda comm, a, b: comm.iall_to_all(a, b),
    "gather": lambda comm, a, b: comm.gather(a, b),
    "igather": lambda comm, a, b: comm.igather(a, b),
    "scatter": lambda comm, a, b: comm.scatter(a, b),
    "iscatter": lambda comm, a, b: comm.iscatter(a, b),
}


@pytest.mark.parametrize("call", TWO_BUFFERS.values(), ids=list(TWO_BUFFERS))
def test_buffers_that_do_not_fit_are_refused_unchanged(comm: Communicator, call: Call) -> None:
    good, out = np.ones(8), np.zeros(8)
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    for a, b, message in (
        (good, np.zeros(7), "8 elements|7 elements|equal blocks"),
        (good, np.zeros(9), "8 elements|9 elements|equal blocks"),
        (good, np.zeros(8, np.float32), "different element types"),
        (good.astype(np.int64), out, "different element types"),
        (good, np.zeros(16)[::2], "recvbuf is not contiguous"),
        (np.ones(16)[::2], out, "sendbuf is not contiguous"),
        (good, fixed, "recvbuf is read-only"),
        (good, b"12345678", "recvbuf is read-only"),
        (None, out, "sendbuf is a NoneType"),
        (good, [0.0] * 8, "recvbuf is a list"),
        (good.astype(np.complex128), out, "complex128"),
    ):
        with pytest.raises(ConfigError, match=message):
            call(comm, a, b)
    assert (good == 1).all() and (out == 0).all() and (fixed == 0).all()


def test_one_buffer_calls_refuse_what_they_must_write(comm: Communicator) -> None:
    for call in (comm.all_reduce, comm.iall_reduce, comm.reduce, comm.recv, comm.irecv):
        with pytest.raises(ConfigError, match="read-only"):
            call(b"12345678")
    assert comm.broadcast(b"12345678") == b"12345678"  # the root only reads
    comm.isend(b"12345678", 0)
    assert comm.recv(bytearray(8)) == 0


@pytest.mark.parametrize("root", [-1, 1, 2**32, 2**40])
def test_roots_outside_the_world_are_refused(comm: Communicator, root: int) -> None:
    data, out = np.ones(4), np.zeros(4)
    for call in (
        lambda: comm.broadcast(data, root),
        lambda: comm.ibroadcast(data, root),
        lambda: comm.reduce(data, out, root=root),
        lambda: comm.gather(data, out, root),
        lambda: comm.scatter(data, out, root),
        lambda: comm.iscatter(data, out, root),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"root {root} is outside a world of 1"):
            call()


def test_an_operator_must_be_one(comm: Communicator) -> None:
    with pytest.raises(TypeError):
        comm.all_reduce(np.ones(3), op="sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown"):
        comm.all_reduce(np.ones(3), op=99)  # type: ignore[arg-type]


def test_buffers_of_many_kinds_in_one_call(comm: Communicator) -> None:
    out = bytearray(8)
    comm.all_reduce(b"abcdefgh", out, ReduceOp.MAX)
    assert bytes(out) == b"abcdefgh"


def test_a_closed_group_refuses_everything_and_closes_again(comm: Communicator) -> None:
    comm.close()
    comm.close()
    for call in (comm.barrier, comm.ibarrier, lambda: comm.all_reduce(np.ones(1)), lambda: comm.isend(np.ones(1), 0)):
        with pytest.raises(BrokenGroupError, match="was closed"):
            call()
    comm.engine.abort()


def test_leaving_the_block_by_an_error_aborts() -> None:
    with pytest.raises(ZeroDivisionError), hccl_py.init(SingleBootstrap(), Env()) as comm:
        work = comm.irecv(np.zeros(1), 0)
        raise ZeroDivisionError("of mine")
    with pytest.raises(BrokenGroupError, match="rank 0 aborted the group: ZeroDivisionError: of mine"):
        work.wait()
