"""`make bench-scheduler`: what the scheduler must show, as claims in out/bench/scheduler.json; 1 if one is missed.

``python tests/perf/scheduler_bench.py [--part events,simulation,gradients,...]``. Parts that train in an emulated
cluster need root. A claim that no part measures is missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import scheduler_following
import scheduler_harm
import scheduler_simulation
import scheduler_tables
import scheduler_training
from claims import OUT, Claims

from hccl_py.core.errors import HcclError

ROOT = Path(__file__).parents[2]
COMMAND = "make bench-scheduler"


def events(claims: Claims) -> None:
    """The policy's tests by event sequences."""
    _tests(claims, "events", "tests/unit/scheduler/test_policy.py")


def gradients(claims: Claims) -> None:
    """The matrix of models against torch's DistributedDataParallel."""
    _tests(claims, "gradients", "tests/multiproc/torch/test_ddp_matrix.py")


def simulation(claims: Claims) -> None:
    """1,024 GPUs in the simulator."""
    found = scheduler_simulation.measure()
    best = min(found.baselines, key=lambda name: found.baselines[name])
    claims.record(
        "simulated",
        found.ours,
        command=f"{COMMAND} PART=simulation",
        n=1,
        samples={"baselines": found.baselines, "ours": found.ours, "plans_only": found.plans_only,
                 "buckets_only": found.buckets_only, "compute_s": found.step_s, "num_buckets": found.num_buckets},
        baseline=f"{best}: {100 * found.baselines[best]:.1f}%",
    )  # fmt: skip


def training(name: str) -> Callable[[Claims], None]:
    """Language models in emulated clusters: one launch, and the claims of all that were made so far."""

    def part(claims: Claims) -> None:
        scheduler_training.run_part(name)
        scheduler_training.record(claims, f"{COMMAND} PART={','.join(scheduler_training.PARTS)}")

    return part


def following(claims: Claims) -> None:
    """A link that is throttled and repaired three times."""
    scheduler_following.record(claims, f"{COMMAND} PART=following")


def bits(claims: Claims) -> None:
    """The same training with the scheduler and without."""
    scheduler_following.record_bits(claims, f"{COMMAND} PART=bits")


def harm(name: str) -> Callable[[Claims], None]:
    """Two of ten models on an even, quiet network, and the claim once all were measured."""

    def part(claims: Claims) -> None:
        scheduler_harm.run_part(name)
        scheduler_harm.record(claims, f"{COMMAND} PART={','.join(scheduler_harm.PARTS)}")

    return part


def tables(claims: Claims) -> None:
    """Measures nothing: puts what was measured into docs/."""
    scheduler_tables.write()


def _tests(claims: Claims, id_: str, *words: str) -> None:
    """A claim that is a set of tests: how many fail."""
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *words]
    done = subprocess.run(run, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(words)}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    claims.record(
        id_,
        float(len(failed)) if done.returncode == 0 or failed else float("nan"),
        command="python -m pytest " + " ".join(words),
        n=1,
        samples={"failed": failed, "summary": done.stdout.splitlines()[-1:]},
        baseline="-",
    )


TRAINING = ("baseline", "overhead_sites", "overhead_even", "overhead_sharded", "hidden", "memory")
# By name: what measures, and the claims that it records. Claims that no part names are missing.
PARTS: dict[str, tuple[Callable[[Claims], object], tuple[str, ...]]] = {
    "events": (events, ("events",)),
    "gradients": (gradients, ("gradients",)),
    "simulation": (simulation, ("simulated",)),
    "following": (following, ("following", "repaired", "switches")),
    "bits": (bits, ("bit_equal",)),
    **{name: (harm(name), ("no_harm",)) for name in scheduler_harm.PARTS},
    **{name: (training(name), TRAINING) for name in scheduler_training.PARTS},
    "tables": (tables, ()),
}


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", help=f"some of {','.join(PARTS)}")
    asked = parser.parse_args()
    names = [name for name in asked.part.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    claims = Claims("scheduler", [id_ for name in names for id_ in PARTS[name][1]] if names else None)
    for name in names or PARTS:
        print(f"-- {name}", flush=True)
        try:
            PARTS[name][0](claims)
        except (HcclError, OSError, RuntimeError, subprocess.SubprocessError):
            traceback.print_exc()  # the claims of this part are missing; the other parts are not
    return claims.finish(OUT / "scheduler.json")


if __name__ == "__main__":
    raise SystemExit(main())
