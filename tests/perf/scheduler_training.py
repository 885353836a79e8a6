"""Training in emulated clusters: what share of a step waits for communication (root only; one launch at most 90 s).

    python tests/perf/scheduler_training.py sites|even 4M|12M|30M [--batch N] [--rounds N] [WRAPPER...]

Waiting is paired: (a step - the step without synchronisation of the same round) / the step, all ranks running; the
median of the pairs. Wrappers are named as training_ranks.py has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from claims import Claims

from hccl_py.core.errors import HcclError
from hccl_py.lab.network import LabNetwork
from hccl_py.lab.ranks import commands_for

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "cluster_configs"
GLOO = ("gloo:1", "gloo:5", "gloo:25")
OURS = "ours:0"
# Such that the best of GLOO waits about 35% of a step on two cores; models of other sizes have the same ratio of
# computation to communication.
BATCHES = {"sites": 88, "even": 10}
SETTLE = 14  # steps that the scheduler sees before they count
ROUNDS = {"4M": 4, "12M": 2, "30M": 2}
LIMITS_S = {"2M": 140.0, "4M": 140.0, "12M": 240.0, "30M": 600.0}
# The hosts of a lab share this machine's cores: a rank that polls takes them from the others' computation.
SETTINGS = {
    "HCCL_PY_SPIN": "0",
    "HCCL_PY_SCHEDULER": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

Steps = dict[str, list[dict[str, Any]]]


def launch(where: str, task: dict[str, Any]) -> dict[str, Any]:
    """Bring the cluster up, run the ranks there, take it down; what rank 0 found."""
    task = {**task, "limit_s": LIMITS_S[task["shape"]]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(cluster(where), encoding="utf-8")
        with LabNetwork.of_file(f"tr{os.getpid()}", file) as network:
            command = [sys.executable, str(HERE / "training_ranks.py"), json.dumps(task)]
            commands = commands_for(network, command, "env", {**SETTINGS, "HCCL_PY_TOPOLOGY": str(file)})
            running = [
                subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL if rank else subprocess.PIPE, text=True)
                for rank, (words, environ) in enumerate(commands)
            ]
            try:
                shown, _ = running[0].communicate(timeout=task["limit_s"] + 3.0)
            finally:
                for process in running:
                    process.kill()
                    process.wait()
    if not shown:
        raise HcclError(f"training on {where} with {task} ended without a result; its ranks have said why")
    found: dict[str, Any] = json.loads(shown)
    return found


def cluster(where: str) -> str:
    """``sites``: two of them, 200 Mbit/s between; ``even``: 1 Gbit/s for each of four hosts."""
    if where == "sites":
        return (CONFIGS / "lab_two_sites.yaml").read_text(encoding="utf-8")
    star = (CONFIGS / "lab_star.yaml").read_text(encoding="utf-8")
    return star.replace("500Mbit/s", "1Gbit/s").replace("200Mbit/s", "1Gbit/s")


def waiting(steps: Steps, name: str) -> list[float]:
    """Of each round: the share of the step that would vanish if communication cost nothing."""
    pairs = zip(steps[name], steps["none"], strict=True)
    return [1 - alone["took_s"] / step["took_s"] for step, alone in pairs]


def hidden(steps: Steps, name: str) -> list[float]:
    """Of each of our steps on rank 0, from its trace: the share of communication time before backward's end."""
    shares = []
    for step in steps[name]:
        total_s = hidden_s = busy_until_s = 0.0
        for started_s, ended_s in zip(*step["buckets"], strict=True):
            begin_s = max(started_s, busy_until_s)  # they go one after the other
            busy_until_s = max(busy_until_s, ended_s)
            total_s += max(ended_s - begin_s, 0.0)
            hidden_s += max(min(ended_s, step["backward_s"]) - begin_s, 0.0)
        shares.append(hidden_s / total_s)
    return shares


def report(where: str, shape: str, found: dict[str, Any]) -> str:
    """A table of medians."""
    steps: Steps = found["steps"]
    alone_s = median(step["took_s"] for step in steps["none"])
    lines = [f"{where} {shape}, batch {found['batch']}, {len(steps['none'])} rounds; without sync {alone_s:.3f} s"]
    for name, values in steps.items():
        line = f"  {name:8} {median(step['took_s'] for step in values):.3f} s"
        line += f", cpu {mean(s['cpu_s'] for s in values):.2f} s, idle {mean(s['idle'] for s in values):.0%}"
        if name != "none":
            line += f", waits {median(waiting(steps, name)):.1%}"
        if name.startswith("ours"):
            line += f", hidden {median(hidden(steps, name)):.1%}, {len(values[-1]['buckets'][0])} buckets"
        lines.append(line)
    lines += [f"  switch: {switch}" for switch in found["switches"]]
    if found["settled_s"]:
        lines.append("  first steps: " + " ".join(f"{took_s:.2f}" for took_s in found["settled_s"]))
    for name, (live, reserved) in found["memory"].items():
        lines.append(f"  {name}: {live} bytes of gradients in {reserved} bytes of shared memory: {live / reserved:.1%}")
    return "\n".join(lines)


def record(claims: Claims, command: str) -> None:
    """Claims baseline, overhead_sites, overhead_even, hidden and memory: the worst of the models."""
    waits: dict[str, dict[str, float]] = {"sites": {}, "even": {}}
    best: dict[str, float] = {}
    hides: dict[str, float] = {}
    memory: dict[str, float] = {}
    samples: dict[str, Any] = {}
    for where, worst in waits.items():
        for shape in ROUNDS:
            task = {"shape": shape, "batch": BATCHES[where], "rounds": ROUNDS[shape], "settle": SETTLE}
            task["wrappers"] = [*GLOO, OURS]
            found = launch(where, task)
            print(report(where, shape, found), flush=True)
            steps = samples[f"{where} {shape}"] = found["steps"]
            worst[shape] = median(waiting(steps, OURS))
            best[f"{where} {shape}"] = min(median(waiting(steps, name)) for name in GLOO)
            if where == "sites":
                hides[shape] = median(hidden(steps, OURS))
            live, reserved = found["memory"][OURS]
            memory[f"{where} {shape}"] = live / reserved
    gloo = "gloo at its best: " + ", ".join(f"{what} {share:.1%}" for what, share in best.items())
    for id_, value in (
        ("baseline", max(abs(share - 0.35) for share in best.values())),
        ("overhead_sites", max(waits["sites"].values())),
        ("overhead_even", max(waits["even"].values())),
        ("hidden", min(hides.values())),
        ("memory", min(memory.values())),
    ):
        claims.record(id_, value, command=command, n=min(ROUNDS.values()), samples=samples, baseline=gloo)


def main() -> int:
    """Measure one cluster with one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["sites", "even"])
    parser.add_argument("shape", choices=["2M", "4M", "12M", "30M"])
    parser.add_argument("wrappers", nargs="*", default=[*GLOO, OURS])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--settle", type=int, default=SETTLE)
    options = parser.parse_intermixed_args()
    task = {
        "shape": options.shape,
        "batch": options.batch or BATCHES[options.where],
        "rounds": options.rounds or ROUNDS[options.shape],
        "settle": options.settle,
        "wrappers": options.wrappers,
    }
    print(report(options.where, options.shape, launch(options.where, task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
