"""init_process_group under a launcher; prints one line a rank."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from checks import limit_run_time

import hccl_py.torch  # noqa: F401

limit_run_time()
assert "mpi4py.MPI" not in sys.modules, "the import started MPI"
for round_ in range(2):  # a group can be made again after it was destroyed
    dist.init_process_group("hccl_py", init_method=sys.argv[1] if len(sys.argv) > 1 else None)
    x = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(x)
    by_mpi = "mpi4py.MPI" in sys.modules
    line = f"round {round_} rank {dist.get_rank()} of {dist.get_world_size()} sum {x.item():g} mpi {by_mpi}\n"
    sys.stdout.write(line)  # one write a line: the ranks share the pipe
    dist.barrier()
    dist.destroy_process_group()
    if "MASTER_PORT" in os.environ:
        break  # torch's own rendezvous cannot bind the same port again at once
if os.environ.get("FAIL_RANK") == os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")):
    raise SystemError("this rank fails on purpose")
if "FAIL_RANK" in os.environ:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # the failed rank never comes: only an abort of the job ends this
