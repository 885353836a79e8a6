"""Tables of the scheduler's figures for docs/BENCHMARKS.md, and docs/bench/scheduler.json: of all that was measured."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import scheduler_harm
import scheduler_training
from claims import OUT
from pages import BENCHMARKS, replace_between

_CLAIMS, _TRAINING, _HARM = (
    f"<!-- table: tests/perf/scheduler_tables.py: {what} -->" for what in ("claims", "training", "harm")
)
KEPT = BENCHMARKS.parent / "bench" / "scheduler.json"


def write(path: Path = BENCHMARKS, kept: Path = KEPT) -> None:
    """Put the tables between their marks in the page, and the claims beside the other results."""
    shutil.copyfile(OUT / "scheduler.json", kept)
    replace_between(path, _CLAIMS, _text(claims(json.loads(kept.read_text("utf-8")))))
    replace_between(path, _TRAINING, _text(training(scheduler_training.stored())))
    replace_between(path, _HARM, _text(harm(scheduler_harm.stored())))


def claims(found: list[dict[str, Any]]) -> list[list[str]]:
    """A line a claim."""
    lines = [["claim", "wanted", "measured", "n", "met"], ["---", "---", "---:", "---:", "---"]]
    for claim in found:
        value = "not measured" if claim["value"] is None else f"{claim['value']:.3g} {claim['unit']}"
        lines.append([claim["name"], claim["wanted"], value, str(claim["n"]), "yes" if claim["met"] else "**no**"])
    return lines


def training(found: dict[str, Any]) -> list[list[str]]:
    """A line a wrapper of each launch."""
    head = ["cluster, parameters", "batch", "wrapper", "step", "waits", "idle", "hidden", "rounds"]
    lines = [head, ["---", "---:", "---", *["---:"] * 5]]
    for name, part in scheduler_training.PARTS.items():
        if name not in found:
            continue
        one = found[name]
        for wrapper, steps in one["steps"].items():
            waits = f"{median(scheduler_training.waiting(one['steps'], wrapper)):.1%}" if wrapper != "none" else "-"
            hidden = "-"
            if wrapper.startswith("ours"):
                hidden = f"{median(scheduler_training.hidden(one['steps'], wrapper)):.0%}"
            took_s, idle = median(step["took_s"] for step in steps), mean(step["idle"] for step in steps)
            what = [f"{took_s:.2f} s", waits, f"{idle:.0%}", hidden, str(len(steps))]
            lines.append([f"{part.where} {part.shape}", str(one["batch"]), wrapper, *what])
    return lines


def harm(found: dict[str, Any]) -> list[list[str]]:
    """A line a model."""
    head = ["model", "ours / best fixed", "without scheduler / best fixed", "best fixed", "our step", "switches", "n"]
    lines = [head, ["---", "---:", "---:", "---", "---:", "---:", "---:"]]
    for name, one in found.items():
        ratios = [f"{scheduler_harm.ratio(one):.3f}", f"{scheduler_harm.control(one):.3f}", scheduler_harm.best(one)]
        ours = one["times_s"]["ours"]
        changes = len(one["switches"]) + sum(bool(switch[-1]) for switch in one["switches"])
        lines.append([name, *ratios, f"{median(ours) * 1e3:.1f} ms", str(changes), str(len(ours))])
    return lines


def _text(lines: list[list[str]]) -> str:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{rows}\n\nWritten {today} by `make bench-scheduler PART=tables`."
