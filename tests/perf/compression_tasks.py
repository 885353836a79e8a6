"""What the ranks of compression_bench.py do. Each function runs on all ranks; its first argument tells an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py
import hccl_py.torch
from hccl_py.buffers import describe
from hccl_py.compressed import CompressedAllReduce
from hccl_py.compressed_blocks import BlockExchange
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.feedback import ErrorFeedback
from hccl_py.compression.span import Span
from hccl_py.core.types import ReduceOp
from hccl_py.demo.tasks import ByteModel, standard_library

Tell = Callable[[str], None]
Samples = dict[str, list[float]]


def sparse(tell: Tell, kind: str, rounds: int) -> dict[str, Any]:
    """Seconds of a dense and of a sparse all_reduce, in turns. ``kind``: "topk" of 4 Mi elements, or "embedding"."""
    with hccl_py.init() as comm:
        random = np.random.default_rng(comm.rank)
        if kind == "topk":
            values = random.standard_normal(1 << 22).astype(np.float32)
            reduce = CompressedAllReduce(comm, "topk:0.01", feedback=ErrorFeedback())
        else:  # 65,536 rows of 64, of which a batch has touched 512
            table = np.zeros((1 << 16, 64), np.float32)
            table[random.choice(1 << 16, 512, replace=False)] = random.standard_normal((512, 64))
            values = table.reshape(-1)
            reduce = CompressedAllReduce(comm, "threshold:1e-30")
        dense, compressed = np.empty_like(values), np.empty_like(values)
        calls = {
            "exact": lambda: comm.all_reduce(values, dense),
            "sparse": lambda: reduce(values, compressed, ReduceOp.SUM),
        }
        samples = _in_turns(comm.barrier, calls, rounds)
        assert kind == "topk" or np.array_equal(dense, compressed)
        return {"samples": samples, "bytes": values.nbytes, "sent": reduce.sent_bytes / (rounds + 1)}


def training_step(tell: Tell, rounds: int, width: int = 1440) -> dict[str, Any]:
    """Seconds of a step of DistributedDataParallel, exact and with compression "auto", in turns; what auto chose."""
    torch.set_num_threads(1)
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=60))
    models: dict[str, DistributedDataParallel] = {}
    hook = hccl_py.torch.compression_hook("auto")
    for name in ("exact", "auto"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        models[name] = DistributedDataParallel(module)
        if name == "auto":
            models[name].register_comm_hook(None, hook)
    x = torch.randn(16, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in models.items()}

    def step(name: str) -> None:
        optimizers[name].zero_grad()
        models[name](x).square().mean().backward()
        optimizers[name].step()

    for _ in range(3):  # buckets are rebuilt, the link is measured
        for name in models:
            step(name)
    samples = _in_turns(dist.barrier, {name: (lambda name=name: step(name)) for name in models}, rounds)
    why = sorted({decision.why for decision in hook.reducer.auto.decisions.values()})
    dist.destroy_process_group()
    return {"samples": samples, "why": why, "parameters": sum(p.numel() for p in models["auto"].parameters())}


def host_steps(tell: Tell, codec: str, elements: int, rounds: int) -> dict[str, Any]:
    """Seconds of an all_reduce: exact, of two levels, and of one in which every rank encodes, in turns."""
    with hccl_py.init() as comm:
        values = np.random.default_rng(comm.rank).standard_normal(elements).astype(np.float32)
        out = np.empty_like(values)
        two = CompressedAllReduce(comm, codec, feedback=ErrorFeedback())
        block = parse_codec(codec)
        assert isinstance(block, BlockCodec)
        one = BlockExchange(comm, block, 0, ErrorFeedback())
        spans = (Span(0, elements),)
        calls = {
            "exact": lambda: comm.all_reduce(values, out),
            "two levels": lambda: two(values, out),
            "one level": lambda: one.run(describe(values, "values"), describe(out, "out"), spans, 1.0, 0),
        }
        return {"samples": _in_turns(comm.barrier, calls, rounds)}


def codec_steps(tell: Tell, codec: str, elements: int, rounds: int) -> dict[str, Any]:
    """Seconds of an exact and of a compressed all_reduce, in turns."""
    with hccl_py.init() as comm:
        values = np.random.default_rng(comm.rank).standard_normal(elements).astype(np.float32)
        out = np.empty_like(values)
        reduce = CompressedAllReduce(comm, parse_codec(codec), feedback=ErrorFeedback())
        calls = {"exact": lambda: comm.all_reduce(values, out), codec: lambda: reduce(values, out)}
        return {"samples": _in_turns(comm.barrier, calls, rounds)}


def lossless_steps(tell: Tell, what: str, rounds: int) -> dict[str, Any]:
    """Seconds of an exact and of a lossless all_reduce, in turns. ``what``: "normal" values, or "gradients"."""
    with hccl_py.init() as comm:
        if what == "normal":
            values = np.random.default_rng(comm.rank).standard_normal(1 << 22).astype(np.float32)
        else:
            values = _gradients(comm.rank)
        reduce = CompressedAllReduce(comm, "lossless")
        exact, out = np.empty_like(values), np.empty_like(values)
        calls = {"exact": lambda: comm.all_reduce(values, exact), "lossless": lambda: reduce(values, out)}
        samples = _in_turns(comm.barrier, calls, rounds)
        assert comm.size > 2 or np.array_equal(exact, out)  # of more ranks, the plan's order is another
        return {"samples": samples, "bytes": values.nbytes, "sent": reduce.sent_bytes / (rounds + 1)}


def _gradients(rank: int) -> np.ndarray[Any, Any]:
    """Of the byte-level language model after some steps, each rank with texts of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = standard_library(limit_bytes=1 << 20)
    model = ByteModel(width=256, layers=5, length=64)
    optimizer, random = torch.optim.AdamW(model.parameters(), lr=1e-3), np.random.default_rng(rank)
    for _ in range(12):
        starts = random.integers(0, len(text) - 65, 8)
        batch = torch.from_numpy(np.stack([text[at : at + 65] for at in starts]).astype(np.int64))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
    return np.concatenate([p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None])


def _in_turns(barrier: Callable[[], Any], calls: dict[str, Callable[[], Any]], rounds: int) -> Samples:
    """Seconds of each call until the slowest rank has ended, in turns; a round before that does not count."""
    samples: Samples = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name in list(calls) if turn % 2 else reversed(calls):
            barrier()
            begin = time.perf_counter()
            calls[name]()
            barrier()
            if turn >= 0:
                samples[name].append(time.perf_counter() - begin)
    return samples
