"""One rank of a DDP run: trains the same small model over gloo and over hccl_py, and prints both loss curves."""

from __future__ import annotations

import faulthandler
import json
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py.torch  # noqa: F401  # registers the backend

STEPS = 6


def train(group: dist.ProcessGroup | None, rank: int, size: int) -> list[float]:
    """The loss of each step, averaged over the ranks by the group that trained."""
    torch.manual_seed(rank)  # differs between ranks: DDP must send rank 0's parameters
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(1000 * step + rank)
        x = torch.randn(32, 32)
        optimizer.zero_grad()
        loss = (ddp(x) - x[:, :4].cos()).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        losses.append(total.item() / size)
    return losses


def main() -> None:
    """Train twice."""
    faulthandler.dump_traceback_later(float(os.environ["LIMIT_S"]), exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=40))
    rank, size = dist.get_rank(), dist.get_world_size()
    by_gloo = train(dist.new_group(backend="gloo"), rank, size)
    by_hccl_py = train(None, rank, size)
    hosts: list[str] = [""] * size
    dist.all_gather_object(hosts, socket.gethostname())
    if rank == 0:
        print("RESULT " + json.dumps({"gloo": by_gloo, "hccl_py": by_hccl_py, "hosts": hosts}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
