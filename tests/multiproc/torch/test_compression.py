"""Stock and our DistributedDataParallel with compressed gradients."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(330)  # a launch has 300 s, and says more about a hang


def test_ddp_trains_with_compressed_gradients(torchrun):
    torchrun("compression.py", 2, timeout_s=300.0).passed("PASSED 6:")


def test_our_ddp_compresses(torchrun):
    torchrun("ddp_compression.py", 2, timeout_s=300.0).passed("PASSED 10:")


def test_a_killed_training_goes_on_bit_for_bit(torchrun, tmp_path):
    torchrun("ddp_compression.py", 2, "save", str(tmp_path)).failed("SAVED")
    torchrun("ddp_compression.py", 2, "resume", str(tmp_path)).passed("PASSED 1:")
