"""Stock DistributedDataParallel over hccl_py against gloo."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_has_the_loss_curve_of_gloo(torchrun, ranks):
    outcome = torchrun("ddp.py", ranks, timeout_s=90)
    outcome.passed("PASSED 15:")
