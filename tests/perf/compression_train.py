"""Real trainings with compressed gradients, one variant a run, two ranks over TCP; started by compression_bench.py.

``mpirun -n 2 python tests/perf/compression_train.py digits|bytes VARIANT SEEDS OUT.json``; VARIANT: "exact", a codec,
or "switch:FINE,COARSE", each perhaps with "@STEPS" gentle steps of int8 first. Bytes are what the kernel says that this
process's TCP connections received.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hccl_py
from hccl_py.communicator import Communicator
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.policy import Ramp, Switching
from hccl_py.compression.span import Span
from hccl_py.core.types import ReduceOp
from hccl_py.gradients import GradientReducer

Array = np.ndarray[Any, Any]
EPOCHS, BATCH, HIDDEN, FOLDS = 15, 32, 256, 5  # of digits; BATCH of each rank
BYTES_STEPS = 150


def received_bytes() -> int:
    """By all TCP connections of this process, ever: tcpi_bytes_received."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("<Q", info, 128)[0]
        except OSError:
            continue
    return total


class Reducer:
    """Averages gradients as a variant says; "exact" is the plain all_reduce."""

    def __init__(self, comm: Communicator, variant: str, seed: int) -> None:
        name, _, gentle = variant.partition("@")
        self._comm = comm
        self._reducer: GradientReducer | None = None
        if name != "exact":
            fine, _, coarse = name.removeprefix("switch:").partition(",")
            what = Switching(parse_codec(fine), parse_codec(coarse)) if coarse else parse_codec(fine)
            ramp = Ramp(gentle_steps=int(gentle), gentle=parse_codec("int8")) if gentle else None
            self._reducer = GradientReducer(comm, what, ramp=ramp, seed=seed)

    def __call__(self, bucket: Array, spans: list[Span], step: int) -> None:
        if self._reducer is None:
            self._comm.all_reduce(bucket, op=ReduceOp.AVG)
        else:
            self._reducer.reduce(bucket, spans, step)


def digits(comm: Communicator, variant: str, seed: int) -> float:
    """Accuracy over all samples of 5-fold cross-validation of a perceptron with one hidden layer."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    right = 0
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        train = np.setdiff1d(order, held_out)
        right += _fold(comm, variant, seed, images, labels, train, held_out)
    return right / len(labels)


def _fold(
    comm: Communicator, variant: str, seed: int, images: Array, labels: Array, train: Array, held_out: Array
) -> int:
    random = np.random.default_rng([seed, 1])
    shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
    spans = [Span(k, int(np.prod(shape)), rows=shape[0] if len(shape) > 1 else 0) for k, shape in enumerate(shapes)]
    flat = np.zeros(sum(span.count for span in spans), np.float32)
    gradient, velocity = np.zeros_like(flat), np.zeros_like(flat)
    w1, b1, w2, b2 = _views(flat, shapes)
    dw1, db1, dw2, db2 = _views(gradient, shapes)
    w1[:] = random.standard_normal(w1.shape) * np.sqrt(2 / 64)
    w2[:] = random.standard_normal(w2.shape) * np.sqrt(1 / HIDDEN)
    reduce = Reducer(comm, variant, seed)
    step = 0
    for epoch in range(EPOCHS):
        shuffled = random.permutation(train)
        rate = np.float32(0.1 * (1 - epoch / EPOCHS))
        for rows in shuffled[: len(shuffled) // (BATCH * comm.size) * BATCH * comm.size].reshape(-1, comm.size, BATCH):
            x, y = images[rows[comm.rank]], labels[rows[comm.rank]]
            hidden = np.maximum(x @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(BATCH), y] -= 1
            p /= BATCH
            dw2[:], db2[:] = hidden.T @ p, p.sum(axis=0)
            back = (p @ w2.T) * (hidden > 0)
            dw1[:], db1[:] = x.T @ back, back.sum(axis=0)
            reduce(gradient, spans, step)
            velocity *= np.float32(0.9)
            velocity += gradient
            flat -= rate * velocity
            step += 1
    hidden = np.maximum(images[held_out] @ w1 + b1, 0)
    return int(((hidden @ w2 + b2).argmax(axis=1) == labels[held_out]).sum())


def _views(flat: Array, shapes: list[tuple[int, ...]]) -> Iterator[Array]:
    at = 0
    for shape in shapes:
        size = int(np.prod(shape))
        yield flat[at : at + size].reshape(shape)
        at += size


def byte_model(comm: Communicator, variant: str, seed: int) -> dict[str, Any]:
    """Held-out loss, in nats a byte, of a transformer of 4 million parameters on Python's standard library."""
    import torch
    from torch.nn import functional

    from hccl_py.demo.tasks import ByteModel, standard_library

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    length, rows = 64, 4
    model = ByteModel(width=256, layers=5, length=length)
    parameters = list(model.parameters())
    spans = [Span(k, p.numel(), rows=p.shape[0] if p.dim() > 1 else 0) for k, p in enumerate(parameters)]
    gradient = np.zeros(sum(span.count for span in spans), np.float32)
    for p, part in zip(parameters, np.split(gradient, np.cumsum([s.count for s in spans])[:-1]), strict=True):
        p.grad = torch.from_numpy(part).view(p.shape)
    text = standard_library(limit_bytes=4 << 20)
    cut = len(text) * 9 // 10
    random = np.random.default_rng(seed)

    def draw(low: int, high: int, count: int) -> Any:
        starts = random.integers(low, high - length - 1, count)
        return torch.from_numpy(np.stack([text[s : s + length + 1] for s in starts]).astype(np.int64))

    def loss_of(batch: Any) -> Any:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    reduce = Reducer(comm, variant, seed)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    curve = []
    for step in range(BYTES_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 10) * (1 - step / BYTES_STEPS)
        batch = draw(0, cut, rows * comm.size)[comm.rank * rows : (comm.rank + 1) * rows]
        gradient[:] = 0
        loss = loss_of(batch)
        loss.backward()
        reduce(gradient, spans, step)
        optimizer.step()
        curve.append(float(loss))
    model.eval()
    random = np.random.default_rng(99)
    with torch.no_grad():
        held_out = float(np.mean([float(loss_of(draw(cut, len(text), 32))) for _ in range(8)]))
    return {"loss": held_out, "curve": curve, "parameters": sum(span.count for span in spans)}


def main() -> None:
    """One run of some seeds; rank 0 writes what came out."""
    task, variant, seeds, out = sys.argv[1:5]
    with hccl_py.init() as comm:
        results, bytes_of, begin = {}, {}, time.perf_counter()
        for seed in (int(seed) for seed in seeds.split(",")):
            before = received_bytes()
            results[seed] = (digits if task == "digits" else byte_model)(comm, variant, seed)
            comm.barrier()
            bytes_of[seed] = received_bytes() - before
        if comm.rank == 0:
            record = {"task": task, "variant": variant, "results": results, "received_bytes": bytes_of}
            Path(out).write_text(json.dumps({**record, "seconds": time.perf_counter() - begin}) + "\n")


if __name__ == "__main__":
    main()
