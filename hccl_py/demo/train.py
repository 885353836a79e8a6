"""One rank of the training, under torchrun: stock DistributedDataParallel on backends chosen by their names.

``train`` trains every task over one backend. ``compare`` then measures steps over all backends in one job, in turns,
forwards and backwards: a step as usual over each of them, and one under ``no_sync``, which does the same forward,
backward and optimiser on the same batch but sends no gradient. All ranks begin each step together, after a barrier.

The share of a step spent waiting for communication is what the usual step takes longer than the one under ``no_sync``,
relative to its own time: what would vanish if communication cost nothing. Communication that is hidden behind the
computation of gradients does not count; computing time that communication takes away does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.env import Launch
from hccl_py.demo.tasks import Batch, Task, build

PROGRESS = "@progress "  # marks the lines that the parent process reads
TIMEOUT_S = 90.0  # without a step: then every rank prints its stacks and the job ends
NO_SYNC = "no_sync"
WARMUP = 3  # rounds that build buckets and caches and are not counted


class Trainer:
    """One task on this rank, in DDP over ``group`` (None: the default one)."""

    def __init__(self, task: Task, model: nn.Module, group: Any = None) -> None:
        self._task = task
        self._module = DistributedDataParallel(model, process_group=group)
        self._optimizer = torch.optim.Adam(self._module.parameters(), lr=task.learning_rate)

    def step(self, batch: Batch, sync: bool = True) -> tuple[float, float]:
        """Do one step; return its time in seconds and the loss on this rank's batch."""
        start_s = time.perf_counter()
        self._optimizer.zero_grad()
        with contextlib.nullcontext() if sync else self._module.no_sync():
            loss = self._task.loss(self._module, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.perf_counter() - start_s, float(loss.detach())


def train(task: Task, rank: int, watchdog: Watchdog) -> dict[str, Any]:
    """Train on all batches of this rank, then judge; the losses are means over the ranks."""
    trainer = Trainer(task, task.model)
    times_s, losses = [], []
    batches = task.batches[rank]
    for number, batch in enumerate(batches, 1):
        watchdog.feed(f"training {task.name}, step {number}")
        time_s, loss = trainer.step(batch)
        times_s.append(time_s)
        losses.append(loss)
        if rank == 0 and (number % 5 == 0 or number == len(batches)):
            _progress(task.name, number, len(batches), f"loss {loss:.3f}")
    return {
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "times_s": times_s,
        "losses": _mean_over_ranks(losses),
        "judged": task.judge(),
    }


def compare(task: Task, rank: int, watchdog: Watchdog, groups: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measure steps over each of ``groups`` and without communication, in turns; medians, means over the ranks."""
    trainers = {name: Trainer(task, copy.deepcopy(task.model), group) for name, group in groups.items()}
    times_s: dict[str, list[float]] = {name: [] for name in (*groups, NO_SYNC)}
    batches = task.batches[rank]
    for number in range(-WARMUP, rounds):
        for name in times_s if number % 2 else reversed(times_s):
            watchdog.feed(f"measuring {task.name} over {name}, round {number}")
            dist.barrier()
            trainer = trainers.get(name) or trainers[next(iter(groups))]
            time_s, _ = trainer.step(batches[number % len(batches)], sync=name != NO_SYNC)
            if number >= 0:
                times_s[name].append(time_s)
        if rank == 0 and number >= 0:
            _progress(task.name, number + 1, rounds, "")
    medians = dict(zip(times_s, _mean_over_ranks([statistics.median(times_s[name]) for name in times_s]), strict=True))
    alone_s = medians.pop(NO_SYNC)
    return {
        "no_sync_step_s": alone_s,
        "times_s": times_s,
        "backends": {
            name: {"step_s": value, "waiting": max(0.0, 1 - alone_s / value)} for name, value in medians.items()
        },
    }


def _mean_over_ranks(values: list[float]) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    mean: list[float] = (total / dist.get_world_size()).tolist()
    return mean


def _progress(task: str, step: int, steps: int, text: str) -> None:
    print(PROGRESS + json.dumps({"task": task, "step": step, "steps": steps, "text": text}), flush=True)


def main() -> None:
    """Run as ``torchrun --standalone --nproc-per-node 4 -m hccl_py.demo.train train --backends hccl_py ...``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "compare"])
    parser.add_argument("--backends", required=True, help="of train: one; of compare: several by comma")
    parser.add_argument("--steps", required=True, help="steps, or rounds, of each task: digits=100,bytes=80")
    parser.add_argument("--out", type=Path, required=True, help="JSON file, written by rank 0")
    options = parser.parse_args()

    rank = Launch.from_environ().rank
    backends = options.backends.split(",")
    torch.set_num_threads(1)
    with Watchdog(rank, TIMEOUT_S) as watchdog:
        if "hccl_py" in backends:
            importlib.import_module("hccl_py.torch")  # registers the backend: all that changes for a user
        limit = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(backends[0], timeout=limit)
        groups = {name: dist.new_group(backend=name, timeout=limit) for name in backends[1:]}
        results = {}
        for name, steps in (item.split("=") for item in options.steps.split(",")):
            watchdog.feed(f"building {name}")
            task = build(name, dist.get_world_size(), int(steps))
            about = {"title": task.title, "judged_by": task.judged_by}
            if options.what == "train":
                results[name] = {**about, **train(task, rank, watchdog)}
            else:
                results[name] = {**about, **compare(task, rank, watchdog, {backends[0]: None, **groups}, int(steps))}
        if rank == 0:
            options.out.write_text(json.dumps(results), encoding="utf-8")
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
