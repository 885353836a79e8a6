"""How groups begin and end: launchers with and without addresses, and interpreter exits."""

from __future__ import annotations

import socket

import pytest

pytestmark = pytest.mark.timeout(180)  # a launch has 150 s, and says more about a hang


def _lines(output: str, start: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith(start))


@pytest.mark.parametrize("url", [(), ("mpi://",)])
def test_mpirun_without_master_addr(mpirun, url):
    outcome = mpirun("init.py", 4, *url)
    outcome.passed("round 0")
    for round_ in range(2):
        expected = [f"round {round_} rank {rank} of 4 sum 10 mpi True" for rank in range(4)]
        assert _lines(outcome.output, f"round {round_}") == expected, outcome.output


def test_mpirun_with_master_addr_and_launcher_ranks(mpirun):
    outcome = mpirun("init.py", 2, MASTER_ADDR="localhost")
    outcome.passed("round 0")
    expected = [f"round 0 rank {rank} of 2 sum 3 mpi True" for rank in range(2)]
    assert _lines(outcome.output, "round 0") == expected, outcome.output


def test_torchs_own_variables_win(alone):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}  # as if mpirun had started it
    torchs = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    outcome = alone("init.py", **launcher, **torchs)
    outcome.passed("round 0 rank 0 of 1 sum 1 mpi False")


def test_a_rank_that_fails_ends_the_mpi_job(mpirun):
    outcome = mpirun("init.py", 2, FAIL_RANK="1")
    outcome.failed("this rank fails on purpose")


def test_twenty_exits_without_abort_or_hang(alone):
    outcome = alone("exits.py", "20")
    outcome.passed("PASSED 20 rounds")
    assert "terminate called" not in outcome.output
