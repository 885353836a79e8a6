"""``make bench-gpu``: hccl_py against NCCL on two GPUs of one host, as claims in out/bench/gpu.json.

With ``--tables`` the claims go to docs/bench/gpu.json too, and tables to docs/BENCHMARKS.md (of runs with all parts).
``--part`` names parts: of worker.py (all_reduce, others, ddp, tcp), or random (tests/gpu/workers/group.py); all by
default. Exits 77 where there are no two GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import tables  # noqa: E402  # a script's folder is not a package
from claims import OUT, Claims  # noqa: E402
from pages import BENCHMARKS, replace_between  # noqa: E402

PARTS = {
    "all_reduce": ("graph_mean", "eager_mean", "slower_at_none", "graph_8k", "bw_64m", "bw_256m", "bw_1g",
                   "few_sms_64m", "few_sms_256m", "few_sms_1g", "unregistered_mean", "eager_8k", "cast"),
    "others": ("others_mean", "others_worst"),
    "ddp": ("ddp_151m", "ddp_806m"),
    "tcp": ("tcp_bandwidth", "tcp_latency"),
    "random": ("random_calls",),
}  # fmt: skip
RANDOM_CALLS = 10_000
MIB = 1 << 20


def gpus() -> int:
    """GPUs that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


def medians(samples: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median microseconds by what was called and by whom."""
    return {
        name: {who: statistics.median(times) for who, times in by.items()}
        for name, by in samples.items()
        if name != "about"
    }


def mean(ratios: Iterable[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def judge(samples: dict[str, Any]) -> dict[str, float]:
    """The value of each claim that ``samples`` tell, by id."""
    m = medians(samples)
    values: dict[str, float] = {}
    graph = {int(name.split()[-1]): by for name, by in m.items() if name.startswith("all_reduce graph")}
    eager = {int(name.split()[-1]): by for name, by in m.items() if name.startswith("all_reduce eager")}
    if graph and eager:
        best = {**{size: by for size, by in eager.items() if size > 16 * MIB}, **graph}
        values["graph_mean"] = mean(by["nccl"] / by["ours"] for by in best.values())
        values["eager_mean"] = mean(by["nccl"] / by["ours"] for by in eager.values())
        values["unregistered_mean"] = values["graph_mean"]  # no buffer is registered: there is nothing to register
        values["slower_at_none"] = max(by["ours"] / by["nccl"] for by in (*best.values(), *eager.values()))
        values["graph_8k"] = graph[8192]["ours"]
        values["eager_8k"] = eager[8192]["ours"]
        for name, size in (("64m", 64 * MIB), ("256m", 256 * MIB), ("1g", 1024 * MIB)):
            queued = m[f"all_reduce queued {size}"]
            values[f"bw_{name}"] = size / queued["ours"] / 1e3
            values[f"few_sms_{name}"] = size / queued["few"] / 1e3
    casts = [by for name, by in m.items() if name.startswith("cast")]
    if casts:
        values["cast"] = min(by["nccl"] / by["ours"] for by in casts)
    rest = [
        by for name, by in m.items() if name.split()[0] in ("all_gather", "reduce_scatter", "all_to_all", "broadcast")
    ]
    if rest:
        values["others_mean"] = mean(by["nccl"] / by["ours"] for by in rest)
        values["others_worst"] = max(by["ours"] / by["nccl"] for by in rest)
    for model, id_ in (("12x1024", "ddp_151m"), ("16x2048", "ddp_806m")):
        exposed = {}
        for name, by in m.items():
            if name.startswith(f"ddp {model}"):
                who = name.split(maxsplit=2)[2]
                exposed[who] = max(1e-6, by[who] / by["alone"] - 1)
        if exposed:
            nccl = min(share for who, share in exposed.items() if who.startswith("nccl"))
            values[id_] = min(exposed[who] for who in exposed if who.split()[0] in ("ours", "few")) / nccl
    between = {name: by for name, by in m.items() if name.startswith("tcp ")}
    if between:
        nccl: dict[int, float] = {}
        ours: dict[int, list[float]] = {}
        for name, by in between.items():
            size = int(name.split()[-1])
            nccl[size] = min(by["nccl"], nccl.get(size, by["nccl"]))
            ours.setdefault(size, []).append(by["ours"])
        values["tcp_bandwidth"] = min(nccl[size] / statistics.median(ours[size]) for size in nccl if size >= 16 * MIB)
        values["tcp_latency"] = statistics.median(ours[65536]) / nccl[65536]
    if "random" in samples.get("about", {}):
        values["random_calls"] = float(samples["about"]["random"])
    return values


def ranks(script: Path, *arguments: str, **variables: str) -> str:
    """Run a script on two ranks; what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), *arguments]
    done = subprocess.run(
        command, check=True, timeout=470, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    print(done.stdout, end="", flush=True)
    return done.stdout


def measure(parts: list[str]) -> dict[str, Any]:
    """The samples of ``parts``."""
    samples: dict[str, Any] = {"about": {}}
    runs: list[tuple[str, dict[str, str]]] = [(part, {}) for part in parts if part not in ("tcp", "random")]
    if "tcp" in parts:
        runs += [("tcp", {}), ("tcp", {"NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "4"})]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.json"
        for part, variables in runs:
            ranks(HERE / "worker.py", part, str(file), **variables)
            got = json.loads(file.read_text("utf-8"))
            samples["about"].update(got.pop("about"))
            samples.update(got)
    if "random" in parts:
        said = ranks(HERE.parent.parent / "gpu" / "workers" / "group.py", str(RANDOM_CALLS))
        if f"{RANDOM_CALLS} random calls are right" in said:
            samples["about"]["random"] = RANDOM_CALLS
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", help=f"parts, by commas: {', '.join(PARTS)}")
    parser.add_argument("--samples", help="judge this file of worker.py, and measure nothing")
    parser.add_argument("--tables", action="store_true", help="write docs/bench/gpu.json and docs/BENCHMARKS.md")
    options = parser.parse_args()
    parts = options.part.split(",") if options.part else list(PARTS)
    if options.samples:
        samples = json.loads(Path(options.samples).read_text("utf-8"))
    else:
        if gpus() < 2:
            print("bench-gpu needs two CUDA GPUs, and this machine has not: nothing was measured")
            return 77
        samples = measure(parts)
    ids = [id_ for part in parts for id_ in PARTS[part]]
    claims = Claims("gpu", ids)
    about = samples.get("about", {})
    for id_, value in judge(samples).items():
        claims.record(
            id_,
            value,
            command="make bench-gpu" + (f" PART={options.part}" if options.part else ""),
            n=9,
            samples={name: by for name, by in samples.items() if name != "about"} if id_ == "graph_mean" else {},
            baseline=f"NCCL {about.get('nccl', '?')} (torch {about.get('torch', '?')}), {about.get('gpu', '?')}",
        )
    status = claims.finish(OUT / "gpu.json")
    if options.tables and not options.part:
        shutil.copy(OUT / "gpu.json", BENCHMARKS.parent / "bench" / "gpu.json")
        replace_between(BENCHMARKS, tables.BEGIN, tables.page(samples, f"{datetime.now(timezone.utc):%Y-%m-%d}"))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
