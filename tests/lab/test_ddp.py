"""The main job on two hosts: torchrun on each, stock DistributedDataParallel, ranks of a host by shared memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lab import Lab

from hccl_py import launch
from hccl_py.core.env import child_environ

TRAIN = Path(__file__).with_name("train.py")
LIMIT_S = 90.0


def same_curve(result: dict[str, Any]) -> bool:
    """True if both backends trained to the same losses, within what float32 sums in another order differ by."""
    return bool(result["gloo"] == pytest.approx(result["hccl_py"], rel=1e-4))


@pytest.mark.timeout(2 * LIMIT_S)
def test_ddp_has_the_loss_curve_of_gloo(lab: Lab) -> None:
    environ = child_environ(
        OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", GLOO_SOCKET_IFNAME="eth0", LIMIT_S=str(LIMIT_S - 10)
    )
    before = [lab.counters(node) for node in range(2)]
    jobs = []
    for node in range(2):
        where = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"]
        meet = ["--master-addr", lab.address(0), "--master-port", "29400"]
        command = [sys.executable, "-m", "torch.distributed.run", *where, *meet, str(TRAIN)]
        jobs.append(launch.Job([*lab.prefix(node), *command], LIMIT_S, environ))
    with jobs[0], jobs[1]:
        for job in jobs:
            for _ in job.lines():
                pass
    output = "\n".join(job.output for job in jobs)
    assert [job.status for job in jobs] == [0, 0], output
    printed = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert len(printed) == 1, output
    result = json.loads(printed[0].removeprefix("RESULT "))
    assert result["hosts"] == [lab.host(node) for node in (0, 0, 1, 1)]
    assert same_curve(result), result
    assert result["gloo"][-1] < result["gloo"][0], "it did not learn"
    gradient_bytes = 4 * (32 * 256 + 256 * 256 + 256 * 4)
    for node, old in enumerate(before):
        assert (lab.counters(node) - old).sent_bytes > 12 * gradient_bytes, "two runs of six steps crossed no wire"


def test_the_comparison_of_curves_rejects() -> None:
    assert same_curve({"gloo": [1.0, 0.5], "hccl_py": [1.0, 0.500001]})
    assert not same_curve({"gloo": [1.0, 0.5], "hccl_py": [1.0, 0.51]})
    assert not same_curve({"gloo": [1.0, 0.5], "hccl_py": [1.0]})
