"""One rank of the training: stock DistributedDataParallel on a backend chosen by its name, under torchrun.

Step time is that of the training itself. The share of a step spent waiting for communication is measured afterwards:
pairs of steps, one as usual and one under ``no_sync`` (the same forward, backward and optimiser on the same batch,
but no gradient leaves the rank), in alternating order, each begun together by a barrier. What the usual step takes
longer, relative to its own time, is the share: the time that would vanish if communication cost nothing.
Communication hidden behind the computation of gradients does not count; work that it takes from the computation does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.env import Launch
from hccl_py.demo.tasks import Batch, Task, build

PROGRESS = "@progress "  # marks the lines that the parent process reads
TIMEOUT_S = 60.0  # without a step: then every rank prints its stacks and the job ends


class Trainer:
    """Trains one task on this rank."""

    def __init__(self, task: Task, rank: int, watchdog: Watchdog) -> None:
        self._task, self._rank, self._watchdog = task, rank, watchdog
        self._module = DistributedDataParallel(task.model)
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

    def train(self) -> dict[str, Any]:
        """Train on all batches of this rank, then judge; the losses are means over the ranks."""
        times_s, losses = [], []
        batches = self._task.batches[self._rank]
        for number, batch in enumerate(batches, 1):
            self._watchdog.feed(f"training {self._task.name}, step {number}")
            time_s, loss = self.step(batch)
            times_s.append(time_s)
            losses.append(loss)
            self._report(number, len(batches), loss)
        mean = torch.tensor(losses, dtype=torch.float64)
        dist.all_reduce(mean)
        return {
            "parameters": sum(parameter.numel() for parameter in self._task.model.parameters()),
            "step_s": statistics.median(times_s[3:]),  # the first ones build buckets and caches
            "times_s": times_s,
            "losses": (mean / dist.get_world_size()).tolist(),
            "judged": self._task.judge(),
        }

    def waiting(self, pairs: int) -> dict[str, Any]:
        """Measure the share of waiting as the head of this file defines it. The model is of no use afterwards."""
        batches = self._task.batches[self._rank]
        times_s: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            self._watchdog.feed(f"measuring {self._task.name}, pair {pair}")
            for sync in (True, False) if pair % 2 else (False, True):
                dist.barrier()
                times_s[sync].append(self.step(batches[pair % len(batches)], sync)[0])
        medians = torch.tensor(
            [statistics.median(times_s[True]), statistics.median(times_s[False])], dtype=torch.float64
        )
        dist.all_reduce(medians)  # the mean over the ranks
        with_s, without_s = (medians / dist.get_world_size()).tolist()
        return {"sync_step_s": with_s, "no_sync_step_s": without_s, "waiting": max(0.0, 1 - without_s / with_s)}

    def _report(self, step: int, steps: int, loss: float) -> None:
        if self._rank == 0 and (step % 5 == 0 or step == steps):
            print(
                PROGRESS + json.dumps({"task": self._task.name, "step": step, "steps": steps, "loss": loss}), flush=True
            )


def main() -> None:
    """Run as ``torchrun --standalone --nproc-per-node 4 -m hccl_py.demo.train --backend NAME ...``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--backend", required=True, help="gloo or hccl_py")
    parser.add_argument("--steps", required=True, help="steps of each task: digits=100,bytes=80")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of steps that measure the waiting")
    parser.add_argument("--out", type=Path, required=True, help="JSON file, written by rank 0")
    options = parser.parse_args()

    rank = Launch.from_environ().rank
    torch.set_num_threads(1)
    with Watchdog(rank, TIMEOUT_S) as watchdog:
        if options.backend == "hccl_py":
            importlib.import_module("hccl_py.torch")  # registers the backend: all that changes for a user
        dist.init_process_group(options.backend, timeout=timedelta(seconds=TIMEOUT_S))
        results = {}
        for name, steps in (item.split("=") for item in options.steps.split(",")):
            watchdog.feed(f"building {name}")
            task = build(name, dist.get_world_size(), int(steps))
            trainer = Trainer(task, rank, watchdog)
            results[name] = {"title": task.title, "judged_by": task.judged_by, **trainer.train()}
            results[name] |= trainer.waiting(options.pairs)
        if rank == 0:
            options.out.write_text(json.dumps({"backend": options.backend, "tasks": results}), encoding="utf-8")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
