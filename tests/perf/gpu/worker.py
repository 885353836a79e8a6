"""One rank of tests/perf/gpu/bench.py, under torchrun: ``worker.py PARTS OUT``. Writes OUT (JSON) on rank 0.

NCCL and hccl_py alternate call by call (eager) or replay by replay (graphs) in one process; times are medians of CUDA
event times; each result is checked before it is timed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hccl_py.torch
from hccl_py.core.env import Env

KIB, MIB = 1024, 1 << 20
GRAPHED = [8, KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
LARGE = [64 * MIB, 256 * MIB, 1024 * MIB]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count()))
CALLS = 20  # in a graph
QUEUED = 5


class Bench:
    """The groups, and how calls are timed."""

    def __init__(self) -> None:
        every = list(range(SIZE))
        minutes = timedelta(seconds=60)
        self.ours = dist.group.WORLD
        self.nccl = dist.new_group(every, backend="nccl")
        options = hccl_py.torch.Options
        self.few = dist.new_group(every, backend="hccl_py", timeout=minutes, pg_options=options(env=Env(gpu_sms=32)))
        self.cast = dist.new_group(every, backend="hccl_py", pg_options=options(env=Env(gpu_sms=128, gpu_wire="bf16")))

    def meet(self) -> None:
        torch.cuda.synchronize()
        dist.barrier()

    def queued(self, calls: dict[str, Callable[[], Any]], n: int) -> dict[str, list[float]]:
        """A call of QUEUED that stand in one stream one behind the other: without the host's time for the first."""

        def several(call: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> None:
                for _ in range(QUEUED):
                    call()

            return run

        times = self.eager({name: several(call) for name, call in calls.items()}, n)
        return {name: [t / QUEUED for t in by] for name, by in times.items()}

    def eager(self, calls: dict[str, Callable[[], Any]], n: int) -> dict[str, list[float]]:
        for call in calls.values():
            for _ in range(4):
                call()
        self.meet()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(n):
            for name, call in calls.items():
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                call()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) * 1e3)
        return times

    def graphs(self, calls: dict[str, Callable[[], Any]], n: int) -> dict[str, list[float]]:
        replays = {}
        for name, call in calls.items():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    call()
            self.meet()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(CALLS):
                    call()
            replays[name] = graph.replay
        return {name: [t / CALLS for t in times] for name, times in self.eager(replays, n).items()}


def check(tensor: torch.Tensor, call: Callable[[], Any], close: float = 0.0) -> None:
    """An all_reduce in place must give the sum of what the ranks put in."""
    torch.manual_seed(5)
    drawn = [torch.randn(tensor.numel(), device=DEVICE).to(tensor.dtype) for _ in range(SIZE)]
    tensor.copy_(drawn[RANK])
    call()
    wanted = sum((d.float() for d in drawn), torch.zeros(tensor.numel(), device=DEVICE))
    error = (tensor.float() - wanted.to(tensor.dtype).float()).abs().max()
    assert float(error) <= close * float(wanted.abs().max()), f"rank {RANK}: off by {float(error)}"
    tensor.zero_()


def all_reduce(bench: Bench, out: dict[str, Any]) -> None:
    """bf16, in place: graphs and eager calls; 32 SMs; float32 sent as bf16."""
    x = torch.zeros(4096, dtype=torch.bfloat16, device=DEVICE)
    for _ in range(500):  # clocks rise, code is read in
        for group in (bench.ours, bench.nccl, bench.few):
            dist.all_reduce(x, group=group)
    for size in GRAPHED + LARGE:
        x = torch.empty(size // 2, dtype=torch.bfloat16, device=DEVICE)
        calls = {
            name: (lambda group=group, x=x: dist.all_reduce(x, group=group))
            for name, group in (("ours", bench.ours), ("nccl", bench.nccl), ("few", bench.few))
        }
        if size <= 256 * MIB:
            for name in ("ours", "few"):
                check(x, calls[name])
        x.zero_()
        if size <= 16 * MIB:
            out[f"all_reduce graph {size}"] = bench.graphs({k: calls[k] for k in ("ours", "nccl")}, 15)
        out[f"all_reduce eager {size}"] = bench.eager(calls, 30 if size <= 16 * MIB else 9)
        if size in LARGE:
            out[f"all_reduce queued {size}"] = bench.queued(calls, 9)
    for size in LARGE[:2]:
        x = torch.empty(size // 4, dtype=torch.float32, device=DEVICE)
        calls = {
            "ours": lambda x=x: dist.all_reduce(x, group=bench.cast),
            "nccl": lambda x=x: dist.all_reduce(x, group=bench.nccl),
        }
        check(x, calls["ours"], 2.0**-8)
        out[f"cast eager {size}"] = bench.eager(calls, 9)


def others(bench: Bench, out: dict[str, Any]) -> None:
    """The other collectives, by size of the input: graphs to 16 MiB, eager above."""
    whole = torch.zeros(512 * MIB, dtype=torch.bfloat16, device=DEVICE)
    for size in [8 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]:
        n = size // 2
        x, y, part = whole[:n], whole[n : n * (SIZE + 1)], whole[n : n + n // SIZE]
        for name, call in {
            "all_gather": lambda g, x=x, y=y: dist.all_gather_into_tensor(y, x, group=g),
            "reduce_scatter": lambda g, x=x, part=part: dist.reduce_scatter_tensor(part, x, group=g),
            "all_to_all": lambda g, x=x, y=y, n=n: dist.all_to_all_single(y[:n], x, group=g),
            "broadcast": lambda g, x=x: dist.broadcast(x, 0, group=g),
        }.items():
            calls = {
                "ours": lambda call=call: call(bench.ours),
                "nccl": lambda call=call: call(bench.nccl),
            }
            small = size <= 16 * MIB
            out[f"{name} {size}"] = bench.graphs(calls, 11) if small else bench.eager(calls, 9)


def ddp(bench: Bench, out: dict[str, Any]) -> None:
    """A step of the two models, alone, and under DDP over each group."""
    from torch.nn.parallel import DistributedDataParallel

    for layers, width, batch in ((12, 1024, 16), (16, 2048, 8)):
        block = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        model = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False).to(DEVICE)
        data = torch.randn(batch, 512, width, device=DEVICE)

        def step(net: torch.nn.Module, data: torch.Tensor = data) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = net(data).float().square().mean()
            loss.backward()
            for p in net.parameters():
                p.grad = None

        calls: dict[str, Callable[[], Any]] = {"alone": lambda model=model: step(model)}
        for name, group in (("nccl", bench.nccl), ("ours", bench.ours), ("few", bench.few), ("cast", bench.cast)):
            for cap in (25,) if name == "cast" else (25, 100):
                net = DistributedDataParallel(
                    model, process_group=group, bucket_cap_mb=cap, gradient_as_bucket_view=True
                )
                calls[f"{name} {cap}"] = lambda net=net: step(net)
                times = bench.eager({"alone": calls["alone"], f"{name} {cap}": calls[f"{name} {cap}"]}, 15)
                out[f"ddp {layers}x{width} {name} {cap}"] = times
                del net, calls[f"{name} {cap}"]


def tcp(bench: Bench, out: dict[str, Any]) -> None:
    """float32 all_reduce between two "hosts": both libraries believe that the other rank is on another one."""
    about = os.environ.get("NCCL_NSOCKS_PERTHREAD", "default")
    for size in (64 * KIB, MIB, 16 * MIB, 64 * MIB):
        x = torch.empty(size // 4, device=DEVICE)
        calls = {
            "ours": lambda x=x: dist.all_reduce(x, group=bench.ours),
            "nccl": lambda x=x: dist.all_reduce(x, group=bench.nccl),
        }
        check(x, calls["ours"])
        out[f"tcp {about} {size}"] = bench.eager(calls, 20 if size <= MIB else 7)


PARTS = {part.__name__: part for part in (all_reduce, others, ddp, tcp)}


def main() -> None:
    torch.cuda.set_device(DEVICE)
    host = None
    if sys.argv[1] == "tcp":
        host = f"host{RANK}"
        os.environ.update(NCCL_HOSTID=host, NCCL_SOCKET_IFNAME="lo")
    options = hccl_py.torch.Options(env=Env(gpu_sms=128, host_id=host))
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=60), pg_options=options)
    bench, out = Bench(), {}
    out["about"] = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                    "gpu": torch.cuda.get_device_name(), "ranks": SIZE}  # fmt: skip
    for part in sys.argv[1].split(","):
        PARTS[part](bench, out)
        if RANK == 0:
            Path(sys.argv[2]).write_text(json.dumps(out))
            for name, times in out.items():
                if name != "about":
                    print(name, {k: round(statistics.median(v), 2) for k, v in times.items()}, flush=True)
    sys.stdout.flush()
    torch.cuda.synchronize()
    dist.barrier()
    os._exit(0)  # the graphs of NCCL hold its group: nothing is torn down in order


if __name__ == "__main__":
    main()
