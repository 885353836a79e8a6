"""Runs on each rank of a lab: all_reduce over gloo and over hccl_py in turns; rank 0 prints the seconds as JSON.

``lab_ranks.py SIZE_BYTES ROUNDS``: each round times both, the order changing from round to round; a time is the
slowest rank's, from a barrier on. Results are checked in every round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import hccl_py.torch  # noqa: F401  # registers the backend


def main(size_bytes: int, rounds: int) -> None:
    """Measure, print, leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    world = dist.get_world_size()
    groups = {"gloo": dist.group.WORLD, "hccl_py": dist.new_group(backend="hccl_py")}
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    data = torch.empty(size_bytes // 4)
    for turn in range(rounds + 1):
        for name in sorted(groups, reverse=bool(turn % 2)):
            data.fill_(dist.get_rank() + 1)
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(data, group=groups[name])
            took_s = torch.tensor([time.perf_counter() - start_s], dtype=torch.float64)
            assert bool((data == world * (world + 1) / 2).all()), f"{name} is wrong"
            dist.all_reduce(took_s, op=dist.ReduceOp.MAX)
            if turn:  # the first one warms up
                seconds[name].append(float(took_s))
    if dist.get_rank() == 0:
        os.write(1, (json.dumps(seconds) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
