"""Groups of all kinds: split, mixed, nested, a thousand in turn; monitored barriers, factors and sparse sums."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checks import refuses, run_all, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401  # registers the backend "fake"

from hccl_py.core.errors import BrokenGroupError, CollectiveTimeoutError, ConfigError
from hccl_py.torch import HcclProcessGroup, HcclWork
from hccl_py.torch.work import WorkGroup

RANK, SIZE = start(timeout_s=30.0)
WORLD = dist.group.WORLD
TOTAL = SIZE * (SIZE + 1) / 2
GLOO = dist.new_group(backend="gloo")


def mine(*shape: int) -> torch.Tensor:
    """RANK + 1 everywhere."""
    return torch.full(shape or (4,), float(RANK + 1))


def monitored_barrier() -> None:
    WORLD.monitored_barrier()
    short = timedelta(seconds=0.3)
    for everybody in (False, True):
        if RANK == 0:
            refuses(CollectiveTimeoutError, "rank 1", lambda wait=everybody: WORLD.monitored_barrier(short, wait))
        else:
            dist.barrier()
            refuses(CollectiveTimeoutError, "rank 1", WORLD.monitored_barrier)  # late: it hears what rank 0 found
        if RANK == 0:
            dist.barrier()  # the group is as good as before
    for _ in range(3):
        WORLD.monitored_barrier()


def premultiplied() -> None:
    factor = 0.5 * (RANK + 1)  # each rank has its own
    expected = sum(0.5 * (rank + 1) * (rank + 1) for rank in range(SIZE))
    for value in (factor, torch.tensor([factor])):
        op = dist._make_nccl_premul_sum(value)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64):
            x = mine().to(dtype)
            WORLD.allreduce([x], _reduce_options(op)).wait()
            assert (x == expected).all(), (dtype, x)
    strided = torch.zeros(4, 2)
    strided[:, 0] = RANK + 1
    dist.all_reduce(strided[:, 0], op, async_op=True).wait()
    assert (strided[:, 0] == expected).all() and (strided[:, 1] == 0).all()
    x = mine()
    dist.reduce(x, 0, op)
    assert (x == (expected if RANK == 0 else RANK + 1)).all()
    out, whole = torch.zeros(2), mine(2 * SIZE)
    dist.reduce_scatter_tensor(out, whole, op)
    assert (out == expected).all() and (whole == RANK + 1).all()
    dist.reduce_scatter(out.zero_(), [mine(2) for _ in range(SIZE)], op)
    assert (out == expected).all()
    narrow = torch.full((2,), 60000.0, dtype=torch.float16)
    dist.all_reduce(narrow, dist._make_nccl_premul_sum(1 / SIZE))
    assert (narrow == 60000).all()
    whole = torch.arange(4)
    refuses(ConfigError, "PREMUL_SUM", lambda: dist.all_reduce(whole, op))
    assert whole.tolist() == [0, 1, 2, 3]


def _reduce_options(op: object) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def one_tensor_twice() -> None:
    x = mine()
    dist.all_reduce_coalesced([x, x])
    assert (x == TOTAL).all()
    work = dist.all_reduce_coalesced([x[:3], x[1:], mine(2)], async_op=True)
    work.wait()
    assert (x == TOTAL * SIZE).all()


def sparse_sum() -> None:
    index = torch.tensor([[RANK, 3, 3], [0, 1, 1]])
    own = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 4.0]), (5, 2))
    dense = own.to_dense()
    dist.all_reduce(own)
    dist.all_reduce(dense)
    assert own.is_sparse and torch.equal(own.to_dense(), dense)
    rows = torch.sparse_coo_tensor(torch.tensor([[RANK]]), mine(1, 3), (4, 3))
    work = dist.all_reduce(rows, async_op=True)
    assert work.get_future().wait()[0] is not None
    assert [row[0].item() for row in rows.to_dense()] == [1.0, 2.0, 0.0, 0.0][: SIZE + 2]
    refuses(ConfigError, "SUM", lambda: dist.all_reduce(rows, dist.ReduceOp.MAX))
    other = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (3 + RANK,))
    refuses(ConfigError, "different shapes", lambda: dist.all_reduce(other))


def ddp_with_sparse_gradients() -> None:
    gradients = []
    for group in (WORLD, GLOO):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Embedding(10, 3, sparse=True), process_group=group)
        ddp(torch.tensor([RANK, 5])).sum().backward()
        gradients.append(ddp.module.weight.grad.to_dense())
    assert torch.equal(*gradients)


def split() -> None:
    part = WORLD.split_group([RANK], group_name=f"alone{RANK}")
    x = mine()
    part.allreduce([x]).wait()
    assert part.size() == 1 and (x == RANK + 1).all()
    whole = WORLD.split_group(list(range(SIZE)), timeout=timedelta(seconds=20), group_desc="all of them")
    whole.allreduce([x]).wait()
    assert (x == TOTAL).all() and whole.group_desc == "all of them"
    assert WORLD.split_group([(RANK + 1) % SIZE]) is None
    refuses(ConfigError, "different ranks", lambda: WORLD.split_group([0, 0]))
    for group in (part, whole):
        group.shutdown()
    dist.barrier()


def mixed() -> None:
    group = dist.new_group(backend="cpu:hccl_py,meta:fake")
    assert isinstance(group, HcclProcessGroup) and dist.get_backend(group) == "cpu:hccl_py,meta:fake"
    x = mine()
    dist.all_reduce(x, group=group)
    assert (x == TOTAL).all()
    away = torch.ones(3, device="meta")
    dist.all_reduce(away, group=group)  # the fake backend takes it; ours would refuse
    refuses(ConfigError, "meta", lambda: WORLD.allreduce([away]))
    out = torch.zeros(3 * SIZE, device="meta")
    dist.all_gather_into_tensor(out, away, group=group)
    group._start_coalescing(away.device)
    dist.all_reduce(away, group=group)
    assert not isinstance(group._end_coalescing(away.device), (HcclWork, WorkGroup))
    objects: list[object] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK}, group=group)
    assert objects == [{"rank": rank} for rank in range(SIZE)]
    assert {device.type for device in group._device_types} == {"cpu", "meta"}
    others = dist.distributed_c10d._world.pg_map
    assert all(isinstance(member, HcclProcessGroup) or member is GLOO for member in others)
    dist.barrier(group)
    dist.destroy_process_group(group)
    refuses(BrokenGroupError, "shut down", lambda: group.allreduce([x]))
    refuses(BrokenGroupError, "shut down", lambda: group.allreduce([away]))


def mixed_the_other_way() -> None:
    """CPU tensors to gloo, CUDA tensors to us."""
    group = dist.new_group(backend="cuda:hccl_py,cpu:gloo")
    x = mine()
    dist.all_reduce(x, group=group)
    assert (x == TOTAL).all() and not group._sequence  # it was not ours
    dist.barrier()
    dist.destroy_process_group(group)


def a_thousand_groups() -> None:
    x = torch.ones(4)

    def state() -> tuple[int, int, int]:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return len(os.listdir("/proc/self/fd")), threading.active_count(), pages * os.sysconf("SC_PAGE_SIZE")

    def turn() -> None:
        group = dist.new_group()
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)

    for _ in range(GROUPS // 10):
        turn()
    before = state()
    for _ in range(GROUPS):
        turn()
    after = state()
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 1, (before, after)
    assert after[2] <= before[2] + (24 << 20), (before, after)
    print("flat", before, after, flush=True)


GROUPS = int(os.environ.get("GROUPS_IN_TURN", "100"))
run_all(
    {
        check.__name__: check
        for check in (
            monitored_barrier, premultiplied, one_tensor_twice, sparse_sum, ddp_with_sparse_gradients, split, mixed,
            mixed_the_other_way, a_thousand_groups,
        )
    }
)  # fmt: skip
dist.destroy_process_group()
