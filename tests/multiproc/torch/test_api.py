"""torch.distributed over hccl_py, call by call."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(180)  # a launch has 150 s, and says more about a hang


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_call_gives_the_right_values(torchrun, ranks):
    outcome = torchrun("api.py", ranks)
    outcome.passed("PASSED 26:")


def test_errors_reach_whoever_waits(torchrun):
    outcome = torchrun("errors.py", 2)
    outcome.passed("PASSED 12:")


def test_a_failed_check_fails_the_launch(torchrun):
    outcome = torchrun("broken.py", 1)
    outcome.failed("FAILED wrong on rank 0")


def test_what_gloo_gets_wrong(torchrun):
    outcome = torchrun("rows.py", 2)
    outcome.passed("PASSED 11:")


def test_groups_of_all_kinds(torchrun):
    outcome = torchrun("groups.py", 2)
    outcome.passed("PASSED 8:")
