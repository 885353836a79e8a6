"""How groups begin and end: launchers with and without addresses, and interpreter exits."""

from __future__ import annotations

import socket

import pytest

pytestmark = pytest.mark.timeout(180)  # a launch has 150 s, and says more about a hang


def _lines(output: str, start: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith(start))


def test_mpirun_without_master_addr(mpirun):
    outcome = mpirun("init.py", 4, "mpi://")
    outcome.passed("rank 0")
    for url in (None, "mpi://"):
        expected = [f"{url} rank {rank} of 4 sum 10 mpi True" for rank in range(4)]
        assert _lines(outcome.output, f"{url} rank") == expected, outcome.output


def test_mpirun_with_master_addr_and_a_rank_that_fails(mpirun):
    outcome = mpirun("init.py", 2, "mpi://", "fail", MASTER_ADDR="localhost")
    outcome.failed("this rank fails on purpose")
    expected = [f"None rank {rank} of 2 sum 3 mpi True" for rank in range(2)]
    assert _lines(outcome.output, "None rank") == expected, outcome.output


def test_torchs_own_variables_win(alone):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}  # as if mpirun had started it
    torchs = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    outcome = alone("init.py", **launcher, **torchs)
    outcome.passed("None rank 0 of 1 sum 1 mpi False")


def test_a_dozen_exits_without_abort_or_hang(alone):
    outcome = alone("exits.py", "12")
    outcome.passed("PASSED 12 rounds")
    assert "terminate called" not in outcome.output
