"""Errors reach those who wait: by call, by wait(), by future, by functional collectives, by DDP's backward."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from checks import refuses, run_all, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hccl_py.core.errors import BrokenGroupError, CollectiveTimeoutError, ConfigError, DesyncError, HcclError

RANK, SIZE = start(timeout_s=20.0)


def odd(*shape: int) -> torch.Tensor:
    """One element more on the last rank."""
    return torch.ones(shape[0] + (RANK == SIZE - 1))


def wrong_shape_raises_on_all_ranks() -> None:
    group = dist.new_group()
    refuses(DesyncError, "", lambda: dist.all_reduce(odd(1000), group=group))


def wrong_shape_by_wait() -> None:
    group = dist.new_group()
    work = dist.all_reduce(odd(1000), group=group, async_op=True)
    refuses(DesyncError, "", work.wait)
    refuses(DesyncError, "", work.wait)  # again: the error stays
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), DesyncError)


def wrong_shape_by_future() -> None:
    group = dist.new_group()
    future = dist.all_reduce(odd(1000), group=group, async_op=True).get_future()
    refuses(Exception, "DesyncError", future.wait)


def wrong_shape_by_functional() -> None:
    group = dist.new_group()
    refuses(DesyncError, "", lambda: funcol.all_reduce(odd(1000), "sum", group).wait())


def wrong_op_dtype_root_or_collective() -> None:
    last = RANK == SIZE - 1
    one = torch.ones(4)
    op = dist.ReduceOp.MAX if last else dist.ReduceOp.SUM
    for call in (
        lambda group: dist.all_reduce(one, op, group),
        lambda group: dist.all_reduce(one.int() if last else one, group=group),
        lambda group: dist.broadcast(one, int(last), group=group),
        lambda group: dist.barrier(group) if last else dist.all_reduce(one, group=group),
    ):
        refuses(DesyncError, "", partial(call, dist.new_group()))
        assert (one == 1).all()


def uneven_sizes_not_agreed() -> None:
    group = dist.new_group()
    sizes = [1, 3] if RANK == 0 else [2, 3]  # rank 1 is wrong about rank 0
    outputs = [torch.zeros(size) for size in sizes]
    refuses(DesyncError, "", lambda: dist.all_gather(outputs, torch.ones(sizes[RANK]), group=group))


def ddp_backward_raises() -> None:
    group = dist.new_group()
    ddp = DistributedDataParallel(nn.Linear(2, 2), process_group=group)

    def hook(_, bucket):  # DDP compares the annotations, if any, with types, not with strings
        work = dist.all_reduce(odd(bucket.buffer().numel()), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)
    refuses(Exception, "DesyncError", lambda: ddp(torch.ones(1, 2)).sum().backward())


def nobody_comes_in_time() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if RANK == 0:
        refuses(CollectiveTimeoutError, "", lambda: dist.all_reduce(torch.ones(4), group=group))
    dist.barrier()


def this_wait_is_too_short() -> None:
    group = dist.new_group()
    if RANK == 0:
        x = torch.ones(4)
        work = dist.all_reduce(x, group=group, async_op=True)
        refuses(CollectiveTimeoutError, "", lambda: work.wait(timedelta(seconds=0.2)))
    dist.barrier()


def a_call_with_its_own_timeout() -> None:
    group = dist.new_group()
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.3)
    options.asyncOp = False
    if RANK == 0:
        refuses(CollectiveTimeoutError, "after 0.3 s", lambda: group.allreduce([torch.ones(4)], options))
    dist.barrier()


def resync_brings_a_group_back() -> None:
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True) if RANK == 0 else None  # the others never come
    dist.barrier()
    group.resync()
    if work is not None:
        refuses(HcclError, "", work.wait)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    dist.all_reduce(x, group=group, async_op=True).wait()
    assert (x == SIZE * SIZE).all()
    group.monitored_barrier()


def use_after_destroy() -> None:
    group = dist.new_group()
    dist.barrier(group)
    dist.destroy_process_group(group)
    refuses(BrokenGroupError, "shut down", lambda: group.allreduce([torch.ones(1)]))
    group.shutdown()  # again: nothing happens
    group.abort()


def abort_ends_what_waits() -> None:
    group = dist.new_group()
    if RANK == 0:
        future = group.recv([torch.ones(1)], 1, 5).get_future()  # nobody sends
        group.abort()
        refuses(Exception, "", future.wait)
    dist.barrier()


def wrong_options() -> None:
    refuses(ConfigError, "pg_options", lambda: dist.new_group(pg_options="fast"))


run_all(
    {
        check.__name__: check
        for check in (
            wrong_shape_raises_on_all_ranks, wrong_shape_by_wait, wrong_shape_by_future, wrong_shape_by_functional,
            wrong_op_dtype_root_or_collective, uneven_sizes_not_agreed, ddp_backward_raises, nobody_comes_in_time,
            this_wait_is_too_short, a_call_with_its_own_timeout, resync_brings_a_group_back, use_after_destroy,
            abort_ends_what_waits, wrong_options,
        )
    }
)  # fmt: skip
dist.destroy_process_group()
