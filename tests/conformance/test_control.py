"""The control loop on real ranks: it measures, agrees, and changes buckets and plans at the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py.communicator import Communicator
from hccl_py.control import ControlLoop
from hccl_py.core.types import DType
from hccl_py.probing import probe, rounds
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import Decision
from hccl_py.scheduler.measurement import BucketRun

COUNT, NUMEL, DTYPE = 12, (20_000,) * 12, (DType.FLOAT32,) * 12


class Clock:
    """A clock of a job whose steps take as long as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def train(comm: Communicator, steps: int, stray: int | None = None) -> list[tuple[int, str]]:
    """Steps of a job whose all_reduces take long, by its own account; (step, digest of its buckets) of each switch."""
    clock, found = Clock(), []
    plan = BucketPlan.fixed(NUMEL, DTYPE, 1 << 20, range(COUNT - 1, -1, -1))
    loop = ControlLoop(comm.engine, NUMEL, DTYPE, plan, clock=clock, cpu_clock=lambda: 0.0)
    data = np.ones(sum(NUMEL), np.float32)
    for step in range(steps):
        begin = 0
        for bucket in plan.buckets:
            comm.all_reduce(data[begin : begin + bucket.numel])
            begin += bucket.numel
        data[:] = 1
        ready = [0.002 * (COUNT - i) for i in range(COUNT)]
        waits_s = 0.012 if len(plan) == 1 else 0.002
        ends = [0.024 + waits_s * (k + 1) / len(plan) for k in range(len(plan))]
        runs = [BucketRun(b.num_bytes, 0.024, end) for b, end in zip(plan.buckets, ends, strict=True)]
        clock.now_s += 0.1
        if step == stray:
            loop._proposal = Decision.keep(10**6, "a rank that has gone astray")
        decision = loop.step(ready, backward_s=0.024, exposed_s=waits_s, buckets=lambda runs=runs: runs)
        if decision is not None:
            assert decision.buckets is not None
            plan = decision.buckets
            found.append((step, plan.digest))
    loop.close()
    return found


def test_all_ranks_switch_at_the_same_step(groups: Any, transport: str) -> None:
    found = groups.get(transport, 3).run(lambda comm: train(comm, 18))
    assert len(found[0]) == 1 and found[1:] == found[:1] * 2


def test_a_rank_that_decides_otherwise_keeps_all_from_switching() -> None:
    """And they begin anew and agree later."""
    with Ranks("shm", 3) as ranks:
        undisturbed = ranks.run(lambda comm: train(comm, 18))[0][0][0]
    with Ranks("shm", 3) as ranks:
        found = ranks.run(lambda comm: train(comm, 30, stray=undisturbed - 1 if comm.rank == 1 else None))
        assert found[1:] == found[:1] * 2 and found[0][0][0] > undisturbed


def test_quick_steps_are_told_less_often() -> None:
    """Each exchange costs every rank the same, however long its steps are."""

    def task(comm: Communicator) -> list[int]:
        found = []
        for step_s in (0.5, 0.15, 0.0001):
            clock = Clock()
            loop = ControlLoop(
                comm.engine, NUMEL, DTYPE, BucketPlan.fixed(NUMEL, DTYPE, 1 << 20, range(COUNT)), clock=clock,
                cpu_clock=lambda: 0.0,
            )  # fmt: skip
            told, before = [], False
            for step in range(1500):
                clock.now_s += step_s
                loop.step([0.01] * COUNT, backward_s=0.01, exposed_s=0.01)
                if loop._exchange.under_way and not before:
                    told.append(step)
                before = loop._exchange.under_way
            found.append(told[-1] - told[-2])
            loop.close()
        return found

    with Ranks("shm", 2) as ranks:
        assert ranks.run(task) == [[4, 7, 256]] * 2


def test_exchanges_that_cost_much_are_made_less_often() -> None:
    """By what the busiest rank says, so all at the same steps."""

    def task(comm: Communicator) -> list[int]:
        clock, cpu = Clock(), Clock()
        plan = BucketPlan.fixed(NUMEL, DTYPE, 1 << 20, range(COUNT))
        loop = ControlLoop(comm.engine, NUMEL, DTYPE, plan, clock=clock, cpu_clock=cpu)
        told = []
        for step in range(400):
            clock.now_s += 0.1
            under_way = loop._exchange.under_way
            if under_way and comm.rank == 1:
                hear = loop._hear

                def costly(hear: Any = hear) -> Any:
                    cpu.now_s += 0.05
                    return hear()

                loop._hear = costly  # type: ignore[method-assign]
            loop.step([0.01] * COUNT, backward_s=0.01, exposed_s=0.01)
            loop.__dict__.pop("_hear", None)
            if loop._exchange.under_way:
                told.append(step)
        loop.close()
        return [b - a for a, b in zip(told[-3:], told[-2:], strict=False)]

    with Ranks("shm", 2) as ranks:
        found = ranks.run(task)
    assert found[0] == found[1] and min(found[0]) >= 6  # 50 ms in 0.6 s, not 2 steps


def test_a_world_of_one_has_nothing_to_decide() -> None:
    with Ranks("loopback", 1) as ranks:
        assert ranks.run(lambda comm: train(comm, 6)) == [[]]


def test_a_probe_times_every_pair_of_hosts(groups: Any) -> None:
    def task(comm: Communicator) -> list[int]:
        found = probe(comm.engine, 7, 2)
        assert (found.step, found.rank, found.number) == (7, comm.rank, 2) and found.seconds > 0
        assert all(run.seconds > 0 for run in found.runs)
        return sorted(run.src for run in found.runs)

    assert groups.get("tcp", 3).run(task) == [[1, 2], [0, 2], [0, 1]]
    assert groups.get("shm", 3).run(task) == [[], [], []]  # within a host there is no network


@pytest.mark.parametrize("world", [2, 3, 9, 10, 64, 1000])
def test_rounds_are_few_and_distinct(world: int) -> None:
    found = rounds(world)
    assert len(set(found)) == len(found) <= 8 and all(0 < shift < world for shift in found)


def test_the_status_file_tells_what_happens(tmp_path: Path) -> None:
    with Ranks("shm", 2, {"status": str(tmp_path)}) as ranks:
        ranks.run(lambda comm: train(comm, 18))
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "job" and kinds[-1] == "end" and kinds.count("switch") == 1 and "step" in kinds
    (switch,) = (line for line in lines if line["kind"] == "switch")
    assert (switch["codecs"], switch["chunk_bytes"], switch["channels"]) == (["exact"], 0, 0)
    with Ranks("shm", 2) as ranks:
        ranks.run(lambda comm: train(comm, 4))
    assert len(list(tmp_path.iterdir())) == 1
