"""A rank dies; torchrun starts all ranks again, and they meet in a new group."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from checks import start

from hccl_py.core.errors import PeerLostError

RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK, SIZE = start()
x = torch.ones(4)
dist.all_reduce(x)
assert (x == SIZE).all()
if RESTARTS == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others at once; this rank shall hear by itself
    dist.barrier()
    if RANK == SIZE - 1:
        os._exit(3)
    try:
        dist.all_reduce(x)
    except PeerLostError as error:
        print(f"rank {RANK} heard: PeerLostError {error}", flush=True)
    os._exit(4)
if RANK == 0:
    print(f"PASSED after {RESTARTS} restart", flush=True)
dist.destroy_process_group()
