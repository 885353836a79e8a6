"""Ranks that disagree: all of them get a DesyncError with both sides and both call sites, and nothing was written."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import BrokenGroupError, DesyncError, HcclError
from hccl_py.communicator import Communicator
from hccl_py.core.types import ReduceOp

Call = Callable[[Communicator, np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]
FEW, MANY = 24, 60_000  # elements: by shared slots, by messages; several ranks divide both


def _all_reduce(comm: Communicator, a: Any, b: Any) -> None:
    comm.all_reduce(a, b)


def _all_gather(comm: Communicator, a: Any, b: Any) -> None:
    comm.all_gather(a[: a.size // comm.size], b)


# what: (what most do, what rank 1 does instead, a word of each)
MISMATCHES: dict[str, tuple[Call, Call, str, str]] = {
    "collective": (_all_reduce, _all_gather, "all_reduce", "all_gather"),
    "op": (_all_reduce, lambda comm, a, b: comm.all_reduce(a, b, ReduceOp.MAX), "sum", "max"),
    "dtype": (
        _all_reduce,
        lambda comm, a, b: comm.all_reduce(a.view(np.int32), b.view(np.int32)),
        "float32",
        "int32",
    ),
    "count": (_all_reduce, lambda comm, a, b: comm.all_reduce(a[1:], b[1:]), "{count} elements", "{less} elements"),
    "zero": (_all_reduce, lambda comm, a, b: comm.all_reduce(a[:0], b[:0]), "{count} elements", "0 elements"),
    "root": (
        lambda comm, a, b: comm.reduce(a, b, root=0),
        lambda comm, a, b: comm.reduce(a, b, root=1),
        "root 0",
        "root 1",
    ),
    "barrier": (_all_reduce, lambda comm, a, b: comm.barrier(), "all_reduce", "barrier"),
    "started": (
        lambda comm, a, b: comm.iall_reduce(a, b).wait(),
        lambda comm, a, b: comm.iall_reduce(a, b, ReduceOp.PROD).wait(),
        "sum",
        "prod",
    ),
}


def disagree(comm: Communicator, what: str, count: int) -> tuple[str, bool]:
    """What rank ``comm.rank`` gets, and whether its buffers are as before."""
    usual, other, _, _ = MISMATCHES[what]
    a, b = np.full(count, comm.rank + 1, np.float32), np.full(count, -1, np.float32)
    try:
        (other if comm.rank == 1 else usual)(comm, a, b)
    except DesyncError as error:
        return str(error), bool((a == comm.rank + 1).all() and (b == -1).all())
    return "", False


def check_message(message: str, rank: int, what: str, count: int) -> None:
    """Both sides, in the words of the user's calls."""
    words = [word.format(count=count, less=count - 1) for word in MISMATCHES[what][2:]]
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    assert message.startswith(f"rank {rank}: ")


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("transport", ["loopback", "shm"])
def test_on_one_host_all_ranks_raise_and_go_on(groups: Any, transport: str, what: str, count: int) -> None:
    ranks = groups.get(transport, 3)
    for rank, (message, untouched) in enumerate(ranks.run(lambda comm: disagree(comm, what, count))):
        check_message(message, rank, what, count)
        assert untouched, f"rank {rank}: something was written"
        sites = re.findall(r"(test_contract\.py:\d+) in (\w+|<lambda>)", message)
        assert len(sites) == 2 and sites[0] != sites[1], f"two call sites are wanted: {message}"

    def go_on(comm: Communicator) -> bool:
        data = np.ones(count, np.float32)
        comm.all_reduce(data)
        return bool((data == 3).all())

    assert ranks.run(go_on) == [True] * 3


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("what", MISMATCHES)
def test_between_hosts_all_ranks_raise_and_the_group_is_broken(what: str, count: int) -> None:
    with Ranks("tcp", 3) as ranks:

        def follow(comm: Communicator) -> str:
            message, _ = disagree(comm, what, count)
            if not message:  # its own part was done before it could know: the next call says so
                with pytest.raises(DesyncError) as caught:
                    comm.barrier()
                message = str(caught.value)
            for _ in range(2):
                with pytest.raises(BrokenGroupError, match="is broken since an earlier error"):
                    comm.barrier()
            return message

        for rank, message in enumerate(ranks.run(follow)):
            assert message.startswith(f"rank {rank}: ranks disagree: rank {rank} runs ")
            assert f"; rank {rank} called at {__file__}" in message


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("what", MISMATCHES)
def test_between_hosts_strict_mode_checks_first(what: str, count: int) -> None:
    with Ranks("tcp", 3, {"strict": True}) as ranks:
        for rank, (message, untouched) in enumerate(ranks.run(lambda comm: disagree(comm, what, count))):
            check_message(message, rank, what, count)
            assert untouched, f"rank {rank}: something was written"
            assert f"; rank {rank} called at {__file__}" in message

        def go_on(comm: Communicator) -> bool:
            data = np.ones(count, np.float32)
            comm.all_reduce(data)
            return bool((data == 3).all())

        assert ranks.run(go_on) == [True] * 3


@pytest.mark.parametrize("transport", ["loopback", "shm"])
def test_a_late_rank_still_learns_of_mismatches_that_the_others_have_long_left(transport: str) -> None:
    """Ranks that fail run ahead, but never so far that they wipe out what a late rank must still see."""
    with Ranks(transport, 3, {"timeout_s": 20.0}) as ranks:
        started = threading.Barrier(3, timeout=30)

        def run(comm: Communicator) -> list[str]:
            found = []
            if comm.rank == 2:
                started.wait()
            for i in range(6):
                data = np.ones(4, np.float32)
                try:
                    comm.all_reduce(data, op=ReduceOp.MAX if comm.rank == 0 else ReduceOp.SUM)
                except HcclError as error:
                    found.append(type(error).__name__)
                if i == 0 and comm.rank != 2:
                    started.wait()
            comm.barrier()
            return found

        assert ranks.run(run) == [["DesyncError"] * 6] * 3


@pytest.mark.parametrize("transport", ["loopback", "shm"])
def test_ranks_in_different_order_disagree_at_the_first_difference(groups: Any, transport: str) -> None:
    def swap(comm: Communicator) -> list[str]:
        a, b = np.ones(10, np.float32), np.ones(10, np.float64)
        found = []
        for data in (a, b) if comm.rank == 0 else (b, a):
            try:
                comm.all_reduce(data)
            except DesyncError as error:
                found.append(str(error))
        return found

    for found in groups.get(transport, 2).run(swap):
        assert len(found) == 2 and all("float32" in message and "float64" in message for message in found)


@pytest.mark.parametrize("transport", ["loopback", "shm", "tcp"])
def test_equal_calls_from_different_lines_agree(groups: Any, transport: str) -> None:
    def differ(comm: Communicator) -> float:
        data = np.ones(3)
        if comm.rank == 0:
            comm.all_reduce(data)
        else:
            comm.iall_reduce(data).wait()
        return float(data[0])

    assert groups.get(transport, 2).run(differ) == [2.0, 2.0]
