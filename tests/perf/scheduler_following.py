"""Does the scheduler follow a link that is throttled mid-run and repaired, three times? In an emulated cluster (root).

    python tests/perf/scheduler_following.py [--shape 2M] [--batch 4] [--changes 3] [--pairs 6]

Four hosts with 1 Gbit/s each; the last host's link goes to 200 Mbit/s and back. 20 steps after each change rounds
begin of a step by the scheduler's training and one by each fixed setting, so that what else the machine does meets all
of them: what counts is the median of ours over that of the best fixed setting of that phase.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from claims import OUT, Claims
from scheduler_training import HERE, SETTINGS, cluster

from hccl_py.core.errors import HcclError
from hccl_py.lab.network import LabNetwork
from hccl_py.lab.ranks import commands_for

WHOLE_BPS, THROTTLED_BPS = 1_000_000_000, 200_000_000
WITHIN = 20  # steps
PAIRS = 6
LIMIT_S = 145.0


def phases(changes: int, pairs: int) -> list[dict[str, Any]]:
    """What the ranks do."""
    found: list[dict[str, Any]] = [{"rate": WHOLE_BPS, "follow": 2 * WITHIN, "pairs": pairs}]
    for change in range(changes):
        found.append({"rate": THROTTLED_BPS, "follow": WITHIN, "pairs": pairs, "declared": change == 0})
        found.append({"rate": WHOLE_BPS, "follow": WITHIN, "pairs": pairs})
    return found


def launch(task: dict[str, Any], **settings: str) -> list[dict[str, Any]]:
    """What rank 0 said, line by line; the network changes when it asks for it."""
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(cluster("even"), encoding="utf-8")
        with LabNetwork.of_file(f"fo{os.getpid()}", file) as network:
            last = network.blueprint.ranks[-1]
            switch = next(
                other
                for wire in network.blueprint.wires
                for one, other in ((wire.a, wire.b.node), (wire.b, wire.a.node))
                if one.host == last
            )
            command = [sys.executable, str(HERE / "following_ranks.py"), json.dumps(task)]
            environ = {**SETTINGS, "HCCL_PY_TOPOLOGY": str(file), **settings}
            running = [
                subprocess.Popen(
                    words,
                    env=variables,
                    stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    text=True,
                )
                for rank, (words, variables) in enumerate(commands_for(network, command, "env", environ))
            ]
            talks, begun_s, last_s = running[0], time.monotonic(), time.monotonic()
            assert talks.stdout is not None and talks.stdin is not None
            try:
                for line in talks.stdout:
                    one, last_s = json.loads(line), time.monotonic()
                    said.append(one)
                    if "rate" in one:
                        network.set_link(f"{last}/eth0", switch, one["rate"])
                        talks.stdin.write("\n")
                        talks.stdin.flush()
            finally:
                for process in running:
                    process.kill()
                    process.wait()
    if not said or "done" not in said[-1]:
        raise HcclError(
            f"the training that is followed ended without a result after {time.monotonic() - begun_s:.0f} s; its ranks "
            f"have said why. {len(said)} lines came, the last one {last_s - begun_s:.0f} s after the start: {said[-1:]}"
        )
    return said


@dataclass
class Settled:
    """A phase, from the 21st step on: what steps take, by setting."""

    rate_bps: int
    times_s: dict[str, list[float]]
    switches: int  # in this phase
    buckets: int

    @property
    def best(self) -> str:
        """The fixed setting whose median is smallest."""
        return min((name for name in self.times_s if name != "ours"), key=lambda name: median(self.times_s[name]))

    @property
    def ratio(self) -> float:
        """Of our step to that of the best fixed setting."""
        return median(self.times_s["ours"]) / median(self.times_s[self.best])


def settled(said: list[dict[str, Any]], phases: list[dict[str, Any]]) -> list[Settled]:
    """What became of each phase."""
    found, before = [], 0
    for number, phase in enumerate(phases):
        pairs = [one for one in said if one.get("phase") == number and "pair" in one]
        times = {name: [one["pair"][name] for one in pairs] for name in pairs[0]["pair"]}
        now = pairs[-1]["switches"]
        found.append(Settled(phase["rate"], times, now - before, pairs[-1]["buckets"]))
        before = now
    return found


def record(claims: Claims, command: str) -> None:
    """Claims following, repaired and switches."""
    todo = phases(3, PAIRS)
    said = launch({"shape": "2M", "batch": 4, "limit_s": LIMIT_S, "phases": todo})
    print(report(said, todo), flush=True)
    found = settled(said, todo)
    samples = {"phases": [{**vars(one), "best": one.best} for one in found], "switches": said[-1]["done"]}
    for id_, value, baseline in (
        ("following", max(one.ratio for one in found[1::2]), "the best of six fixed settings on the throttled network"),
        ("repaired", max(one.ratio for one in found[2::2]) / found[0].ratio, "before the first change"),
        ("switches", float(max(one.switches for one in found[1:])), "-"),
    ):
        claims.record(id_, value, command=command, n=PAIRS, samples=samples, baseline=baseline)


def record_bits(claims: Claims, command: str) -> None:
    """Claim bit_equal: the same training in deterministic mode with the scheduler and without."""
    task = {"shape": "2M", "batch": 4, "limit_s": LIMIT_S, "phases": phases(1, 0)}
    losses = {}
    for scheduler in ("1", "0"):
        said = launch(task, HCCL_PY_DETERMINISTIC="1", HCCL_PY_SCHEDULER=scheduler)
        losses[scheduler] = [one["loss"] for one in said if "loss" in one]
        changed = said[-1]["done"]
        print(f"deterministic, scheduler {scheduler}: {len(losses[scheduler])} losses, switches: {changed}", flush=True)
        if scheduler == "1" and not changed:
            raise HcclError("the scheduler changed nothing, so nothing was compared")
    differ = sum(a != b for a, b in zip(losses["1"], losses["0"], strict=True))
    claims.record(
        "bit_equal", float(differ), command=command, n=len(losses["0"]), samples=losses, baseline="the scheduler off"
    )


def main() -> int:
    """Follow, and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="2M")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--changes", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--bits", action="store_true", help="compare losses with the scheduler on and off instead")
    parser.add_argument("--all", action="store_true", help="show every step")
    options = parser.parse_args()
    task = {
        "shape": options.shape,
        "batch": options.batch,
        "limit_s": LIMIT_S,
        "phases": phases(options.changes, options.pairs),
    }
    if options.bits:
        claims = Claims("scheduler", ["bit_equal"])
        record_bits(claims, "python tests/perf/scheduler_following.py --bits")
        return claims.finish(OUT / "scheduler.json")
    begun_s = time.monotonic()
    said = launch(task)
    print(report(said, task["phases"], options.all))
    print(f"{time.monotonic() - begun_s:.0f} s")
    return 0


def report(said: list[dict[str, Any]], phases: list[dict[str, Any]], every_step: bool = False) -> str:
    """A line a phase and a line a switch."""
    lines = []
    for number, one in enumerate(settled(said, phases)):
        times = ", ".join(f"{name} {median(all_s):.3f} s" for name, all_s in one.times_s.items())
        what = f"{one.rate_bps / 1e6:5.0f} Mbit/s, {one.switches} switches, {one.buckets} buckets: {times}"
        lines.append(f"{what}; ours is {one.ratio:.3f} of the best fixed ({one.best})")
        if every_step:
            steps = [s for s in said if s.get("phase") == number and "step" in s]
            lines.append("    " + " ".join(f"{s['took_s']:.2f}" for s in steps))
    for step, why, predicted_s, achieved_s, back in said[-1]["done"]:
        came = "-" if achieved_s is None else f"{achieved_s * 1e3:.0f} ms"
        end = ", taken back" if back else ""
        lines.append(f"  step {step}: {why}; predicted {predicted_s * 1e3:.0f} ms, came {came}{end}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
