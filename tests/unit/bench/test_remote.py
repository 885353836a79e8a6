"""The partner in another environment, without the environment: two ends of a socket in threads of this process."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hccl_py.bench.cases import CASES
from hccl_py.bench.connect import connect
from hccl_py.bench.control import Control
from hccl_py.bench.meter import Task
from hccl_py.bench.oracle import Oracle
from hccl_py.bench.peers import Bound, Request, UnsupportedError
from hccl_py.bench.remote import Line, Partner, Remote, _accept, _environ
from hccl_py.bench.watchdog import Watchdog
from hccl_py.bootstrap import SingleBootstrap
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp


class Toy:
    """Adds nothing: a world of one."""

    name = "toy"
    version = "7"

    def __init__(self, wrong: bool = False) -> None:
        self.calls, self._wrong = 0, wrong

    def prepare(self, request: Request) -> Bound:
        if request.op is ReduceOp.AVG:
            raise UnsupportedError("toy has no AVG")
        send, recv = request.buffers.send, request.buffers.recv
        assert send is not None and recv is not None

        def run() -> None:
            self.calls += 1
            recv[:] = send + 1 if self._wrong else send

        return Bound(run, recv)

    def close(self) -> None:
        pass


def task(op: ReduceOp = ReduceOp.SUM, in_place: bool = False) -> Task:
    return Task.of(Oracle(CASES["all_reduce"], DType.FLOAT32, op, 0, 100, 1), in_place)


def served(toy: Toy, client: Callable[[Remote], Any]) -> Any:
    """Run ``client`` against a Partner with ``toy``."""
    ours, theirs = (Line(end) for end in _pair())
    control = Control(SingleBootstrap())
    remote = Remote.__new__(Remote)  # its constructor starts a job; the rest of it is what is tested here
    remote.name, remote._line, remote._job = "toy", ours, None
    with Watchdog(0, timeout_s=60, end=lambda _: None) as watchdog, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(Partner(toy, control, theirs, watchdog).serve, 0.05)
        try:
            return client(remote)
        finally:
            remote.close()
            serving.result(timeout=30)


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        caller = socket.create_connection(door.getsockname())
        return caller, door.accept()[0]


def test_a_partner_measures_and_checks() -> None:
    toy = Toy()

    def client(remote: Remote) -> None:
        with Watchdog(0, timeout_s=60, end=lambda _: None) as watchdog:
            meter = remote.meter(task(), watchdog)
            assert meter.check() == 0
            assert meter.once_s() > 0
            before = toy.calls
            times_s = meter.turn(3, 5, 2)
            assert len(times_s) == 3 and all(time_s > 0 for time_s in times_s)
            assert toy.calls == before + 2 + 3 * (1 + 5)
            assert remote._ask("version") == "7"

    served(toy, client)


def test_wrong_results_are_counted_over_there() -> None:
    with Watchdog(0, timeout_s=60, end=lambda _: None) as watchdog:
        assert served(Toy(wrong=True), lambda remote: remote.meter(task(), watchdog).check()) == 100


def test_what_the_library_lacks_is_unsupported_here_too() -> None:
    with Watchdog(0, timeout_s=60, end=lambda _: None) as watchdog, pytest.raises(UnsupportedError, match="no AVG"):
        served(Toy(), lambda remote: remote.meter(task(ReduceOp.AVG), watchdog))


def test_errors_over_there_are_errors_here() -> None:
    with pytest.raises(ConfigError, match="before anything was prepared"):
        served(Toy(), lambda remote: remote._ask("check"))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_task_arrives_as_it_was(in_place: bool) -> None:
    oracle = Oracle(CASES["reduce_scatter"], DType.BFLOAT16, ReduceOp.MAX, 3, 17, 5)
    sent = Task.of(oracle, in_place)
    assert sent.oracle() == oracle and sent.in_place is in_place


def test_strangers_at_the_door_are_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(_accept, door, "secret", 20.0)
        for said in ('"guess"\n', "no json\n", ""):
            with socket.create_connection(door.getsockname()) as stranger:
                stranger.sendall(said.encode())
        friend = Line(socket.create_connection(door.getsockname()))
        friend.send("secret")
        line = accepting.result(timeout=30)
        line.send("welcome")
        assert friend.receive() == "welcome"
        line.close()
        friend.close()


def test_nobody_at_the_door_is_an_error_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(OSError):
        _accept(door, "secret", 0.05)


def test_the_partner_does_not_inherit_our_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "WORLD_SIZE", "RANK"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environ = _environ()
    assert environ["OMP_NUM_THREADS"] == "1"
    assert not {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "WORLD_SIZE", "RANK"} & environ.keys()


def test_where_a_baseline_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the environment that is named; else in the one beside ours, unless this job is of that library; else here."""
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        "hccl_py.bench.connect.Remote", lambda name, control, timeout_s, folder: made.append((name, folder))
    )
    monkeypatch.setattr("hccl_py.bench.connect.Mpi", lambda name, control: made.append((name, "here")))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    control = Control(SingleBootstrap())
    connect("mpich", control, 1.0)
    (tmp_path / "venv-mpich").mkdir()
    connect("mpich", control, 1.0)
    connect("mpich", control, 1.0, {"mpich": Path("/opt")})
    for name, value in (("PMI_SIZE", "1"), ("PMI_RANK", "0")):
        monkeypatch.setenv(name, value)
    connect("mpich", control, 1.0)
    assert made == [("mpich", "here"), ("mpich", tmp_path / "venv-mpich"), ("mpich", Path("/opt")), ("mpich", "here")]


def test_an_environment_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*bin/mpirun; make install"):
        Remote("mpich", Control(SingleBootstrap()), 1.0, tmp_path)
