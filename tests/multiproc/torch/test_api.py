"""torch.distributed over hccl_py, call by call."""

from __future__ import annotations

from pathlib import Path

import pytest

OPERATORS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
pytestmark = pytest.mark.timeout(180)  # a launch has 150 s, and says more about a hang


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_call_gives_the_right_values(torchrun, ranks):
    outcome = torchrun("api.py", ranks)
    outcome.passed("PASSED 26:")


def test_errors_reach_whoever_waits(torchrun):
    outcome = torchrun("errors.py", 2)
    outcome.passed("PASSED 14:")


def test_a_failed_check_fails_the_launch(torchrun):
    outcome = torchrun("broken.py", 1)
    outcome.failed("FAILED wrong on rank 0")


def test_what_gloo_gets_wrong(torchrun):
    outcome = torchrun("rows.py", 2)
    outcome.passed("PASSED 11:")


def test_groups_of_all_kinds(torchrun):
    outcome = torchrun("groups.py", 2)
    outcome.passed("PASSED 9:")


def test_what_stands_on_a_group(torchrun):
    outcome = torchrun("stands.py", 2)
    outcome.passed("PASSED 8:")


def test_torchrun_restarts_the_ranks_after_one_is_lost(torchrun):
    outcome = torchrun("elastic.py", 2, PET_MAX_RESTARTS="1")
    outcome.passed("PASSED after 1 restart")
    assert "rank 0 heard: PeerLostError" in outcome.output


def test_the_table_of_types_and_operators_is_what_the_ranks_see(torchrun):
    outcome = torchrun("matrix.py", 2)
    outcome.passed("END OF TABLE")
    lines = outcome.output.splitlines()
    table = lines[lines.index("| type | moves | " + " | ".join(OPERATORS) + " |") : lines.index("END OF TABLE")]
    page = (Path(__file__).parents[3] / "docs" / "COMPATIBILITY.md").read_text(encoding="utf-8")
    assert "\n".join(table) in page, "docs/COMPATIBILITY.md needs this table:\n" + "\n".join(table)
