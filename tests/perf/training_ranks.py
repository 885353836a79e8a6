"""One rank of scheduler_training.py: steps of a byte-level language model by several wrappers, in turns.

A wrapper is named KIND:MIB: ``gloo:5`` is torch's DistributedDataParallel over gloo with bucket_cap_mb=5, ``stock:5``
the same over hccl_py, ``ours:4`` hccl_py's own (0: the scheduler chooses, in a group of its own; ``ours:off``: as it is
without the scheduler), ``sharded:0`` ShardedStep. Before all, the one with a scheduler makes the task's ``settle``
steps. A step of ShardedStep is the second of two in a row (the first of one text), from the end of one to the end of
the next: it waits for what the first has left under way, and leaves as much. Each round does a step by each of them and
one of the first without synchronisation, each after a barrier, the order changing from round to round; the time of a
step is the slowest rank's. A round with the smallest batch comes first and does not count. Rank 0 prints JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hccl_py.torch
from hccl_py.demo.tasks import ByteModel
from hccl_py.torch import ShardedStep

SHAPES = {"2M": (192, 4), "4M": (256, 5), "12M": (400, 6), "30M": (640, 6)}  # width, layers
LENGTH = 32
SCHEDULED = "ours:0"
_HIDES = 0.55


class Steps:
    """The wrappers, and how a step of each is timed."""

    def __init__(self, names: list[str], shape: str, silent: list[str]) -> None:
        self._groups: dict[str, Any] = {"gloo": dist.group.WORLD}
        self._built = {name: self._build(name, shape) for name in names}
        self._alone = self._built[names[0]]
        self._silent = silent  # are there for steps without synchronisation only

    def _build(self, name: str, shape: str) -> Any:
        kind, _, mib = name.partition(":")
        off = mib == "off"
        torch.manual_seed(0)
        model = ByteModel(*SHAPES[shape], length=LENGTH)
        wrapper: Any = hccl_py.torch.DistributedDataParallel if kind == "ours" else DistributedDataParallel
        key = "gloo" if kind == "gloo" else name if name == SCHEDULED else "hccl_py"
        if key not in self._groups:
            self._groups[key] = dist.new_group(backend="hccl_py")
        group = self._groups[key]
        if kind == "sharded":
            return model, ShardedStep(torch.optim.AdamW(model.parameters(), lr=1e-4), model, process_group=group)
        wrapped = wrapper(model, process_group=group, bucket_cap_mb=None if off else float(mib) or None)
        if off:
            wrapped._adapts = False
        return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-4)

    def time(self, name: str, batch: torch.Tensor) -> dict[str, Any]:
        """One step: seconds of the slowest rank, the CPUs' idle share, CPU seconds of all ranks together."""
        wrapped, optimizer = self._built.get(name, self._alone)
        dist.barrier()
        if name.startswith("sharded"):
            self._step(wrapped, optimizer, batch[:1])  # leaves parameters on the way, as the timed step does
        cpus, used, start_s = _cpus(), os.times(), time.perf_counter()
        with wrapped.no_sync() if name == "none" else nullcontext():
            self._step(wrapped, optimizer, batch)
        took_s, now = time.perf_counter() - start_s, os.times()
        if name.startswith("sharded"):
            optimizer.wait()
        found = {"took_s": over_ranks(took_s, dist.ReduceOp.MAX)}
        found["cpu_s"] = over_ranks(now.user - used.user + now.system - used.system, dist.ReduceOp.SUM)
        idle, total = (after - before for before, after in zip(cpus, _cpus(), strict=True))
        found["idle"] = idle / max(total, 1)
        if name.startswith("ours"):
            reducer = wrapped.reducer
            found["buckets"] = [reducer.started_s, reducer.ended_s]
            found["backward_s"], found["exposed_s"] = reducer.backward_s, reducer.exposed_s
        return found

    @staticmethod
    def _step(wrapped: Any, optimizer: Any, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(wrapped(batch).flatten(0, 1), batch.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def memory(self) -> dict[str, list[int]]:
        """Of our wrappers: bytes of gradients, and bytes of memory files that hold them (as the kernel has them)."""
        found = {}
        for name, (wrapped, _) in self._built.items():
            if name.startswith("ours"):
                live = sum(p.numel() * p.element_size() for p in wrapped.parameters())
                found[name] = [live, _shared_bytes()]
        return found

    def settle(self, count: int, batch_size: int) -> list[float]:
        """Let the scheduler see so many steps; seconds of each."""
        batch = torch.randint(0, 256, (batch_size, LENGTH))
        return [self.time(SCHEDULED, batch)["took_s"] for _ in range(count)] if SCHEDULED in self._built else []

    def calibrated(self, count: int, batch_size: int, share: float) -> int:
        """The batch size with which the first wrapper waits this share of a step; the same on all ranks.

        Of a longer computation about `_HIDES` hides communication that was waited for.
        """
        times = self.rounds(count, batch_size, [next(iter(self._built))])
        alone_s, with_s = (float(median(step["took_s"] for step in steps)) for steps in times.values())
        wanted_s = (with_s - alone_s + _HIDES * alone_s) / (share / (1 - share) + _HIDES)  # of computation
        return max(1, round(batch_size * wanted_s / alone_s))

    def switches(self) -> list[list[Any]]:
        """What the scheduler did: step, why, the predicted gain and what came of it, whether it was taken back."""
        adaptation = self._built[SCHEDULED][0]._adaptation if SCHEDULED in self._built else None
        outcomes = adaptation._loop.policy.outcomes if adaptation is not None else []
        return [[o.step, o.why, o.predicted_gain_s, o.achieved_gain_s, o.taken_back] for o in outcomes]

    def rounds(self, count: int, batch_size: int, only: list[str] | None = None) -> dict[str, list[dict[str, Any]]]:
        """What each step of each round was, by wrapper."""
        names = ["none", *(only or [name for name in self._built if name not in self._silent])]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for turn in range(-1, count):
            batch = torch.randint(0, 256, (batch_size if turn >= 0 else 1, LENGTH))
            for name in names if turn % 2 else reversed(names):
                step = self.time(name, batch)
                if turn >= 0:
                    found[name].append(step)
        return found


def over_ranks(value: float, op: Any) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return float(tensor)


def _cpus() -> tuple[int, int]:
    """Ticks in which this machine's CPUs had nothing to do, and all ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _shared_bytes() -> int:
    """Bytes of all memory files that this process has mapped, each counted once."""
    sizes: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/memfd:"):
            begin, end = (int(at, 16) for at in words[0].split("-"))
            sizes[words[4]] = max(sizes.get(words[4], 0), int(words[2], 16) + end - begin)
    return sum(sizes.values())


def main() -> None:
    """Measure, print, leave."""
    task = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(task["limit_s"], exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=task["limit_s"]))
    steps = Steps(task["wrappers"], task["shape"], task.get("silent", []))
    settled = steps.settle(task.get("settle", 0), task["batch"])
    batch = task["batch"]
    if task.get("calibrate"):
        batch = steps.calibrated(task["calibrate"], batch, task["share"])
    found = {
        "batch": batch,
        "steps": steps.rounds(task["rounds"], batch),
        "settled_s": settled,
        "switches": steps.switches(),
        "memory": steps.memory(),
    }
    if dist.get_rank() == 0:
        os.write(1, (json.dumps(found) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
