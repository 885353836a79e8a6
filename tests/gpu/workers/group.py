"""What the ranks of a process group on GPUs do in a test: ``group.py TASK [NUMBER]`` under torchrun.

Ranks beyond the number of GPUs share them. Every task raises if something is wrong.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import hccl_py.torch
from hccl_py.core.errors import CollectiveTimeoutError, DesyncError, PeerLostError

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())
OPS = dist.ReduceOp
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def values(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """What rank ``rank`` puts in: every rank can make it."""
    generator = torch.Generator(DEVICE).manual_seed(1000 * seed + rank + 1)
    if dtype is torch.bool:
        return torch.rand(count, generator=generator, device=DEVICE) < 0.5
    if dtype in INTEGERS:
        return torch.randint(0, 100, (count,), generator=generator, device=DEVICE).to(dtype)
    drawn = torch.randn(count, generator=generator, device=DEVICE) * 4
    return drawn.to(dtype)


def reduced(op: Any, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """The reduction in float64 (int64 for integers)."""
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    total = values(0, count, dtype, seed).to(wide)
    for rank in range(1, SIZE):
        more = values(rank, count, dtype, seed).to(wide)
        if op in (OPS.SUM, OPS.AVG):
            total += more
        elif op == OPS.PRODUCT:
            total *= more
        elif op == OPS.MIN:
            total = torch.minimum(total, more)
        elif op == OPS.MAX:
            total = torch.maximum(total, more)
        elif op == OPS.BAND:
            total &= more
        elif op == OPS.BOR:
            total |= more
        else:
            total ^= more
    if op == OPS.AVG:
        total /= SIZE
    return total


def same(got: Tensor, wanted: Tensor, what: str) -> None:
    """Raise unless ``got`` is ``wanted`` (float64 or int64), rounded."""
    if got.dtype is torch.bool:
        wrong = got != (wanted != 0)
    elif got.dtype.is_floating_point:
        # the partial sums of more than two ranks in parts are float32, or the type itself if wider
        epsilon = torch.finfo(got.dtype).eps * (1 if SIZE == 2 else 2)
        largest = 64.0**SIZE if "PRODUCT" in what else 32.0 * SIZE
        bound = epsilon * wanted.abs() + max(
            torch.finfo(got.dtype).tiny, 2e-7 * largest if got.dtype is not torch.float64 else 1e-15 * largest
        )
        wrong = ~((got.double() - wanted).abs() <= bound)
    else:
        wrong = got != wanted.to(got.dtype)
    if bool(wrong.any()):
        where = int(wrong.nonzero()[0])
        raise AssertionError(
            f"rank {RANK}: {what}: {int(wrong.sum())} of {got.numel()} are wrong, first [{where}]: "
            f"{got[where]} instead of {wanted[where]}"
        )


def poisoned(count: int, dtype: torch.dtype) -> Tensor:
    """Memory in which every element that is not written shows."""
    fill = float("nan") if dtype.is_floating_point else True if dtype is torch.bool else 77
    return torch.full((count,), fill, dtype=dtype, device=DEVICE)


def collectives() -> None:
    """Each of c10d's collectives, each type, sizes that go both ways, with and without alignment."""
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        ops = [OPS.SUM, OPS.MAX, OPS.MIN, OPS.PRODUCT]
        ops += [OPS.AVG] if dtype.is_floating_point else [OPS.BAND, OPS.BOR, OPS.BXOR]
        for op in ops:
            for count in (1, 1003, 70001):
                whole = torch.cat([values(RANK, 1, dtype, 9), values(RANK, count, dtype)])
                tensor = whole[1:] if count == 1003 else values(RANK, count, dtype)
                dist.all_reduce(tensor, op)
                same(tensor, reduced(op, count, dtype), f"all_reduce {op} {dtype} {count}")
        for count in (0, 5, 100003):
            mine = values(RANK, count, dtype)
            out = poisoned(count * SIZE, dtype)
            dist.all_gather_into_tensor(out, mine)
            assert torch.equal(out, torch.cat([values(r, count, dtype) for r in range(SIZE)])), (dtype, count)
            blocks = [poisoned(count + r, dtype) for r in range(SIZE)]  # uneven
            dist.all_gather(blocks, values(RANK, count + RANK, dtype))
            assert all(torch.equal(b, values(r, count + r, dtype)) for r, b in enumerate(blocks))
            big = values(RANK, count * SIZE, dtype, 2)
            part = poisoned(count, dtype)
            dist.reduce_scatter_tensor(part, big)
            same(
                part,
                reduced(OPS.SUM, count * SIZE, dtype, 2)[RANK * count : (RANK + 1) * count],
                f"reduce_scatter {dtype}",
            )
            out = poisoned(count * SIZE, dtype)
            dist.all_to_all_single(out, big)
            expected = [values(r, count * SIZE, dtype, 2)[RANK * count : (RANK + 1) * count] for r in range(SIZE)]
            assert torch.equal(out, torch.cat(expected))
            root = SIZE - 1
            there = values(RANK, count, dtype)
            dist.broadcast(there, root)
            assert torch.equal(there, values(root, count, dtype))
            total = values(RANK, count, dtype)
            dist.reduce(total, root)
            if root == RANK:
                same(total, reduced(OPS.SUM, count, dtype), f"reduce {dtype}")
            lists = [poisoned(count, dtype) for _ in range(SIZE)] if root == RANK else None
            dist.gather(mine, lists, root)
            assert lists is None or all(torch.equal(b, values(r, count, dtype)) for r, b in enumerate(lists))
            got = poisoned(count, dtype)
            dist.scatter(
                got,
                list(values(root, count * SIZE, dtype, 2).chunk(SIZE))
                if root == RANK and count
                else [got.clone()] * SIZE
                if root == RANK
                else None,
                root,
            )
            assert not count or torch.equal(
                got, values(root, count * SIZE, dtype, 2)[RANK * count : (RANK + 1) * count]
            )
    sizes = [[(3 * a + 5 * b) % 7 * 1000 for b in range(SIZE)] for a in range(SIZE)]
    send = torch.cat([values(10 * RANK + to, sizes[RANK][to], torch.float32) for to in range(SIZE)])
    out = poisoned(sum(sizes[of][RANK] for of in range(SIZE)), torch.float32)
    dist.all_to_all_single(out, send, [sizes[of][RANK] for of in range(SIZE)], sizes[RANK])
    assert torch.equal(out, torch.cat([values(10 * of + RANK, sizes[of][RANK], torch.float32) for of in range(SIZE)]))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        small = [(values(r, 5000, torch.float32) / 8).to(dtype) for r in range(SIZE)]
        got = small[RANK].clone()
        dist.all_reduce(got)
        total8 = sum((s.float() for s in small), torch.zeros(5000, device=DEVICE)).to(dtype)
        assert torch.equal(got.view(torch.uint8), total8.view(torch.uint8)), dtype
    strided = values(RANK, 2000, torch.float32).view(40, 50).t()
    dist.all_reduce(strided)
    same(strided.t().reshape(-1), reduced(OPS.SUM, 2000, torch.float32), "not contiguous")
    dist.barrier()


def messages() -> None:
    """Sends and receives: single, and in a batch each way at once."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (0, 3, 1000, 3_000_001):
        out = poisoned(count, torch.float32)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, values(RANK, count, torch.float32), right), dist.P2POp(dist.irecv, out, left)]
        )
        for work in works:
            work.wait()
        assert torch.equal(out, values(left, count, torch.float32)), count
    note = values(0, 1 << 20, torch.int32) if RANK == 0 else poisoned(1 << 20, torch.int32)
    if RANK == 0:
        dist.send(note, 1)
    elif RANK == 1:
        dist.recv(note, 0)
        assert torch.equal(note, values(0, 1 << 20, torch.int32))


def streams_and_graphs() -> None:
    """Asynchronous calls, calls of one group on several streams, two groups, and graphs between eager calls."""
    other = dist.new_group(list(range(SIZE)), backend="hccl_py")
    count = 300_000
    for turn in range(10):
        x, y = values(RANK, count, torch.bfloat16, turn), values(RANK, 1000, torch.bfloat16, turn)
        work = dist.all_reduce(x, async_op=True)
        small = dist.all_reduce(y, group=other, async_op=True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        z = values(RANK, count, torch.float32, turn)
        torch.cuda.current_stream().wait_stream(stream)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            dist.all_reduce(z)
        torch.cuda.current_stream().wait_stream(stream)
        work.wait()
        small.wait()
        same(x, reduced(OPS.SUM, count, torch.bfloat16, turn), "asynchronous")
        same(y, reduced(OPS.SUM, 1000, torch.bfloat16, turn), "second group")
        same(z, reduced(OPS.SUM, count, torch.float32, turn), "another stream")
    held = torch.zeros(count, device=DEVICE)
    tiny = torch.zeros(64, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(held)
        dist.all_reduce(tiny)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(held)
        dist.all_reduce(tiny)
        work = dist.all_reduce(tiny, async_op=True)
        work.wait()
        dist.all_reduce(held)
    for turn in range(5):
        held.copy_(values(RANK, count, torch.float32, turn))
        tiny.copy_(values(RANK, 64, torch.float32, turn))
        graph.replay()
        same(held, SIZE * reduced(OPS.SUM, count, torch.float32, turn), "graph")
        same(tiny, SIZE * reduced(OPS.SUM, 64, torch.float32, turn), "small in a graph")
        eager = values(RANK, 5000, torch.float32, turn)
        dist.all_reduce(eager)
        same(eager, reduced(OPS.SUM, 5000, torch.float32, turn), "eager between replays")
    future = dist.all_reduce(tiny, async_op=True).get_future()
    assert future.wait()[0] is tiny or torch.equal(future.wait()[0], tiny)


def random_calls(number: int, most_bytes: int = 64 << 20, graphs: bool = True) -> None:
    """``number`` random collectives against float64, up to ``most_bytes``, some up to 512 MiB where there are many."""
    chance = random.Random(7)
    groups = [dist.group.WORLD, dist.new_group(list(range(SIZE)), backend="hccl_py")]
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for turn in range(number):
        kind = chance.choice(("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"))
        dtype = chance.choice((*FLOATS, *INTEGERS, torch.bool))
        op = chance.choice(
            [OPS.SUM, OPS.MAX, OPS.MIN, *([OPS.AVG] if dtype.is_floating_point else [OPS.BAND, OPS.BXOR])]
        )
        group, stream, graphed = chance.choice(groups), chance.choice(streams), graphs and chance.random() < 0.1
        limit = (512 << 20) if number >= 1000 and turn % 100 == 99 else most_bytes
        count = int(2 ** chance.uniform(0, (limit // dtype.itemsize).bit_length() - 1))
        in_place = chance.random() < 0.5
        if kind in ("reduce_scatter", "all_to_all"):
            count = max(1, count // SIZE)
        blocks = SIZE if kind in ("reduce_scatter", "all_to_all") else 1
        mine = values(RANK, count * blocks, dtype, turn)
        source = mine.clone()
        out: Tensor
        if kind == "all_reduce" or kind == "broadcast":
            out = source
        elif kind == "all_gather":
            out = poisoned(count * SIZE, dtype)
            if in_place:
                source = out[RANK * count : (RANK + 1) * count]
                source.copy_(mine)
        elif kind == "reduce_scatter":
            out = source[RANK * count : (RANK + 1) * count] if in_place else poisoned(count, dtype)
        else:
            out = poisoned(count * SIZE, dtype)

        def call(
            kind: str = kind, out: Tensor = out, source: Tensor = source, op: Any = op, group: Any = group
        ) -> None:
            if kind == "all_reduce":
                dist.all_reduce(out, op, group)
            elif kind == "broadcast":
                dist.broadcast(out, 1, group)
            elif kind == "all_gather":
                dist.all_gather_into_tensor(out, source, group)
            elif kind == "reduce_scatter":
                dist.reduce_scatter_tensor(out, source, op, group)
            else:
                dist.all_to_all_single(out, source, group=group)

        if graphed:
            call()  # loads its kernels
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            if kind in ("all_reduce", "broadcast"):
                out.copy_(mine)
            elif kind == "reduce_scatter":
                source.copy_(mine)
            graph.replay()
        else:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call()
            torch.cuda.current_stream().wait_stream(stream)
        what = f"#{turn} {kind} {op} {dtype} {count} {'in place' if in_place else ''} {'graph' if graphed else ''}"
        if kind == "all_reduce":
            same(out, reduced(op, count, dtype, turn), what)
        elif kind == "broadcast":
            assert torch.equal(out, values(1, count, dtype, turn)), what
        elif kind == "all_gather":
            assert torch.equal(out, torch.cat([values(r, count, dtype, turn) for r in range(SIZE)])), what
        elif kind == "reduce_scatter":
            same(out, reduced(op, count * SIZE, dtype, turn)[RANK * count : (RANK + 1) * count], what)
        else:
            parts = [values(r, count * SIZE, dtype, turn)[RANK * count : (RANK + 1) * count] for r in range(SIZE)]
            assert torch.equal(out, torch.cat(parts)), what
    if RANK == 0:
        print(f"{number} random calls are right", flush=True)


def training() -> None:
    """DDP and FSDP2 end where one process that sees all the data ends; AMP runs."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(DEVICE)

    def train(net: torch.nn.Module, data: Tensor, amp: bool = False) -> list[Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = net(data).square().mean()
            loss.backward()
            optimizer.step()
        return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in net.parameters()]

    data = torch.cat([values(r, 16 * 64, torch.float32).view(16, 64) for r in range(SIZE)])
    alone = train(model(), data)
    mine = data[RANK * 16 : (RANK + 1) * 16]
    for name, net in (
        ("DDP", DistributedDataParallel(model(), device_ids=[DEVICE.index], bucket_cap_mb=1)),
        ("FSDP2", fully_shard(model(), mesh=dist.device_mesh.init_device_mesh("cuda", (SIZE,)))),
    ):
        for ours, theirs in zip(train(net, mine), alone, strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=2e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )
    train(DistributedDataParallel(model(), device_ids=[DEVICE.index]), mine, amp=True)


def beside() -> None:
    """Asynchronous calls from 1 MiB on, which copy engines carry in pieces: alone, after each other, and in a graph."""
    for dtype in (torch.bfloat16, torch.float32):
        for count in (1 << 20, (1 << 25) + 3):
            mine = [values(RANK, count, dtype, turn) for turn in range(3)]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in mine]
            for turn, work in enumerate(works):
                work.wait()
                same(mine[turn], reduced(OPS.SUM, count, dtype, turn), f"beside, {dtype} {count}")
    count = (1 << 23) + 5
    mine, out = values(RANK, count, torch.float32), poisoned(count * SIZE, torch.float32)
    dist.all_gather_into_tensor(out, mine, async_op=True).wait()
    assert torch.equal(out, torch.cat([values(r, count, torch.float32) for r in range(SIZE)]))
    dist.broadcast(mine, 1, async_op=True).wait()
    assert torch.equal(mine, values(1, count, torch.float32))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(mine, async_op=True).wait()
    for turn in range(5):
        mine.copy_(values(RANK, count, torch.float32, turn))
        graph.replay()
        same(mine, reduced(OPS.SUM, count, torch.float32, turn), "beside, in a graph")
        eager = values(RANK, 1 << 20, torch.float32, turn)
        dist.all_reduce(eager, async_op=True).wait()
        same(eager, reduced(OPS.SUM, 1 << 20, torch.float32, turn), "beside, between replays")


def lost() -> None:
    """The last rank dies; the others hear of it, by name, and no kernel hangs."""
    tensor = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while time.monotonic() - began < 30:
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
    except PeerLostError as error:
        assert error.rank == SIZE - 1, error
        print(f"rank {RANK} heard after {time.monotonic() - began:.2f} s: {error}", flush=True)
        os._exit(0)
    raise AssertionError("nobody noticed")


def late() -> None:
    """Rank 0 calls and nobody comes: a time-out that names a peer, and a call that differs: both sides."""
    tensor = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(tensor)
    pair = dist.new_group(list(range(SIZE)), backend="hccl_py", timeout=timedelta(seconds=2))
    dist.all_reduce(tensor, group=pair)
    torch.cuda.synchronize()
    if RANK == 0:
        began = time.monotonic()
        dist.all_reduce(tensor, group=pair)
        torch.cuda.synchronize()
        assert 1.5 < time.monotonic() - began < 10
        try:
            dist.all_reduce(tensor, group=pair)
            raise AssertionError("no time-out")
        except CollectiveTimeoutError as error:
            assert error.peer != 0, error
            print(error, flush=True)
    dist.barrier()
    differ = dist.new_group(list(range(SIZE)), backend="hccl_py", timeout=timedelta(seconds=20))
    dist.all_reduce(tensor, group=differ)
    torch.cuda.synchronize()
    try:
        dist.all_reduce(tensor, OPS.SUM if RANK == 0 else OPS.MAX, group=differ)
        torch.cuda.synchronize()
        dist.all_reduce(tensor, group=differ)
        raise AssertionError("no DesyncError")
    except DesyncError as error:
        assert "sum" in str(error) and "max" in str(error), error
        print(error, flush=True)
    os._exit(0)  # the groups are broken


def plain() -> None:
    """Random calls without graphs, also for ranks that go through host memory."""
    random_calls(60, graphs=False)


def checked() -> None:
    """For compute-sanitizer: 200 calls up to 1 MiB, without graphs of other sizes."""
    random_calls(200, 1 << 20)


TASKS = {
    task.__name__: task
    for task in (collectives, messages, streams_and_graphs, beside, training, lost, late, plain, checked)
}


def main() -> None:
    torch.cuda.set_device(DEVICE)
    assert hccl_py.torch
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=60))
    for word in sys.argv[1].split(","):
        began = time.monotonic()
        if word.isdigit():
            random_calls(int(word))
        else:
            TASKS[word]()
        torch.cuda.synchronize()
        if RANK == 0:
            print(f"{word}: {time.monotonic() - began:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
