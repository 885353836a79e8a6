"""What ranks of a lab do. Each function runs on all ranks of a launch; its first argument tells the test an event."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import hccl_py
import hccl_py.communicator
from hccl_py.core.types import Collective, ReduceOp

Tell = Callable[[str], None]
Array = NDArray[Any]


def transports(tell: Tell) -> dict[str, Any]:
    """By which transport each peer is reached, and the networks' addresses that this rank's tcp connections have."""
    with hccl_py.init() as comm:
        found = [comm.engine.transport_to(peer) for peer in range(comm.size)]
        _check_all_reduce(comm, 1000)
        return {"transports": found, "addresses": sorted(_local_addresses())}


def _local_addresses() -> set[str]:
    """Own addresses of this process's connections, those to and from torch's store left out."""
    store = int(os.environ["MASTER_PORT"])
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # no socket, or closed meanwhile
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                here, there = connection.getsockname(), connection.getpeername()
            except OSError:
                continue  # it listens
            if store not in (here[1], there[1]):
                found.add(here[0].removeprefix("::ffff:"))
    return found


def collectives(tell: Tell, counts: list[int]) -> list[str]:
    """Every collective, in place and not, each root; raises AssertionError at the first wrong result. What was run."""
    ran = []
    with hccl_py.init() as comm:
        for count in counts:
            for name, check in _CHECKS.items():
                check(comm, count)
                ran.append(f"{name} {count}")
    return ran


def _data(rank: int, count: int, dtype: str = "float32") -> Array:
    """Small whole numbers, different on each rank and at each place: sums of them are exact."""
    return ((np.arange(count) * 7 + rank * 3 + 1) % 11).astype(dtype)


def _all(comm: Any, count: int, dtype: str = "float32") -> list[Array]:
    return [_data(rank, count, dtype) for rank in range(comm.size)]


def _equal(got: Array, expected: Array, what: str) -> None:
    assert np.array_equal(got, expected), f"{what}: {np.flatnonzero(got != expected).size} of {got.size} are wrong"


def _check_all_reduce(comm: Any, count: int) -> None:
    for dtype in ("float32", "int64", "float16"):
        total = np.sum(_all(comm, count, dtype), axis=0, dtype=dtype)
        out = np.empty(count, dtype)
        _equal(comm.all_reduce(_data(comm.rank, count, dtype), out), total, f"all_reduce of {dtype}")
        mine = _data(comm.rank, count, dtype)
        comm.all_reduce(mine)
        _equal(mine, total, f"all_reduce of {dtype} in place")
    largest = comm.all_reduce(_data(comm.rank, count), np.empty(count, "float32"), ReduceOp.MAX)
    _equal(largest, np.max(_all(comm, count), axis=0), "all_reduce, max")
    mean = comm.all_reduce(_data(comm.rank, count) * comm.size, np.empty(count, "float32"), ReduceOp.AVG)
    _equal(mean, np.sum(_all(comm, count), axis=0), "all_reduce, avg")


def _check_reduce(comm: Any, count: int) -> None:
    for root in range(comm.size):
        out = np.empty(count, "float32") if comm.rank == root else None
        comm.reduce(_data(comm.rank, count), out, ReduceOp.SUM, root)
        if out is not None:
            _equal(out, np.sum(_all(comm, count), axis=0), f"reduce to {root}")


def _check_broadcast(comm: Any, count: int) -> None:
    for root in range(comm.size):
        data = _data(comm.rank, count)
        comm.broadcast(data, root)
        _equal(data, _data(root, count), f"broadcast from {root}")


def _check_all_gather(comm: Any, count: int) -> None:
    out = np.empty(count * comm.size, "float32")
    comm.all_gather(_data(comm.rank, count), out)
    _equal(out, np.concatenate(_all(comm, count)), "all_gather")


def _check_reduce_scatter(comm: Any, count: int) -> None:
    out = np.empty(count, "float32")
    comm.reduce_scatter(_data(comm.rank, count * comm.size), out, ReduceOp.SUM)
    total = np.sum(_all(comm, count * comm.size), axis=0)
    _equal(out, total[comm.rank * count :][:count], "reduce_scatter")


def _check_all_to_all(comm: Any, count: int) -> None:
    out = np.empty(count * comm.size, "float32")
    comm.all_to_all(_data(comm.rank, count * comm.size), out)
    blocks = [data[comm.rank * count :][:count] for data in _all(comm, count * comm.size)]
    _equal(out, np.concatenate(blocks), "all_to_all")


def _check_gather(comm: Any, count: int) -> None:
    for root in range(comm.size):
        out = np.empty(count * comm.size, "float32") if comm.rank == root else None
        comm.gather(_data(comm.rank, count), out, root)
        if out is not None:
            _equal(out, np.concatenate(_all(comm, count)), f"gather to {root}")


def _check_scatter(comm: Any, count: int) -> None:
    for root in range(comm.size):
        data = _data(root, count * comm.size) if comm.rank == root else None
        out = np.empty(count, "float32")
        comm.scatter(data, out, root)
        _equal(out, _data(root, count * comm.size)[comm.rank * count :][:count], f"scatter from {root}")


def _check_send_recv(comm: Any, count: int) -> None:
    """Everybody to everybody at once, a tag for each pair; then to rank 0 from anybody."""
    out = np.empty((comm.size, count), "float32")
    works = [comm.irecv(out[q], q, tag=q * comm.size + comm.rank) for q in range(comm.size)]
    mine = _data(comm.rank, count)
    works += [comm.isend(mine, q, tag=comm.rank * comm.size + q) for q in range(comm.size)]
    for work in works:
        work.wait()
    _equal(out, np.stack(_all(comm, count)), "send and recv")
    comm.barrier()
    if comm.rank:
        comm.send(mine, 0, tag=1)
        return
    sources = []
    for _ in range(comm.size - 1):
        data = np.empty(count, "float32")
        sources.append(comm.recv(data, tag=1))
        _equal(data, _data(sources[-1], count), f"recv from anybody, who was {sources[-1]}")
    assert sorted(sources) == list(range(1, comm.size))


_CHECKS: dict[str, Callable[[Any, int], None]] = {
    "all_reduce": _check_all_reduce,
    "reduce": _check_reduce,
    "broadcast": _check_broadcast,
    "all_gather": _check_all_gather,
    "reduce_scatter": _check_reduce_scatter,
    "all_to_all": _check_all_to_all,
    "gather": _check_gather,
    "scatter": _check_scatter,
    "send_recv": _check_send_recv,
    "barrier": lambda comm, _: comm.barrier(),
}


def wrong_result(tell: Tell) -> None:
    """The check of results is given a wrong one."""
    with hccl_py.init() as comm:
        data = comm.all_reduce(_data(comm.rank, 1000))
        expected = np.sum(_all(comm, 1000), axis=0)
        _equal(data, expected, "before")
        expected[17] += 1
        _equal(data, expected, "planted")


def all_reduce_once(tell: Tell, size_bytes: int) -> str:
    """One large all_reduce, checked. The plan that did it."""
    with hccl_py.init() as comm:
        count = size_bytes // 4
        data = _data(comm.rank, count)
        comm.all_reduce(data)
        _equal(data, np.sum(_all(comm, count), axis=0), "all_reduce")
        return comm.engine.planner.table(Collective.ALL_REDUCE).choose(size_bytes).plan.name


def different_calls(tell: Tell, odd: int, how: str) -> None:
    """All ranks but ``odd`` run one collective, that one another; then all try to go on."""
    with hccl_py.init(timeout_s=20.0) as comm:
        comm.all_reduce(np.ones(1000, "float32"))
        if comm.rank != odd:
            comm.all_reduce(np.ones(1000, "float32"))
        elif how == "count":
            comm.all_reduce(np.ones(1001, "float32"))
        elif how == "dtype":
            comm.all_reduce(np.ones(1000, "int32"))
        elif how == "op":
            comm.all_reduce(np.ones(1000, "float32"), op=ReduceOp.MAX)
        else:
            comm.broadcast(np.ones(1000, "float32"), 0)
        comm.barrier()  # whoever had its part done learns of it here


def one_leaves(tell: Tell, leaver: int, pair: list[int]) -> str:
    """One rank leaves after a collective; a pair goes on with messages, then wants one from the rank that has left."""
    with hccl_py.init(timeout_s=20.0) as comm:
        comm.all_reduce(np.ones(1000, "float32"))
        if comm.rank == leaver:
            return "left"
        if comm.rank not in pair:
            return "was not asked"
        other = pair[1 - pair.index(comm.rank)]
        data = np.zeros(1000, "float32")
        for turn in range(100):
            if turn % 2 == pair.index(comm.rank):
                comm.send(np.full(1000, turn, "float32"), other)
            else:
                comm.recv(data, other)
                _equal(data, np.full(1000, turn, "float32"), "message")
        try:
            comm.recv(data, leaver)
        except hccl_py.PeerLostError as error:
            assert error.rank == leaver, error
            return "misses the one that left"
        return "received from a rank that never sent"


def until_it_breaks(tell: Tell, timeout_s: float, size_bytes: int) -> None:
    """All-reduce for ever. The error must stay: the group is broken."""
    with hccl_py.init(timeout_s=timeout_s) as comm:
        data = np.zeros(size_bytes // 4, "float32")
        comm.all_reduce(data)
        comm.barrier()
        tell("working")
        try:
            while True:
                comm.all_reduce(data)
        except hccl_py.HcclError:
            try:
                comm.barrier()
            except hccl_py.HcclError:
                tell("still broken")
            raise


def hear_and_reduce(tell: Tell, timeout_s: float, size_bytes: int) -> bool:
    """Tell that all is well, then all-reduce a while."""
    with hccl_py.init(timeout_s=timeout_s) as comm:
        comm.barrier()
        tell("working")
        for _ in range(20):
            data = comm.all_reduce(_data(comm.rank, size_bytes // 4))
        return bool(np.array_equal(data, np.sum(_all(comm, size_bytes // 4), axis=0)))


def both_backends(tell: Tell, size_bytes: int, rounds: int) -> dict[str, float]:
    """Seconds that torch's all_reduce takes over gloo and over hccl_py, in turns; the best round of each."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    groups = {"gloo": dist.group.WORLD, "hccl_py": dist.new_group(backend="hccl_py")}
    data = torch.empty(size_bytes // 4)
    best = dict.fromkeys(groups, float("inf"))
    for _ in range(rounds):
        for name, group in groups.items():
            data.fill_(dist.get_rank() + 1)
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(data, group=group)
            best[name] = min(best[name], time.perf_counter() - start_s)
            assert bool((data == sum(range(dist.get_world_size() + 1))).all()), f"{name} is wrong"
    dist.destroy_process_group()
    return best
