"""The scheduler inside torch's own wrappers: the bits are theirs, and a switch happens on all ranks at once."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_bits_are_those_of_torch_without_the_hook(torchrun, ranks):
    torchrun("hooks.py", ranks, HCCL_PY_DETERMINISTIC="1").passed("PASSED 12:")
