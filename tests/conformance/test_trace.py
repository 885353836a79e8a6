"""What a group tells of its connections and its work, and plans that change while it runs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from conformance_ranks import HANG_S, Ranks

from hccl_py.communicator import Communicator
from hccl_py.core.errors import ConfigError, DesyncError
from hccl_py.core.types import Collective
from hccl_py.scheduler.select import build_table

COUNT = 250_000


def acked(comm: Communicator) -> int:
    return sum(row.acked_bytes for row in comm.engine.trace())


def test_a_tcp_connection_counts_what_the_peer_has_got(groups: Any) -> None:
    def task(comm: Communicator) -> tuple[int, int, list[int], list[int]]:
        data = np.ones(COUNT, np.float32)
        before = acked(comm)
        comm.all_reduce(data)
        comm.barrier()
        until_s = time.monotonic() + HANG_S
        while acked(comm) - before < data_bytes() and time.monotonic() < until_s:
            time.sleep(0.001)  # the peer's kernel may take its time to acknowledge the last bytes
        rows = comm.engine.trace()
        return before, acked(comm), [row.peer for row in rows], [row.connection for row in rows]

    for rank, (before, after, peers, connections) in enumerate(groups.get("tcp", 2).run(task)):
        assert after - before >= data_bytes() and after - before < 1.5 * data_bytes()
        assert set(peers) == {1 - rank}
        assert sorted(connections) == list(range(3))  # messages, and two channels


def data_bytes() -> int:
    return 4 * COUNT  # two ranks: each sends half its block to be reduced, and half of the result


def test_within_a_host_there_is_no_connection(groups: Any) -> None:
    assert groups.get("shm", 2).run(lambda comm: comm.engine.trace()) == [[], []]


def test_started_work_says_when_it_was_done(groups: Any, transport: str) -> None:
    def task(comm: Communicator) -> None:
        begin_s = time.perf_counter()
        works = [comm.iall_reduce(np.ones(COUNT, np.float32)) for _ in range(3)]
        for work in works:
            work.wait()
        ends_s = [work.ended_s for work in works]
        assert begin_s < ends_s[0] <= ends_s[1] <= ends_s[2] < time.perf_counter()

    groups.get(transport, 3).run(task)


def test_plans_are_replaced_between_calls(transport: str) -> None:
    """Every rank takes the other plan at the same call; results stay right, with work under way before and after."""
    with Ranks(transport, 3) as ranks:

        def task(comm: Communicator) -> tuple[float, ...]:
            planner = comm.engine.planner
            found = []
            for algorithm in ("ring", "tree", "ring", "direct"):
                works = [(comm.iall_reduce(data), data) for data in (np.full(COUNT, 1.0 + i) for i in range(3))]
                table = build_table(Collective.ALL_REDUCE, planner.topology, planner.placement, forced=algorithm)
                comm.engine.replan(planner.topology, {Collective.ALL_REDUCE: table})
                works += [(comm.iall_reduce(data), data) for data in (np.full(COUNT, 4.0),)]
                for work, data in works:
                    work.wait()
                    found.append(float(data[-1]))
            return tuple(found)

        assert ranks.run(task) == [(3.0, 6.0, 9.0, 12.0) * 4] * 3


def test_a_rank_that_keeps_its_plan_is_told() -> None:
    with Ranks("shm", 3) as ranks:

        def task(comm: Communicator) -> str:
            planner = comm.engine.planner
            data = np.ones(COUNT, np.float32)
            comm.all_reduce(data)
            algorithm = "ring" if comm.rank else "tree"
            table = build_table(Collective.ALL_REDUCE, planner.topology, planner.placement, forced=algorithm)
            comm.engine.replan(planner.topology, {Collective.ALL_REDUCE: table})
            with pytest.raises(DesyncError) as error:
                comm.all_reduce(data)
            return str(error.value)

        assert all("plan" in text for text in ranks.run(task))


def test_only_figures_may_change(groups: Any) -> None:
    def task(comm: Communicator) -> None:
        topology = comm.engine.planner.topology
        with pytest.raises(ConfigError, match="figures"):
            comm.engine.replan(type(topology)(topology.nodes, topology.links[1:]))

    groups.get("shm", 2).run(task)
