"""hccl_py.torch.ShardedStep against an ordinary step, bit for bit; what it refuses."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_comes_out_is_what_an_ordinary_step_gives(torchrun, ranks):
    torchrun("sharded.py", ranks, HCCL_PY_DETERMINISTIC="1").passed("PASSED 48:")
