"""Stock DistributedDataParallel with compressed gradients."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(330)  # a launch has 300 s, and says more about a hang


def test_ddp_trains_with_compressed_gradients(torchrun):
    torchrun("compression.py", 2, timeout_s=300.0).passed("PASSED 6:")
