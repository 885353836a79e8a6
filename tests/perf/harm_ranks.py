"""One rank of scheduler_harm.py: ten models, each trained with the scheduler and with fixed buckets, in turns.

The wrapper with the scheduler has a group of its own and makes its first steps alone, until it has decided what it
begins with, has tried what it tries, and has judged that; what these steps cost is told apart. Then rounds begin of
some steps in a row by it, and by each fixed setting, in changing order, until the time for the model is over; exchanges
of measurements are part of its steps. "off" is the same wrapper without the scheduler: what the comparison itself is
worth. Rank 0 prints a JSON line a model.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from training_ranks import LENGTH, over_ranks

import hccl_py.torch
from hccl_py.demo.tasks import ByteModel

CAPS_MIB = (1.0, 5.0, 25.0)
LEAST_SETTLE, MOST_SETTLE, SETTLE_S = 20, 20000, 36.0  # steps, and seconds
BLOCK = 4  # steps in a row; the first does not count


class Bytes(nn.Module):
    """A language model and its loss."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.model = ByteModel(width, layers, length=LENGTH)

    def forward(self) -> Tensor:
        """Of four random texts."""
        batch = torch.randint(0, 256, (4, LENGTH))
        return functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())


class Plain(nn.Module):
    """Layers one after the other, on random input of ``shape``."""

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.shape = nn.Sequential(*layers), shape

    def forward(self) -> Tensor:
        """The mean square of what comes out."""
        out: Tensor = self.layers(torch.randn(self.shape)).square().mean()
        return out


class Words(nn.Module):
    """A large embedding, which gets a dense gradient, below a small model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10_000, 128), nn.Linear(128, 128)

    def forward(self) -> Tensor:
        """The mean square of what comes out."""
        out: Tensor = self.head(self.embed(torch.randint(0, 10_000, (64,)))).square().mean()
        return out


def _repeated(count: int, *make: Callable[[], nn.Module]) -> list[nn.Module]:
    return [one() for _ in range(count) for one in make]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer 64 x 2": lambda: Bytes(64, 2),
    "transformer 64 x 12": lambda: Bytes(64, 12),
    "transformer 128 x 4": lambda: Bytes(128, 4),
    "transformer 192 x 4": lambda: Bytes(192, 4),
    "transformer 320 x 2": lambda: Bytes(320, 2),
    "perceptron": lambda: Plain((32, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    "one huge layer": lambda: Plain((16, 1024), nn.Linear(1024, 1500)),
    "300 tiny layers": lambda: Plain((16, 16), *_repeated(300, lambda: nn.Linear(16, 16), nn.Tanh)),
    "convolutions": lambda: Plain(
        (4, 3, 24, 24), nn.Conv2d(3, 64, 3), nn.ReLU(), *_repeated(4, lambda: nn.Conv2d(64, 64, 3), nn.ReLU)
    ),
    "words": Words,
}


class Contest:
    """One model, trained by each setting."""

    def __init__(self, name: str, groups: list[Any]) -> None:
        self.trained = {"ours": self._trained(name, groups[0], None)}
        self.trained["off"] = self._trained(name, groups[1], None)
        self.trained["off"][0]._adapts = False  # the same without a scheduler: what the comparison itself is worth
        plans = set()
        for cap in CAPS_MIB:  # those that are the same for this model are tried once
            one = self._trained(name, groups[1], cap)
            if one[0].bucket_plan not in plans:
                plans.add(one[0].bucket_plan)
                self.trained[f"{cap:g} MiB"] = one

    def _trained(self, name: str, group: Any, cap: float | None) -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        wrapped = hccl_py.torch.DistributedDataParallel(MODELS[name](), process_group=group, bucket_cap_mb=cap)
        return wrapped, torch.optim.SGD(wrapped.parameters(), lr=1e-3)

    def steps(self, setting: str, count: int = 1) -> float:
        """Seconds of a step of the slowest rank, the mean of so many."""
        wrapped, optimizer = self.trained[setting]
        dist.barrier()
        start_s = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            wrapped().backward()
            optimizer.step()
        return over_ranks(time.perf_counter() - start_s, dist.ReduceOp.MAX) / count

    def run(self, limit_s: float) -> dict[str, Any]:
        """What the steps of each setting took, round by round."""
        begin_s = time.perf_counter()
        first = [self.steps("ours") for _ in range(LEAST_SETTLE)]
        loop = self.trained["ours"][0]._adaptation._loop
        policy = loop.policy
        while len(first) < MOST_SETTLE and not (policy.settled and loop.quiet):
            first.append(self.steps("ours"))
            if over_ranks(time.perf_counter() - begin_s, dist.ReduceOp.MAX) > SETTLE_S:
                break
        settled = policy.settled and loop.quiet
        times: dict[str, list[float]] = {name: [] for name in self.trained}
        for name in times:
            self.steps(name)
        start_s, turn = time.perf_counter(), 0
        while over_ranks(time.perf_counter() - start_s, dist.ReduceOp.MAX) < limit_s:
            for name in times if turn % 2 else reversed(times):
                self.steps(name)
                times[name].append(self.steps(name, BLOCK - 1))
            turn += 1
        wrapped = self.trained["ours"][0]
        switches = [[o.step, o.why, o.predicted_gain_s, o.achieved_gain_s, o.taken_back] for o in policy.outcomes]
        return {"times_s": times, "first_s": first, "switches": switches, "buckets": len(wrapped.bucket_plan),
                "settled": settled}  # fmt: skip


def main() -> None:
    """All models that were asked for."""
    task = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(task["limit_s"], exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=task["limit_s"]))
    groups = [dist.new_group(backend="hccl_py") for _ in range(2)]
    for name in task["models"]:
        found = Contest(name, groups).run(task["model_s"])
        if dist.get_rank() == 0:
            os.write(1, (json.dumps({"model": name, **found}) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
