"""hccl_py.torch's DistributedDataParallel against torch's, bit for bit, over a matrix of models and uses."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(330)  # a launch has 300 s, and says more about a hang


@pytest.mark.parametrize(("ranks", "cases"), [(2, 31), (3, 9)])  # two: as over gloo; three: 1/n is rounded
def test_gradients_are_those_of_torch(torchrun, ranks, cases):
    torchrun("ddp_matrix.py", ranks, timeout_s=300).passed(f"PASSED {cases}:")
