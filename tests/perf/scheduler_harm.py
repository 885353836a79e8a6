"""Does the scheduler ever make a training slower where there is nothing to follow? In an emulated cluster (root).

    python tests/perf/scheduler_harm.py [--seconds 30] [MODEL...]

Four hosts with 1 Gbit/s each and ten models, two in each of the parts harm-1 to harm-5 of ``make bench-scheduler``;
what they find is kept in out/bench/scheduler/harm.json. What counts for a model is the median over rounds of our step
over the step of the same round with the best fixed setting, which is the one whose median is smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from claims import OUT, Claims
from harm_ranks import MODELS
from scheduler_training import HERE, SETTINGS, cluster

from hccl_py.core.errors import HcclError
from hccl_py.lab.network import LabNetwork
from hccl_py.lab.ranks import commands_for

LIMIT_S = 145.0
MODEL_S = 30.0
STORE = OUT / "scheduler" / "harm.json"
NAMES = list(MODELS)
PARTS = {f"harm-{n // 2 + 1}": NAMES[n : n + 2] for n in range(0, len(NAMES), 2)}


def launch(models: list[str], model_s: float) -> list[dict[str, Any]]:
    """What rank 0 found, by model."""
    task = {"models": models, "model_s": model_s, "limit_s": LIMIT_S}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(cluster("even"), encoding="utf-8")
        with LabNetwork.of_file(f"ha{os.getpid()}", file) as network:
            command = [sys.executable, str(HERE / "harm_ranks.py"), json.dumps(task)]
            running = [
                subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL if rank else subprocess.PIPE, text=True)
                for rank, (words, environ) in enumerate(
                    commands_for(network, command, "env", {**SETTINGS, "HCCL_PY_TOPOLOGY": str(file)})
                )
            ]
            found = []
            try:
                assert running[0].stdout is not None
                for line in running[0].stdout:
                    found.append(json.loads(line))
                    print(line_of(found[-1]), flush=True)
            finally:
                for process in running:
                    process.kill()
                    process.wait()
    if len(found) < len(models):
        raise HcclError(f"only {len(found)} of {len(models)} models were trained; the ranks have said why")
    return found


def best(found: dict[str, Any]) -> str:
    """The fixed setting that is fastest."""
    times = found["times_s"]
    return min((name for name in times if name not in ("ours", "off")), key=lambda name: median(times[name]))


def ratio(found: dict[str, Any]) -> float:
    """Of our step to the best fixed setting's."""
    times = found["times_s"]
    return median(a / b for a, b in zip(times["ours"], times[best(found)], strict=True))


def control(found: dict[str, Any]) -> float:
    """The same of the wrapper without the scheduler."""
    times = found["times_s"]
    return median(a / b for a, b in zip(times["off"], times[best(found)], strict=True))


def line_of(found: dict[str, Any]) -> str:
    """For people."""
    times = ", ".join(f"{name} {median(all_s) * 1e3:.1f} ms" for name, all_s in found["times_s"].items())
    n, buckets = len(found["times_s"]["ours"]), found["buckets"]
    first = sum(found["first_s"]) / len(found["first_s"]) / median(found["times_s"]["ours"])
    times += f"; off {control(found):.3f}; {'settled' if found['settled'] else 'NOT SETTLED'}"
    times += f"; first {len(found['first_s'])} steps {first:.2f} of later ones"
    lines = [f"{found['model']}: {ratio(found):.3f} of {best(found)}, n = {n}, {buckets} buckets: {times}"]
    return "\n".join([*lines, *(f"    {switch}" for switch in found["switches"])])


def run_part(name: str) -> None:
    """Two models; what was found of them is kept."""
    found = launch(PARTS[name], MODEL_S)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    STORE.write_text(json.dumps({**stored(), **{one["model"]: one for one in found}}), encoding="utf-8")


def stored() -> dict[str, Any]:
    """What was found so far, by model."""
    found: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    return found


def record(claims: Claims, command: str) -> None:
    """Claim no_harm, once all models were measured."""
    found = [one for name, one in stored().items() if name in MODELS]
    if len(found) < len(MODELS):
        print(f"no_harm: {len(found)} of {len(MODELS)} models are measured so far", flush=True)
        return
    worst = max(found, key=ratio)
    n = min(len(one["times_s"]["ours"]) for one in found)
    claims.record(
        "no_harm", ratio(worst), command=command, n=n, samples={one["model"]: one for one in found},
        baseline=f"worst: {worst['model']}, {best(worst)}; there the wrapper without scheduler {control(worst):.3f}",
    )  # fmt: skip


def main() -> int:
    """Measure some models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=MODEL_S)
    options = parser.parse_args()
    launch(options.models, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
