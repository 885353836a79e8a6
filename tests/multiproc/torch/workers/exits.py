"""Interpreter exits, many: each round forks two ranks that leave in one of several untidy ways. No abort, no hang."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import limit_run_time

import hccl_py.torch  # noqa: F401

WAYS = ("destroyed", "not destroyed", "futures pending", "works pending", "message never sent", "child first")


def rank_main(rank: int, way: str, path: str) -> None:
    """One rank's life; what it leaves to the interpreter's exit depends on ``way``."""
    limit_run_time()
    torch.set_num_threads(1)
    store = dist.FileStore(path, 2)
    dist.init_process_group("hccl_py", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    x = torch.full((1000,), rank + 1.0)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert (future.wait() == 6).all()
    dist.barrier()
    if way == "destroyed":
        dist.destroy_process_group()
    elif way == "child first":
        faulthandler.cancel_dump_traceback_later()  # its thread would be missed by the child
        child = os.fork()
        if child == 0:
            sys.exit(0)  # must not close its parent's group
        limit_run_time()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(3):
            dist.all_reduce(x.fill_(1))
            assert (x == 2).all()
        dist.barrier()
    elif way == "futures pending" and rank == 0:
        dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value())
    elif way == "works pending" and rank == 0:
        globals()["kept"] = [dist.all_reduce(x, async_op=True) for _ in range(4)]
    elif way == "message never sent" and rank == 0:
        globals()["kept"] = dist.group.WORLD.recv([torch.zeros(1)], 1, 9).get_future()


def main() -> None:
    """Fork, wait, count."""
    rounds = int(sys.argv[1])
    gc.collect()
    gc.freeze()  # the children need not look at what torch's import made
    bad = []
    for round_ in range(rounds):
        way = WAYS[round_ % len(WAYS)]
        folder = tempfile.mkdtemp()  # the parent's to remove: a child that leaves must not, the other one may need it
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                rank_main(rank, way, f"{folder}/store")
                sys.exit(0)  # through the interpreter's own end
            children.append(child)
        for rank, child in enumerate(children):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 0:
                bad.append(f"round {round_}, {way}, rank {rank}: status {status}")
        shutil.rmtree(folder)
    print("\n".join(bad) or f"PASSED {rounds} rounds")
    sys.exit(bool(bad))


main()
