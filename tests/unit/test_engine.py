"""The Engine's own checks: addresses, counts, settings of ranks that do not fit. Behaviour is in tests/conformance."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hccl_py.bootstrap import SingleBootstrap, ThreadBootstrap
from hccl_py.core.env import Env
from hccl_py.core.errors import BrokenGroupError, ConfigError, HcclError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(SingleBootstrap(), env=Env())
    yield engine
    engine.close()


def connect(envs: list[Env]) -> list[Engine | HcclError]:
    """One rank for each environment: its engine, or why there is none."""
    meeting = ThreadBootstrap.Meeting(len(envs), 30.0)
    made: dict[int, Engine | HcclError] = {}

    def run(rank: int) -> None:
        try:
            made[rank] = Engine(ThreadBootstrap(meeting, rank), env=envs[rank])
        except HcclError as error:
            made[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return [made[rank] for rank in range(len(envs))]


def run(engine: Engine, **changes: Any) -> None:
    """An all-reduce of 8 float64 in place, with some arguments changed."""
    data = np.ones(8)
    arguments = {
        "collective": Collective.ALL_REDUCE, "op": ReduceOp.SUM, "dtype": DType.FLOAT64, "root": 0,
        "in_ptr": data.ctypes.data, "out_ptr": data.ctypes.data, "count": 8,
    }  # fmt: skip
    engine.run(*{**arguments, **changes}.values())
    engine.start(*{**arguments, **changes}.values()).wait()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_ptr": 0}, "a buffer is missing"),
        ({"out_ptr": 0}, "a buffer is missing"),
        ({"count": 2**60}, "impossibly many elements"),
        ({"count": 2**63}, "impossibly many elements"),
        ({"root": 1}, "root 1 is outside a world of 1"),
        ({"op": ReduceOp.BXOR}, "bxor is not defined on float64"),
        ({"collective": 9}, "unknown collective"),
        ({"dtype": 15}, "unknown"),
        ({"op": -1}, "unknown"),
    ],
)
def test_calls_that_cannot_be_are_refused(engine: Engine, changes: dict[str, Any], message: str) -> None:
    run(engine)
    with pytest.raises(ConfigError, match=message):
        run(engine, **changes)
    run(engine)


def test_zero_elements_need_no_buffer(engine: Engine) -> None:
    run(engine, in_ptr=0, out_ptr=0, count=0)


def test_uneven_blocks_need_a_count_for_each_rank(engine: Engine) -> None:
    data = np.ones(8)
    with pytest.raises(ConfigError, match="one count per rank"):
        engine.run_v(
            Collective.ALL_GATHER, ReduceOp.SUM, DType.FLOAT64, 0, data.ctypes.data, [], data.ctypes.data, [4, 4]
        )


def test_ranks_outside_the_world_are_refused(engine: Engine) -> None:
    for call in (
        lambda: engine.transport_to(1), lambda: engine.start_send(0, 0, 1, 0), lambda: engine.start_recv(0, 0, 5, 0),
        lambda: engine.start_send(0, 0, -1, 0),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="outside a world of 1"):
            call()
    assert engine.transport_to(0) == "self"


def test_close_and_abort_in_any_order(engine: Engine) -> None:
    engine.abort("first")
    engine.close()
    engine.close()
    engine.abort("again")
    with pytest.raises(BrokenGroupError):
        run(engine)


Different = Callable[[int], Env]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda rank: Env(segment_bytes=64 * (1 + rank)), "HCCL_PY_SEGMENT_BYTES"),
        (lambda rank: Env(ring_bytes=4096 << rank), "HCCL_PY_RING_BYTES"),
        (lambda rank: Env(connections=1 + rank), "HCCL_PY_CONNECTIONS"),
        (
            lambda rank: Env(algorithm=(("*", ("ring", "tree")[rank > 0]),)),
            "HCCL_PY_ALGORITHM is 'ring' here and 'tree' there|'tree' here",
        ),
        (lambda rank: Env(deterministic=rank > 0), "HCCL_PY_DETERMINISTIC"),
        (lambda rank: Env(slot_bytes=100 if rank == 1 else None), "multiple of 64"),
        (lambda rank: Env(transports=("nonsense",) if rank == 1 else ("shm",)), "nonsense"),
    ],
)
def test_ranks_with_settings_that_do_not_fit_all_fail(env: Different, message: str) -> None:
    outcomes = connect([env(rank) for rank in range(3)])
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, ConfigError), f"rank {rank} has {outcome!r}"
    assert any(re.search(message, str(outcome)) for outcome in outcomes), outcomes


def test_settings_of_one_rank_only_may_differ() -> None:
    envs = [Env(timeout_s=20.0 + rank, spin=rank * 10, host_id=f"h{rank}", log_level="warning") for rank in range(2)]
    engines = connect(envs)
    assert all(isinstance(engine, Engine) for engine in engines), engines
    for engine in engines:
        if isinstance(engine, Engine):
            engine.close()


def test_the_policy_of_the_cluster_file_chooses_interfaces(tmp_path: Path) -> None:
    """The NIC that is allowed is not there: both refuse; the environment has the last word."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "version: 1\nhosts:\n  h[0-1]:\n    devices: {cpu0: {kind: cpu}}\n"
        "    nics: {nic0: {interface: nosuchif0}, nic1: }\n"
        "    links:\n      - {between: [cpu0, host], kind: memory, bandwidth: 9GB/s, latency: 1us}\n"
        '      - {between: ["nic[0-1]", host], kind: pcie, bandwidth: 9GB/s, latency: 1us}\nswitches: {s: }\n'
        "links:\n  - {between: [h*/nic*, s], kind: ethernet, bandwidth: 1GB/s, latency: 9us}\n"
        "policy: {nics: [h*/nic0]}\n"
    )
    env = Env(topology=str(file), transports=("tcp",))
    found = connect([env, env])
    assert all(isinstance(one, HcclError) and "nosuchif0" in str(one) for one in found)
    allowed = connect(
        [Env(topology=str(file), transports=("tcp",), interfaces="lo", host_id=f"h{i}") for i in range(2)]
    )
    for one in allowed:
        assert "nosuchif0" not in str(one)
        if isinstance(one, Engine):
            one.close()
