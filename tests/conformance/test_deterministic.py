"""Deterministic mode: the same bits for an element whatever the size, place, algorithm, transport or form of call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance_oracle import NUMPY, bits, fold, inputs
from conformance_ranks import TRANSPORTS, Ranks

from hccl_py import PlanError
from hccl_py.communicator import Communicator
from hccl_py.core.types import Collective, DType, Order, ReduceOp
from hccl_py.scheduler.algorithms import builtin_algorithms

WORLD, COUNT = 4, 30_000
KINDS = [(DType.FLOAT32, ReduceOp.SUM), (DType.FLOAT32, ReduceOp.AVG), (DType.FLOAT64, ReduceOp.PROD),
         (DType.FLOAT16, ReduceOp.SUM), (DType.BFLOAT16, ReduceOp.AVG), (DType.FLOAT8_E4M3, ReduceOp.SUM)]  # fmt: skip


def check_slices(comm: Communicator) -> list[str]:
    """Reduce parts of one buffer in many ways; what differs from the canonical result."""
    found = []
    for dtype, op in KINDS:
        given = inputs(dtype, op, COUNT, comm.size)
        want = bits(fold(dtype, op, given))
        mine = given[comm.rank]
        for begin, end in [(0, COUNT), (1, COUNT), (0, 7), (5, 12), (17, 18), (3, 4099), (100, 20_101)]:
            for form in ("blocking", "in place", "started", "reduce", "shifted"):
                part = mine[begin:end].copy()
                out = np.zeros(part.size, NUMPY[dtype])
                if form == "blocking":
                    comm.all_reduce(part, out, op)
                elif form == "in place":
                    comm.all_reduce(part, op=op)
                    out = part
                elif form == "started":
                    comm.iall_reduce(part, out, op).wait()
                elif form == "shifted":  # another alignment
                    whole = np.zeros(part.size + 3, NUMPY[dtype])
                    whole[3:] = part
                    out = comm.all_reduce(whole[3:], op=op)
                else:
                    comm.reduce(part, out if comm.rank == 1 else None, op, root=1)
                if (form != "reduce" or comm.rank == 1) and not np.array_equal(bits(out), want[begin:end]):
                    found.append(f"{dtype.name} {op.name} [{begin}:{end}] {form}")
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_bits_whatever_the_size_and_place(transport: str) -> None:
    with Ranks(transport, WORLD, {"deterministic": True}) as ranks:
        assert ranks.run(check_slices) == [[]] * WORLD


@pytest.mark.parametrize("algorithm", [algorithm.name for algorithm in builtin_algorithms()])
def test_each_algorithm_gives_the_same_bits_or_is_refused(algorithm: str) -> None:
    settings = {"deterministic": True, "algorithm": (("all_reduce", algorithm), ("reduce", algorithm))}
    with Ranks("shm", WORLD, settings) as ranks:
        try:
            table = ranks.comms[0].engine.planner.table(Collective.ALL_REDUCE)
            ranks.comms[0].engine.planner.table(Collective.REDUCE, root=1)
        except PlanError:
            free = algorithm

            def refuse(comm: Communicator) -> None:
                with pytest.raises(PlanError, match=free):
                    comm.all_reduce(np.ones(4))
                    comm.reduce(np.ones(4), np.ones(4), root=1)

            ranks.run(refuse)
            assert algorithm != "direct"
            return
        assert {row.plan.order for row in table.entries} == {Order.CANONICAL}
        assert ranks.run(check_slices) == [[]] * WORLD


def test_two_hosts_give_the_bits_of_one() -> None:
    def settings(rank: int) -> dict[str, Any]:
        return {"deterministic": True, "transports": ("shm", "tcp"), "host_id": f"host{rank % 2}"}

    with Ranks("tcp", WORLD, settings) as ranks:
        assert ranks.run(check_slices) == [[]] * WORLD


def test_without_it_the_bits_do_depend_on_the_size() -> None:
    """Else the tests above would test nothing: forced to a ring, sums come in another order for each slot."""
    with Ranks("shm", WORLD, {"algorithm": (("all_reduce", "ring"),)}) as ranks:

        def differs(comm: Communicator) -> bool:
            mine = inputs(DType.FLOAT32, ReduceOp.SUM, COUNT, comm.size)[comm.rank]
            whole, part = comm.all_reduce(mine.copy()), comm.all_reduce(mine[: COUNT // 3].copy())
            return not np.array_equal(whole[: COUNT // 3], part)

        assert ranks.run(differs) == [True] * WORLD
