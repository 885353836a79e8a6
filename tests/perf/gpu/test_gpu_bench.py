"""What the GPU measurement makes of its samples: no GPU is needed."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_bench", HERE / "bench.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_claim_has_a_part_and_bounds_stand_in_the_words() -> None:
    bench = load()
    from claims import load_wanted  # bench.py has put its folder on the path

    wanted = load_wanted()["gpu"]
    assert sorted(wanted) == sorted(id_ for ids in bench.PARTS.values() for id_ in ids)
    for id_ in (
        "graph_mean",
        "eager_mean",
        "graph_8k",
        "bw_64m",
        "bw_256m",
        "bw_1g",
        "eager_8k",
        "others_mean",
        "cast",
    ):
        numbers = [float(number) for number in re.findall(r"\d+\.?\d*", wanted[id_].wanted)]
        assert wanted[id_].bound in numbers, id_


def test_values_are_made_of_medians() -> None:
    bench = load()
    mib = 1 << 20
    samples = {"about": {}}
    for size in (8, 8192, 16 * mib):
        samples[f"all_reduce graph {size}"] = {"ours": [4, 5, 90], "nccl": [10, 10, 10]}
        samples[f"all_reduce eager {size}"] = {"ours": [20, 20], "nccl": [60, 60], "few": [20, 20]}
    for size in (64 * mib, 256 * mib, 1024 * mib):
        us = size / 300e3
        samples[f"all_reduce eager {size}"] = {"ours": [us], "nccl": [2 * us], "few": [3 * us]}
        samples[f"all_reduce queued {size}"] = samples[f"all_reduce eager {size}"]
    for sockets, theirs in (("default", 300), ("4", 200)):
        samples[f"tcp {sockets} 65536"] = {"ours": [50], "nccl": [theirs]}
        samples[f"tcp {sockets} {64 * mib}"] = {"ours": [400], "nccl": [4 * theirs]}
    samples["ddp 12x1024 nccl 25"] = {"alone": [100], "nccl 25": [130]}
    samples["ddp 12x1024 nccl 100"] = {"alone": [100], "nccl 100": [120]}
    samples["ddp 12x1024 few 25"] = {"alone": [100], "few 25": [105]}
    values = bench.judge(samples)
    assert values["graph_mean"] == pytest.approx(2.0)
    assert values["eager_mean"] == pytest.approx(6**0.5)
    assert values["bw_64m"] == pytest.approx(300) and values["few_sms_1g"] == pytest.approx(100)
    assert values["graph_8k"] == 5 and values["eager_8k"] == 20
    assert values["tcp_latency"] == pytest.approx(0.25) and values["tcp_bandwidth"] == pytest.approx(2.0)
    assert "random_calls" not in values and bench.judge({"about": {"random": 7}}) == {"random_calls": 7.0}
    assert values["ddp_151m"] == pytest.approx(0.25)
    assert "ddp_806m" not in values and "others_mean" not in values


def test_tables_show_losses_in_bold() -> None:
    bench = load()
    samples = {
        "about": {"ranks": 2, "gpu": "X", "nccl": "1", "torch": "2"},
        "all_reduce eager 8": {"ours": [30.0, 10.0, 20.0], "nccl": [40.0], "few": [80.0]},
        "ddp 12x1024 ours 25": {"alone": [100.0], "ours 25": [130.0]},
    }
    page = bench.tables.page(samples, "2026-01-01")
    assert "| 8 B | - | - | - | 20 | 40 | 2.00x | 80 | **0.50x** | - |" in page
    assert "| 12x1024 | ours | 25 | 0.1 | 0.1 | 30.0% |" in page and "2026-01-01" in page


def test_without_two_gpus_it_says_so() -> None:
    if load().gpus() >= 2:
        pytest.skip("there are two GPUs here: this would measure")
    done = subprocess.run([sys.executable, str(HERE / "bench.py")], capture_output=True, text=True, timeout=100)
    assert done.returncode == 77, json.dumps(done.stderr[-500:])
    assert "two CUDA GPUs" in done.stdout
