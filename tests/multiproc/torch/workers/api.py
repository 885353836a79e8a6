"""Every call of torch.distributed on CPU tensors, against closed formulas and, where gloo has them, against gloo."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from checks import refuses, run_all, start

import hccl_py.torch
from hccl_py.core.errors import ConfigError

RANK, SIZE = start()
WORLD = dist.group.WORLD
GLOO = dist.new_group(backend="gloo")
TOTAL = SIZE * (SIZE + 1) / 2  # 1 + 2 + ... + SIZE

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
OPS = dist.ReduceOp
ARITHMETIC = [OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX]
BITWISE = [OPS.BAND, OPS.BOR, OPS.BXOR]


def mine(*shape: int) -> torch.Tensor:
    """RANK + 1 everywhere."""
    return torch.full(shape or (4,), float(RANK + 1))


def sample(rank: int, dtype: torch.dtype, op: object, count: int = 1003) -> torch.Tensor:
    """What ``rank`` gives; chosen so that floats come out exact whatever the order of the operations."""
    generator = np.random.default_rng(1000 + rank)
    if dtype in FLOATS:
        values = generator.integers(0, 2, count) + 1 if op == OPS.PRODUCT else generator.integers(-2, 3, count)
        return torch.from_numpy(values.astype(np.float64)).to(dtype)
    if dtype is torch.bool:
        return torch.from_numpy(generator.integers(0, 2, count).astype(bool))
    kind = np.dtype(str(dtype).removeprefix("torch."))
    return torch.from_numpy(generator.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind))


def reduced(dtype: torch.dtype, op: object) -> torch.Tensor:
    """What all ranks should get, by NumPy."""
    functions = {
        OPS.SUM: np.add, OPS.PRODUCT: np.multiply, OPS.MIN: np.minimum, OPS.MAX: np.maximum,
        OPS.BAND: np.bitwise_and, OPS.BOR: np.bitwise_or, OPS.BXOR: np.bitwise_xor, OPS.AVG: np.add,
    }  # fmt: skip
    parts = [sample(rank, dtype, op) for rank in range(SIZE)]
    arrays = [part.double().numpy() if dtype in FLOATS else part.numpy() for part in parts]
    out = arrays[0]
    with np.errstate(over="ignore"):
        for array in arrays[1:]:
            out = functions[op](out, array)  # type: ignore[index]
    if op == OPS.AVG:
        out = out / SIZE
    return torch.from_numpy(out.astype(arrays[0].dtype)).to(dtype)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).tolist() if tensor.numel() else []


def every_dtype_and_op() -> None:
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        ops = [*ARITHMETIC, OPS.AVG] if dtype in FLOATS else [*ARITHMETIC, *BITWISE]
        for op in ops:
            x = sample(RANK, dtype, op)
            dist.all_reduce(x, op)
            assert torch.equal(x.view(torch.uint8), reduced(dtype, op).view(torch.uint8)), (dtype, op)


def same_as_gloo() -> None:
    for dtype in (torch.float64, torch.float32, torch.int32, torch.int64):
        for op in ARITHMETIC:
            ours, theirs = sample(RANK, dtype, op), sample(RANK, dtype, op)
            dist.all_reduce(ours, op)
            dist.all_reduce(theirs, op, group=GLOO)
            assert torch.equal(ours, theirs), (dtype, op)
    torch.manual_seed(RANK)
    x = torch.randn(5000)
    y = x.clone()
    dist.all_reduce(x)
    dist.all_reduce(y, group=GLOO)
    torch.testing.assert_close(x, y)


def reduce_scatter_every_dtype() -> None:
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        whole = torch.cat([sample(RANK, dtype, OPS.SUM).view(torch.uint8)] * SIZE).view(dtype)
        out = torch.empty(1003, dtype=dtype)
        dist.reduce_scatter_tensor(out, whole)
        assert torch.equal(out.view(torch.uint8), reduced(dtype, OPS.SUM).view(torch.uint8)), dtype


def average_in_wide_type() -> None:
    x = torch.full((8,), 60000.0, dtype=torch.float16)
    dist.all_reduce(x, OPS.AVG)  # the sum would be infinite
    assert (x == 60000).all()


def nan_propagates() -> None:
    for op in (OPS.MIN, OPS.MAX):
        x = torch.tensor([float("nan") if RANK == SIZE - 1 else 1.0, 2.0])
        dist.all_reduce(x, op)
        assert torch.isnan(x[0]) and x[1] == 2


def zero_and_scalar() -> None:
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    scalar = torch.tensor(float(RANK + 1))
    dist.all_reduce(scalar)
    assert scalar == TOTAL


def complex_numbers() -> None:
    for op, factor in ((OPS.SUM, 1.0), (OPS.AVG, 1 / SIZE)):
        for dtype in (torch.complex64, torch.complex128):
            x = torch.full((3,), complex(RANK + 1, -RANK - 1), dtype=dtype)
            dist.all_reduce(x, op)
            assert (x == complex(TOTAL, -TOTAL) * factor).all()
            WORLD.allreduce([x]).wait()  # not through dist, which hides that they are complex
            assert (x == complex(TOTAL, -TOTAL) * factor * SIZE).all()
    lazy = torch.full((3,), complex(RANK + 1, RANK + 1)).conj()
    WORLD.allreduce([lazy]).wait()
    assert (lazy == complex(TOTAL, -TOTAL)).all()
    refuses(ConfigError, "complex", lambda: WORLD.allreduce([torch.ones(2, dtype=torch.complex64)], OPS.MAX))


def not_contiguous() -> None:
    base = torch.zeros(4, 6)
    column, every_other = base[:, 1], base[:, ::2]
    column.fill_(RANK + 1)
    dist.all_reduce(column)
    assert (base[:, 1] == TOTAL).all() and base.sum() == 4 * TOTAL
    every_other.fill_(RANK + 1)
    dist.all_reduce(every_other, async_op=True).wait()
    assert (every_other == TOTAL).all() and (base[:, 3] == 0).all()
    turned = torch.arange(6.0).reshape(2, 3).t() if RANK == 1 else torch.zeros(2, 3).t()
    dist.broadcast(turned, 1)
    assert torch.equal(turned, torch.arange(6.0).reshape(2, 3).t())
    out = torch.zeros(SIZE, 4, 2).transpose(1, 2)
    dist.all_gather_into_tensor(out, mine(2, 4))
    assert all((out[rank] == rank + 1).all() for rank in range(SIZE))
    rows = torch.zeros(2, SIZE * 2)[:, ::2].t()
    dist.reduce_scatter_tensor(rows[0], torch.ones(2, SIZE).t())
    assert (rows[0] == SIZE).all() and rows.sum() == 2 * SIZE
    negative = torch.complex(torch.zeros(3), mine(3)).conj().imag
    dist.all_reduce(negative)
    assert (negative == -TOTAL).all()


def refusals_leave_tensors_alone() -> None:
    whole = torch.arange(4)
    refuses(ConfigError, "AVG", lambda: dist.all_reduce(whole, OPS.AVG))
    assert whole.tolist() == [0, 1, 2, 3]
    refuses(ConfigError, "BAND", lambda: dist.all_reduce(mine(), OPS.BAND))
    refuses(ConfigError, "share memory", lambda: dist.all_reduce(torch.ones(1).expand(4)))
    refuses(ConfigError, "to_dense", lambda: WORLD.allreduce([torch.eye(3).to_sparse_csr()]))
    refuses(ConfigError, "meta", lambda: WORLD.allreduce([torch.ones(3, device="meta")]))
    refuses(ConfigError, "one tensor", lambda: WORLD.allreduce([mine(), mine()]))
    refuses(ConfigError, "elements", lambda: dist.all_gather_into_tensor(torch.zeros(4 * SIZE + 1), mine()))
    refuses(ConfigError, "add up", lambda: dist.all_to_all_single(mine(), mine(), [4] * SIZE, [4] * SIZE))
    refuses(ConfigError, "root", lambda: WORLD.broadcast(mine(), SIZE))
    refuses(ConfigError, "not another rank", lambda: WORLD.send([mine()], RANK, 0))


def every_dtype_moves() -> None:
    for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.float8_e4m3fnuz, torch.float8_e8m0fnu]:
        width = dtype.itemsize
        x = torch.full((4 * width,), RANK + 1, dtype=torch.uint8).view(dtype)
        WORLD.broadcast([x], 1).wait()
        assert bits(x) == [2] * 4 * width, dtype
        out = torch.zeros(4 * width * SIZE, dtype=torch.uint8).view(dtype)
        own = torch.full((4 * width,), RANK + 1, dtype=torch.uint8).view(dtype)
        WORLD.all_gather_single(out, own).wait()
        assert bits(out) == [rank + 1 for rank in range(SIZE) for _ in range(4 * width)], dtype


def all_gathers() -> None:
    expected = [rank + 1.0 for rank in range(SIZE) for _ in range(4)]
    apart = [torch.zeros(2, 2) for _ in range(SIZE)]
    dist.all_gather(apart, mine(2, 2))
    assert torch.cat(apart).flatten().tolist() == expected
    whole = torch.zeros(4 * SIZE)
    dist.all_gather(list(whole.chunk(SIZE)), mine())  # outputs back to back: written directly
    assert whole.tolist() == expected
    dist.all_gather_into_tensor(whole.zero_(), mine())
    assert whole.tolist() == expected
    own = whole.zero_().view(SIZE, 4)[RANK].fill_(RANK + 1)
    dist.all_gather_into_tensor(whole, own)  # in place
    assert whole.tolist() == expected
    shifted = torch.zeros(4 * SIZE + 4)
    shifted[2:6] = RANK + 1
    dist.all_gather_into_tensor(shifted[: 4 * SIZE], shifted[2:6])  # overlaps, but not in place
    assert shifted[: 4 * SIZE].tolist() == expected
    uneven = [torch.zeros(rank) for rank in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK,), RANK + 1.0))
    assert torch.cat(uneven).tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(rank)]
    whole = torch.zeros(sum(range(SIZE + 1)))
    parts = list(whole.split(list(range(1, SIZE + 1))))
    parts[RANK].fill_(RANK + 1)
    work = dist.all_gather(parts, parts[RANK], async_op=True)  # in place, and uneven
    assert len(work.get_future().wait()) == SIZE
    assert whole.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(rank + 1)]
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(SIZE)]
    WORLD.allgather_coalesced(lists, [mine(2), mine(3)]).wait()
    assert all((tensor == rank + 1).all() for rank in range(SIZE) for tensor in lists[rank])


def reduce_and_broadcast() -> None:
    for root in range(SIZE):
        x = mine()
        dist.reduce(x, root)
        assert (x == (TOTAL if root == RANK else RANK + 1)).all()
        x = mine()
        dist.broadcast(x, root)
        assert (x == root + 1).all()


def gathers_and_scatters() -> None:
    root = SIZE - 1
    outputs = [torch.zeros(4) for _ in range(SIZE)] if root == RANK else None
    dist.gather(mine(), outputs, dst=root)
    assert outputs is None or all((outputs[rank] == rank + 1).all() for rank in range(SIZE))
    out = torch.zeros(4)
    dist.scatter(out, [torch.full((4,), float(rank)) for rank in range(SIZE)] if root == RANK else None, src=root)
    assert (out == RANK).all()
    whole = torch.arange(4.0 * SIZE)
    dist.scatter(whole[4 * RANK : 4 * RANK + 4], list(whole.chunk(SIZE)) if root == RANK else None, src=root)
    assert whole.tolist() == list(range(4 * SIZE))  # at the root in place, elsewhere the same values come


def reduce_scatters() -> None:
    out = torch.zeros(4)
    dist.reduce_scatter(out, [torch.full((4,), float(rank)) for rank in range(SIZE)])
    assert (out == RANK * SIZE).all()
    whole = torch.arange(float(SIZE)).repeat_interleave(4)
    dist.reduce_scatter_tensor(out, whole, OPS.MAX)
    assert (out == RANK).all()
    dist.reduce_scatter_tensor(whole[4 * RANK : 4 * RANK + 4], whole)  # in place
    assert (whole[4 * RANK : 4 * RANK + 4] == RANK * SIZE).all()
    whole = torch.arange(float(SIZE)).repeat_interleave(4)
    dist.reduce_scatter_tensor(whole[1:5], whole)  # overlaps, but not in place
    assert (whole[1:5] == RANK * SIZE).all()
    uneven = [torch.full((rank,), float(rank)) for rank in range(SIZE)]
    out = torch.zeros(RANK)
    dist.reduce_scatter(out, uneven)
    assert (out == RANK * SIZE).all()
    whole = torch.cat([torch.full((rank + 1,), float(rank)) for rank in range(SIZE)])
    shifted = whole[1 : RANK + 2]  # lies over the inputs, but not in place
    dist.reduce_scatter(shifted, list(whole.split(list(range(1, SIZE + 1)))))
    assert (shifted == RANK * SIZE).all()


def all_to_alls() -> None:
    out = torch.zeros(SIZE)
    dist.all_to_all_single(out, torch.arange(float(SIZE)) + 10 * RANK)
    assert out.tolist() == [10.0 * rank + RANK for rank in range(SIZE)]
    in_splits = [(RANK + rank) % 3 for rank in range(SIZE)]  # symmetric, with zero legs
    source = torch.cat([torch.full((rows, 2), 10.0 * RANK + rank) for rank, rows in enumerate(in_splits)])
    out = torch.zeros(sum(in_splits), 2)
    dist.all_to_all_single(out, source, in_splits, in_splits)
    expected = [torch.full((rows, 2), 10.0 * rank + RANK) for rank, rows in enumerate(in_splits)]
    assert torch.equal(out, torch.cat(expected))
    inputs = [torch.full((rank + 1,), 10.0 * RANK + rank) for rank in range(SIZE)]
    outputs = [torch.zeros(RANK + 1) for _ in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    assert all((outputs[rank] == 10 * rank + RANK).all() for rank in range(SIZE))


def messages() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for tag in (0, 7):
        inbox = torch.zeros(4)
        batch = [dist.P2POp(dist.isend, mine(), right, tag=tag), dist.P2POp(dist.irecv, inbox, left, tag=tag)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert (inbox == left + 1).all()
    if RANK == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
        senders = set()
        for _ in range(SIZE - 1):
            inbox = torch.zeros(2, 4)[:, ::2]  # not contiguous
            source = dist.recv(inbox)
            assert (inbox == source + 1).all()
            senders.add(source)
        assert senders == set(range(1, SIZE))
    else:
        if RANK == 1:
            second, first = torch.zeros(1), torch.zeros(1)
            later = dist.irecv(second, 0, tag=2)
            assert dist.recv(first, 0, tag=1) == 0
            assert later is not None and later.wait()
            assert (first.item(), second.item()) == (1, 2)
        dist.send(mine(2, 2), 0)
    if RANK < 2:
        big = torch.full((300_000,), float(RANK))
        inbox = torch.zeros(300_000)
        works = [
            dist.isend(big, 1 - RANK, tag=3),
            dist.irecv(inbox, 1 - RANK, tag=3),
        ]  # both ways at once, larger than any buffer
        for work in works:
            assert work is not None
            work.wait()
        assert (inbox == 1 - RANK).all()


def message_futures_do_not_wait_for_each_other() -> None:
    if RANK == 0:
        never_first = torch.zeros(1)
        first = WORLD.recv([never_first], 1, 31)
        waiting = first.get_future()
        inbox = torch.zeros(1)
        assert WORLD.recv([inbox], 1, 32).get_future().wait()[0].item() == 32
        dist.send(torch.zeros(1), 1, tag=33)  # only now the other side sends the first
        assert waiting.wait()[0].item() == 31
        assert first.source_rank() == 1
    elif RANK == 1:
        dist.send(torch.tensor([32.0]), 0, tag=32)
        dist.recv(torch.zeros(1), 0, tag=33)
        dist.send(torch.tensor([31.0]), 0, tag=31)


def works() -> None:
    x = mine()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None and work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert (x == TOTAL).all() and work.result()[0] is x
    x = mine()
    doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert (doubled.wait() == 2 * TOTAL).all()
    strided = torch.zeros(4, 2)[:, 0].fill_(RANK + 1)
    work = dist.all_reduce(strided, async_op=True)
    assert torch.equal(work.get_future().wait()[0], torch.full((4,), TOTAL))
    assert isinstance(dist.barrier(async_op=True).get_future().wait(), list)
    many = [mine() for _ in range(20)]
    pending = [dist.all_reduce(tensor, async_op=True) for tensor in many]
    for later in reversed(pending):
        later.wait()
    assert all((tensor == TOTAL).all() for tensor in many)
    polled = dist.all_reduce(mine(), async_op=True)
    while not polled.is_completed():
        pass
    assert polled.is_success()
    leaf = torch.nn.Parameter(mine())
    dist.all_reduce(leaf.data)
    dist.broadcast(leaf, 0)
    assert (leaf == TOTAL).all()


def coalesced() -> None:
    a, b = mine(), mine(2, 2)
    dist.all_reduce_coalesced([a, b])
    assert (a == TOTAL).all() and (b == TOTAL).all()
    manager = dist.distributed_c10d._coalescing_manager
    a, b = mine(), mine(3)
    with manager(WORLD):
        dist.all_reduce(a)
        dist.all_reduce(b)
    assert (a == TOTAL).all() and (b == TOTAL).all()
    outs = [torch.zeros(4 * SIZE) for _ in range(2)]
    with manager(WORLD, async_ops=True) as pending:
        for out in outs:
            dist.all_gather_into_tensor(out, mine())
    pending.wait()
    assert all(out.view(SIZE, 4)[:, 0].tolist() == [rank + 1.0 for rank in range(SIZE)] for out in outs)
    outs = [torch.zeros(4) for _ in range(2)]
    with manager(WORLD, async_ops=True) as pending:
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.arange(float(SIZE)).repeat_interleave(4))
    pending.wait()
    assert all((out == RANK * SIZE).all() for out in outs)
    a = mine()
    inbox = torch.zeros(4)
    with manager(WORLD, device=torch.device("cpu"), async_ops=True) as pending:
        dist.irecv(inbox, (RANK - 1) % SIZE)  # one work stands for all that was issued inside
        dist.isend(mine(), (RANK + 1) % SIZE)
        dist.all_gather(list(torch.zeros(4 * SIZE).chunk(SIZE)), a)
    pending.wait()
    assert (inbox == (RANK - 1) % SIZE + 1).all()


def objects() -> None:
    everyone: list[object] = [None] * SIZE
    dist.all_gather_object(everyone, {"rank": RANK, "text": "x" * RANK})
    assert everyone == [{"rank": rank, "text": "x" * rank} for rank in range(SIZE)]
    box = [("from", RANK)]
    dist.broadcast_object_list(box, src=1)
    assert box == [("from", 1)]
    collected: list[object] | None = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, collected, dst=0)
    assert collected is None or collected == list(range(SIZE))
    given: list[object] = [None]
    dist.scatter_object_list(given, list(range(SIZE)) if RANK == 0 else None, src=0)
    assert given == [RANK]
    if RANK == 0:
        dist.send_object_list(["hello"], dst=1)
    elif RANK == 1:
        dist.recv_object_list(given, src=0)
        assert given == ["hello"]


def functional() -> None:
    assert (funcol.all_reduce(mine(), "sum", WORLD) == TOTAL).all()
    assert (funcol.all_reduce(mine(), "avg", WORLD) == TOTAL / SIZE).all()
    assert funcol.all_gather_tensor(mine(), 0, WORLD)[4:8].tolist() == [2.0] * 4
    parts = torch.arange(float(SIZE)).repeat_interleave(4)
    assert (funcol.reduce_scatter_tensor(parts, "sum", 0, WORLD) == RANK * SIZE).all()
    swapped = funcol.all_to_all_single(torch.arange(float(SIZE)) + 10 * RANK, None, None, WORLD)
    assert swapped.tolist() == [10.0 * rank + RANK for rank in range(SIZE)]
    assert (funcol.broadcast(mine(), 1, WORLD) == 2).all()
    assert all((out == TOTAL).all() for out in funcol.all_reduce_coalesced([mine(), mine(2)], "sum", WORLD))
    assert funcol.all_gather_into_tensor_coalesced([mine()], WORLD)[0][4:8].tolist() == [2.0] * 4
    assert (funcol.reduce_scatter_tensor_coalesced([parts], "sum", [0], WORLD)[0] == RANK * SIZE).all()


def groups() -> None:
    everyone = dist.new_group(use_local_synchronization=True)  # first, while all ranks have as many groups
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = mine()
        dist.all_reduce(x, group=pair)
        assert (x == 3).all() and dist.get_backend(pair) == "hccl_py" and pair.group_name != WORLD.group_name
        dist.destroy_process_group(pair)
    single, _ = dist.new_subgroups(group_size=1)
    x = mine()
    dist.all_reduce(x, group=single)
    assert (x == RANK + 1).all()
    dist.all_reduce(x, group=everyone)
    assert (x == TOTAL).all()
    dist.destroy_process_group(everyone)
    mesh = dist.device_mesh.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("outer", "inner"))
    x = mine()
    dist.all_reduce(x, group=mesh.get_group("inner"))
    assert (x == (RANK // 2) * 4 + 3).all()


def identity() -> None:
    assert type(WORLD) is hccl_py.torch.HcclProcessGroup and WORLD.name() == dist.get_backend() == "hccl_py"
    assert (WORLD.rank(), WORLD.size()) == (RANK, SIZE)
    assert dist.distributed_c10d._resolve_process_group(WORLD.group_name) is WORLD
    before = WORLD._get_sequence_number_for_group()
    dist.barrier()
    assert WORLD._get_sequence_number_for_group() == before + 1
    WORLD._set_sequence_number_for_group()
    WORLD.get_group_store().set(f"rank/{RANK}", "here")
    WORLD.monitored_barrier()


def old_and_new_names() -> None:
    for old, new in (
        ("_allgather_base", "all_gather_single"),
        ("_reduce_scatter_base", "reduce_scatter_single"),
        ("alltoall_base", "all_to_all_single"),
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ):
        assert getattr(type(WORLD), old) is getattr(type(WORLD), new)


def plain_argument_forms() -> None:
    x = mine()
    WORLD.allreduce(x, OPS.MAX).wait()
    assert (x == SIZE).all()
    WORLD.allreduce(x, op=OPS.MIN).wait()
    x = mine()
    WORLD.broadcast(x, root=1).wait()
    assert (x == 2).all()
    outs = [torch.zeros(4) for _ in range(SIZE)]
    WORLD.allgather(outs, mine()).wait()
    assert (outs[1] == 2).all()
    x = mine()
    WORLD.reduce(x, 0, OPS.MAX).wait()
    assert RANK or (x == SIZE).all()
    WORLD.gather(outs if RANK == 0 else [], mine(), root=0).wait()
    out = torch.zeros(4)
    WORLD.scatter(out, outs if RANK == 0 else [], root=0).wait()
    assert (out == RANK + 1).all()
    WORLD.reduce_scatter(out, outs, op=OPS.SUM).wait()


def nested_in_a_callback() -> None:
    """The outer call is held back until the callback is attached, so that it runs on the completer's thread."""
    opener = torch.zeros(1)
    inbox = WORLD.recv([opener], (RANK - 1) % SIZE, 41)
    nested = inbox.get_future().then(lambda done: dist.all_reduce(mine()))
    dist.barrier()
    dist.send(torch.ones(1), (RANK + 1) % SIZE, tag=41)
    refuses(Exception, "callback of a future", nested.wait)
    blocking = dist.new_group(pg_options=hccl_py.torch.Options(blocking=True))

    def again(done: torch.futures.Future) -> torch.Tensor:
        second = done.value()[0]
        dist.all_reduce(second, group=blocking)
        return second

    x = mine()
    answer = dist.all_reduce(x, async_op=True, group=blocking).get_future().then(again).wait()
    assert (answer == TOTAL * SIZE).all()


run_all(
    {
        check.__name__: check
        for check in (
            identity, old_and_new_names, plain_argument_forms, every_dtype_and_op, same_as_gloo,
            reduce_scatter_every_dtype, average_in_wide_type, nan_propagates, zero_and_scalar, complex_numbers,
            not_contiguous, refusals_leave_tensors_alone, every_dtype_moves, all_gathers, reduce_and_broadcast,
            gathers_and_scatters, reduce_scatters, all_to_alls, messages, message_futures_do_not_wait_for_each_other,
            works, coalesced, objects, functional, groups, nested_in_a_callback,
        )
    }
)  # fmt: skip
dist.destroy_process_group()
