"""init_process_group under a launcher: by torch's default, then by the URL of the first argument; one line each."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from checks import limit_run_time

import hccl_py.torch  # noqa: F401

limit_run_time()
assert "mpi4py.MPI" not in sys.modules, "the import started MPI"
for url in (None, *sys.argv[1:2]):  # a group can be made again after it was destroyed
    dist.init_process_group("hccl_py", init_method=url)
    x = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(x)
    by_mpi = "mpi4py.MPI" in sys.modules
    sys.stdout.write(f"{url} rank {dist.get_rank()} of {dist.get_world_size()} sum {x.item():g} mpi {by_mpi}\n")
    dist.barrier()
    last = dist.get_rank() == dist.get_world_size() - 1
    dist.destroy_process_group()
if "fail" in sys.argv:
    if last:
        raise SystemError("this rank fails on purpose")
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # the failed rank never comes: only an abort of the job ends this
