"""Every algorithm by force, over every transport, against the oracle; a forced one is never replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance_oracle import NUMPY, Expected, inputs
from conformance_ranks import Ranks

from hccl_py import ConfigError, PlanError
from hccl_py.communicator import Communicator
from hccl_py.core.types import Collective, DType, Order, ReduceOp
from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.select import PlanTable

SIZES = (0, 1, 1000, 20_011)
KINDS = [(DType.FLOAT32, ReduceOp.SUM), (DType.BFLOAT16, ReduceOp.AVG), (DType.FLOAT16, ReduceOp.PROD),
         (DType.INT16, ReduceOp.SUM), (DType.FLOAT64, ReduceOp.MIN), (DType.FLOAT8_E5M2, ReduceOp.SUM)]  # fmt: skip
IDS: Callable[[Any], str] = lambda algorithm: str(getattr(algorithm, "name", algorithm))  # noqa: E731


def hosts(world: int) -> Callable[[int], dict[str, Any]]:
    """Settings of ranks that sit on two hosts, one after the other: shm inside, tcp between."""
    return lambda rank: {"transports": ("shm", "tcp"), "host_id": f"host{2 * rank // world}"}


def check_all(comm: Communicator, algorithm: Algorithm, tables: dict[Collective, PlanTable]) -> list[str]:
    """Run all collectives that the algorithm can do; what is wrong."""
    n, r = comm.size, comm.rank
    found: list[str] = []

    def note(what: str, wrong: str | bool) -> None:
        if wrong:
            found.append(f"rank {r}: {algorithm.name} {what}: {wrong}")

    def canonical(collective: Collective, nbytes: int) -> bool:
        return tables[collective].choose(nbytes).plan.order is Order.CANONICAL

    for count in SIZES:
        for dtype, op in KINDS:
            given = inputs(dtype, op, count, n)
            expected, kind = Expected(dtype, op, given), NUMPY[dtype]
            mine, nbytes, root = given[r], count * dtype.itemsize, n - 1
            blocks = np.concatenate([np.roll(mine, b) for b in range(n)])
            if algorithm.supports(Collective.ALL_REDUCE):
                out = comm.all_reduce(mine, np.zeros(count, kind), op)
                note(f"all_reduce {dtype.name} {count}", expected.check(out, canonical(Collective.ALL_REDUCE, nbytes)))
                comm.all_reduce(out := mine.copy(), op=op)
                note(f"all_reduce in place {dtype.name} {count}", expected.check(out, False))
            if algorithm.supports(Collective.REDUCE):
                out = np.zeros(count, kind)
                comm.reduce(mine, out if r == root else None, op, root)
                if r == root:
                    note(f"reduce {dtype.name} {count}", expected.check(out, canonical(Collective.REDUCE, nbytes)))
            if algorithm.supports(Collective.REDUCE_SCATTER):
                out = comm.reduce_scatter(blocks, np.zeros(count, kind), op)
                right = canonical(Collective.REDUCE_SCATTER, nbytes)
                note(f"reduce_scatter {dtype.name} {count}", expected.check(out, right, shift=r))
        note(f"moving {count}", moved_wrong(comm, algorithm, count))
    return found


def check_ranks(ranks: Ranks, algorithm: Algorithm) -> None:
    """Assert that all ranks find all right, and that it was the algorithm's doing."""
    planner, root = ranks.comms[0].engine.planner, ranks.size - 1
    able = [collective for collective in Collective if algorithm.supports(collective)]
    tables = {collective: planner.table(collective, root if collective.rooted else 0) for collective in able}
    assert {row.plan.algorithm for table in tables.values() for row in table.entries} == {algorithm.name}
    found = [wrong for wrongs in ranks.run(lambda comm: check_all(comm, algorithm, tables)) for wrong in wrongs]
    assert not found, "\n".join(found)


def moved_wrong(comm: Communicator, algorithm: Algorithm, count: int) -> str:
    """The collectives that only move, on integers that name their place."""
    n, r = comm.size, comm.rank
    place = np.arange(count, dtype=np.int64)
    mine, all_of = place + 1_000_000 * r, np.concatenate([place + 1_000_000 * q for q in range(n)])
    blocks = np.concatenate([place + 1_000_000 * (10 * r + q) for q in range(n)])
    for root in (0, n - 1):
        if algorithm.supports(Collective.BROADCAST):
            buffer = comm.broadcast(mine.copy(), root)
            if (buffer != place + 1_000_000 * root).any():
                return "broadcast"
        if algorithm.supports(Collective.GATHER):
            out = np.zeros(n * count, np.int64)
            comm.gather(mine, out if r == root else None, root)
            if r == root and (out != all_of).any():
                return "gather"
        if algorithm.supports(Collective.SCATTER):
            out = comm.scatter(blocks if r == root else None, np.zeros(count, np.int64), root)
            if (out != place + 1_000_000 * (10 * root + r)).any():
                return "scatter"
    if (
        algorithm.supports(Collective.ALL_GATHER)
        and (comm.all_gather(mine, np.zeros(n * count, np.int64)) != all_of).any()
    ):
        return "all_gather"
    if algorithm.supports(Collective.ALL_TO_ALL):
        out = comm.all_to_all(blocks, np.zeros(n * count, np.int64))
        if (out != np.concatenate([place + 1_000_000 * (10 * q + r) for q in range(n)])).any():
            return "all_to_all"
    if algorithm.supports(Collective.BARRIER):
        comm.barrier()
    return ""


@pytest.mark.parametrize("world", [2, 5])
@pytest.mark.parametrize("algorithm", [known for known in builtin_algorithms() if known.name != "rails"], ids=IDS)
def test_each_algorithm_by_force(transport: str, algorithm: Algorithm, world: int) -> None:
    with Ranks(transport, world, {"algorithm": (("*", algorithm.name),)}) as ranks:
        check_ranks(ranks, algorithm)


@pytest.mark.parametrize("world", [2, 5])
@pytest.mark.parametrize("algorithm", builtin_algorithms(), ids=IDS)
def test_each_algorithm_between_two_hosts(algorithm: Algorithm, world: int) -> None:
    if algorithm.name == "rails" and world == 5:
        world = 4  # it serves hosts of equal size only
    settings = hosts(world)
    with Ranks("tcp", world, lambda rank: {**settings(rank), "algorithm": (("*", algorithm.name),)}) as ranks:
        kinds = {comm.engine.transport_to(peer) for comm in ranks.comms for peer in range(world)}
        assert kinds == ({"self", "tcp"} if world == 2 else {"self", "shm", "tcp"})
        check_ranks(ranks, algorithm)


def test_the_chosen_plans_between_two_hosts() -> None:
    """Ranks of a host one after the other, and in turns."""
    for turns in (False, True):

        def settings(rank: int, turns: bool = turns) -> dict[str, Any]:
            return {"transports": ("shm", "tcp"), "host_id": f"host{rank % 2 if turns else rank // 2}"}

        with Ranks("tcp", 4, settings) as ranks:

            def run(comm: Communicator) -> bool:
                good = True
                for count in (1, 100, 10_000, 500_000):
                    out = comm.all_reduce(np.full(count, comm.rank + 1.0), np.zeros(count))
                    gathered = comm.all_gather(np.full(count, comm.rank), np.zeros(4 * count, np.int64))
                    good &= bool((out == 10).all()) and bool((gathered == np.repeat(np.arange(4), count)).all())
                return good

            assert ranks.run(run) == [True] * 4


def test_an_algorithm_that_cannot_serve_is_an_error_and_never_replaced() -> None:
    with Ranks("shm", 2, {"algorithm": (("all_to_all", "ring"), ("all_reduce", "tree"))}) as ranks:

        def force(comm: Communicator) -> None:
            data, out = np.ones(4), np.zeros(4)
            with pytest.raises(PlanError, match="'ring' does not do all_to_all"):
                comm.all_to_all(data, out)
            with pytest.raises(PlanError, match="'ring' does not do all_to_all"):
                comm.iall_to_all(data, out)
            assert (out == 0).all()
            comm.barrier()
            comm.all_reduce(data)
            assert (data == 2).all()
            assert {row.plan.algorithm for row in comm.engine.planner.table(Collective.ALL_REDUCE).entries} == {"tree"}

        ranks.run(force)


def test_an_algorithm_that_nobody_knows_is_an_error() -> None:
    def force(comm: Communicator) -> None:
        with pytest.raises(PlanError, match="no algorithm 'rink'; there are direct, ring"):
            comm.barrier()

    try:
        with Ranks("shm", 2, {"algorithm": (("*", "rink"),)}) as ranks:
            ranks.run(force)
    except (PlanError, ConfigError) as error:  # as well at connecting
        assert "rink" in str(error)
