"""Stock DistributedDataParallel over hccl_py against gloo."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(180)  # a launch has 150 s, and says more about a hang


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_has_the_loss_curve_of_gloo(torchrun, ranks):
    outcome = torchrun("ddp.py", ranks)
    outcome.passed("PASSED 15:")
