"""One rank of scheduler_following.py: trains a byte-level language model while its parent changes the network.

The task is a list of phases: ``{"rate": R, "follow": N, "pairs": M}``. The link of the last rank has R bits/s from
its beginning on; the parent sets it. N steps are made by hccl_py's wrapper with the scheduler; then M rounds of a step
by it and one by each fixed setting: buckets of 1, 4 and 25 MiB, with the plans that would be chosen for the network as
it now is, in a group of their own (``"declared": true``: with those for the declared one, too). Rank 0 prints a JSON
line a step.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from training_ranks import LENGTH, SHAPES, over_ranks

import hccl_py.torch
from hccl_py.core.types import Collective
from hccl_py.demo.tasks import ByteModel
from hccl_py.scheduler.policy import Policy
from hccl_py.topology.graph import Topology

CAPS_MIB = (1.0, 4.0, 25.0)


def say(**fields: Any) -> None:
    """To the parent."""
    if dist.get_rank() == 0:
        os.write(1, (json.dumps(fields) + "\n").encode())


class Training:
    """A model under a wrapper, and its data: the same for the same seed."""

    def __init__(self, shape: str, batch: int, group: Any, bucket_cap_mb: float | None) -> None:
        torch.manual_seed(0)
        model = ByteModel(*SHAPES[shape], length=LENGTH)
        self.wrapped = hccl_py.torch.DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_cap_mb)
        self._optimizer = torch.optim.AdamW(self.wrapped.parameters(), lr=1e-4)
        self._random = torch.Generator().manual_seed(dist.get_rank())
        self._batch = batch

    def step(self) -> tuple[float, float]:
        """Seconds, and the loss."""
        start_s = time.perf_counter()
        batch = torch.randint(0, 256, (self._batch, LENGTH), generator=self._random)
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self.wrapped(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        self._optimizer.step()
        return time.perf_counter() - start_s, float(loss.detach())


def throttled(topology: Topology, rate_bps: int) -> Topology:
    """The graph with the link of its last host at ``rate_bps``."""
    last = max((link for link in topology.links if link.kind.is_network), key=lambda link: link.src)
    ends = {(last.src, last.dst), (last.dst, last.src)}
    return topology.with_estimates({pair: (rate_bps / 8, last.latency_s) for pair in ends})


class Fixed:
    """Trainings whose plans and buckets stay as they are told, in a group of their own."""

    def __init__(self, task: dict[str, Any]) -> None:
        group = dist.new_group(backend="hccl_py")
        self._engine = group._open()
        self._declared = self._engine.planner.topology
        self.trainings = {cap: Training(task["shape"], task["batch"], group, cap) for cap in CAPS_MIB}

    def use(self, rate_bps: int | None) -> str:
        """Plan for the last link at this rate; None: as declared."""
        graph = self._declared if rate_bps is None else throttled(self._declared, rate_bps)
        table = self._engine.planner.table(Collective.ALL_REDUCE, topology=graph)
        self._engine.replan(graph, {Collective.ALL_REDUCE: table})
        return "declared" if graph == self._declared else "true"


def settle(rate_bps: int) -> None:
    """Ask the parent for a rate; all ranks go on when it is set."""
    say(rate=rate_bps)
    if dist.get_rank() == 0:
        sys.stdin.readline()
    dist.barrier()


def slowest(training: Training) -> float:
    """Seconds of a step of the slowest rank, after a barrier."""
    dist.barrier()
    return over_ranks(training.step()[0], dist.ReduceOp.MAX)


def main() -> None:
    """Go through the phases."""
    task = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(task["limit_s"], exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=task["limit_s"]))
    following = Training(task["shape"], task["batch"], dist.group.WORLD, None)
    fixed = Fixed(task) if any(phase.get("pairs") for phase in task["phases"]) else None
    policy: Policy | None = None
    rounds_of: dict[int, list[dict[str, float]]] = {}
    for number, phase in enumerate(task["phases"]):
        settle(phase["rate"])
        for turn in range(phase["follow"]):
            took_s, loss = following.step()
            adaptation = following.wrapped._adaptation
            policy = adaptation._loop.policy if adaptation is not None else None
            say(phase=number, step=turn, took_s=took_s, loss=loss, switches=switches(policy))
        if fixed is None:
            continue
        known = rounds_of.get(phase["rate"])  # what was tried at this rate before: its two best settings go on
        rates = [None, phase["rate"]] if phase.get("declared") else [phase["rate"]]
        rounds_of[phase["rate"]] = tried = []
        for turn in range(phase["pairs"] + 1):
            found = {"ours": slowest(following)}
            for rate in rates:
                word = fixed.use(rate)
                for cap, training in fixed.trainings.items():
                    if known is None or f"{word} {cap:g}" in best_two(known):
                        found[f"{word} {cap:g}"] = slowest(training)
            if turn:  # the first round does not count
                tried.append(found)
                say(phase=number, pair=found, switches=switches(policy), buckets=len(following.wrapped.bucket_plan))
    outcomes = policy.outcomes if policy is not None else []
    say(done=[[o.step, o.why, o.predicted_gain_s, o.achieved_gain_s, o.taken_back] for o in outcomes])
    dist.barrier()
    dist.destroy_process_group()


def best_two(rounds: list[dict[str, float]]) -> list[str]:
    """The fixed settings with the smallest medians."""
    names = [name for name in rounds[0] if name != "ours"]
    return sorted(names, key=lambda name: median([one[name] for one in rounds]))[:2]


def switches(policy: Policy | None) -> int:
    """How many there were."""
    return len(policy.outcomes) + sum(one.taken_back for one in policy.outcomes) if policy is not None else 0


if __name__ == "__main__":
    main()
