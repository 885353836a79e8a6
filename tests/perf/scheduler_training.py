"""Training in emulated clusters: what share of a step waits for communication (root only; one launch at most 145 s).

    python tests/perf/scheduler_training.py sites|even 4M|12M|30M [--batch N] [--rounds N] [WRAPPER...]

``make bench-scheduler PART=sites-4M,sites-12M,...`` runs the launches of PARTS; what each found is kept in
out/bench/scheduler/training.json, and claims are made of all that is there.

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
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from claims import OUT, Claims

from hccl_py.core.errors import HcclError
from hccl_py.lab.network import LabNetwork
from hccl_py.lab.ranks import commands_for

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "cluster_configs"
GLOO = ("gloo:1", "gloo:5", "gloo:25")
OURS, SHARDED = "ours:off", "sharded:0"
# Such that the best of GLOO waits about 35% of a step on two cores; models of other sizes have the same ratio of
# computation to communication.
BATCHES = {"sites": 88, "even": 10}
SHAPES = ("4M", "12M", "30M")
LIMIT_S = 145.0
STORE = OUT / "scheduler" / "training.json"
# The hosts of a lab share this machine's cores: a rank that polls takes them from the others' computation.
SETTINGS = {
    "HCCL_PY_SPIN": "0",
    "HCCL_PY_SCHEDULER": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

Steps = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Part:
    """One launch: where, which model, which wrappers, how many rounds.

    Attributes:
        silent: wrappers that are there for steps without synchronisation only.
        calibrate: rounds of the first wrapper that find the batch, for this part and those of its model that follow.
    """

    where: str
    shape: str
    wrappers: tuple[str, ...]
    rounds: int
    silent: tuple[str, ...] = ()
    calibrate: int = 0


PARTS = {
    "sites-4M": Part("sites", "4M", (*GLOO, OURS), 5, calibrate=3),
    "sites-4M-sharded": Part("sites", "4M", (OURS, SHARDED), 6, (OURS,)),
    "sites-12M": Part("sites", "12M", ("gloo:1", OURS), 3, calibrate=1),
    "sites-12M-gloo": Part("sites", "12M", ("gloo:5", "gloo:25"), 2),
    "sites-12M-sharded": Part("sites", "12M", (OURS, SHARDED), 4, (OURS,)),
    "sites-30M-gloo-1": Part("sites", "30M", ("gloo:1",), 1, calibrate=1),
    "sites-30M": Part("sites", "30M", (OURS,), 2),
    "sites-30M-gloo-5": Part("sites", "30M", ("gloo:5",), 1),
    "sites-30M-gloo-25": Part("sites", "30M", ("gloo:25",), 1),
    "sites-30M-sharded": Part("sites", "30M", (OURS, SHARDED), 1, (OURS,)),
    "even-4M": Part("even", "4M", (*GLOO, OURS), 15, calibrate=10),
    "even-12M": Part("even", "12M", (*GLOO, OURS), 8, calibrate=4),
    "even-30M": Part("even", "30M", (*GLOO, OURS), 3, calibrate=1),
}


def launch(where: str, task: dict[str, Any]) -> dict[str, Any]:
    """Bring the cluster up, run the ranks there, take it down; what rank 0 found."""
    task = {**task, "limit_s": LIMIT_S}
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


def run_part(name: str) -> None:
    """One of PARTS; what it finds is kept."""
    part, kept = PARTS[name], stored()
    batch = BATCHES[part.where]
    for other, its in PARTS.items():  # that of the same model counts, else that of the one before
        if (
            its.calibrate
            and its.where == part.where
            and other in kept
            and SHAPES.index(its.shape) <= SHAPES.index(part.shape)
        ):
            batch = kept[other]["batch"]
    task = {"shape": part.shape, "batch": batch, "rounds": part.rounds, "wrappers": part.wrappers}
    one = launch(part.where, {**task, "silent": part.silent, "calibrate": part.calibrate, "share": 0.35})
    print(report(part.where, part.shape, one), flush=True)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    STORE.write_text(json.dumps({**stored(), name: one}), encoding="utf-8")


def stored() -> dict[str, Any]:
    """What parts have found so far."""
    found: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    return found


def record(claims: Claims, command: str) -> None:
    """Those of the claims baseline, overhead_sites, overhead_even, overhead_sharded, hidden and memory that are there.

    Each is of the worst model, so all models must have been measured.
    """
    kept = stored()
    found = {name: kept[name] for name in PARTS if name in kept}
    waits: dict[tuple[str, str], dict[str, float]] = {}
    for name, one in found.items():
        part = PARTS[name]
        timed = [wrapper for wrapper in part.wrappers if wrapper not in part.silent]
        row = waits.setdefault((part.where, part.shape), {})
        row |= {wrapper: median(waiting(one["steps"], wrapper)) for wrapper in timed}
    rows = {(where, shape): waits.get((where, shape), {}) for where in BATCHES for shape in SHAPES}
    best = {f"{w} {s}": min(row[g] for g in GLOO) for (w, s), row in rows.items() if set(GLOO) <= set(row)}
    ours = [one for one in found.values() if OURS in one["memory"]]
    hides = {n: median(hidden(one["steps"], OURS)) for n, one in found.items() if OURS in one["steps"] and "sites" in n}
    worst = {
        "baseline": [abs(share - 0.35) for share in best.values()],
        "overhead_sites": [row[OURS] for (where, _), row in rows.items() if where == "sites" and OURS in row],
        "overhead_even": [row[OURS] for (where, _), row in rows.items() if where == "even" and OURS in row],
        "overhead_sharded": [row[SHARDED] for row in rows.values() if SHARDED in row],
        "hidden": [-share for share in hides.values()],
        "memory": [-one["memory"][OURS][0] / one["memory"][OURS][1] for one in ours if SHARDED not in one["steps"]],
    }
    wanted = {"baseline": 6, "memory": 6}
    gloo = "gloo at its best: " + ", ".join(f"{what} {share:.1%}" for what, share in best.items())
    for id_, values in worst.items():
        if len(values) < wanted.get(id_, 3):
            print(f"{id_}: {len(values)} of {wanted.get(id_, 3)} models are measured so far", flush=True)
            continue
        claims.record(
            id_, abs(max(values)), command=command, n=min(PARTS[name].rounds for name in found),
            samples={name: one["steps"] for name, one in found.items()}, baseline=gloo,
        )  # fmt: skip


def main() -> int:
    """Measure one cluster with one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["sites", "even"])
    parser.add_argument("shape", choices=["2M", *SHAPES])
    parser.add_argument("wrappers", nargs="*", default=[*GLOO, OURS])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=int, default=0)
    parser.add_argument("--silent", default="", help="wrappers for steps without synchronisation only")
    options = parser.parse_intermixed_args()
    task = {
        "shape": options.shape,
        "batch": options.batch or BATCHES[options.where],
        "rounds": options.rounds,
        "settle": options.settle,
        "wrappers": options.wrappers,
        "silent": options.silent.split(",") if options.silent else [],
    }
    print(report(options.where, options.shape, launch(options.where, task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
