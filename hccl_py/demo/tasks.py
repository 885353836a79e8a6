"""What is trained: handwritten digits (for accuracy) and a byte-level language model (for the size of its gradients).

Both data sets are on this machine already: one ships with scikit-learn, the other is Python's own standard library.
"""

from __future__ import annotations

import importlib
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, its data and how it is judged. ``batches[rank][step]`` is what a rank trains on."""

    name: str
    title: str
    model: nn.Module
    batches: list[list[Batch]]
    held_out: list[Batch]
    learning_rate: float
    judged_by: str  # "accuracy", or "bits per byte" on held-out data

    def loss(self, module: Any, batch: Batch) -> Tensor:
        """Return the mean cross entropy of ``module``'s (n, classes) or (n, length, classes) logits, in nats."""
        logits: Tensor = module(batch[0])
        return functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())

    def judge(self) -> float:
        """Return the figure named by ``judged_by`` on the held-out data."""
        self.model.eval()
        with torch.no_grad():
            if self.judged_by == "accuracy":
                right = sum(int((self.model(x).argmax(-1) == y).sum()) for x, y in self.held_out)
                value = right / sum(y.numel() for _, y in self.held_out)
            else:
                value = float(np.mean([float(self.loss(self.model, batch)) for batch in self.held_out])) / math.log(2)
        self.model.train()
        return value


def build(name: str, ranks: int, steps: int, seed: int = 0) -> Task:
    """Make the task ``name`` ("digits" or "bytes"): the same on every rank and for every backend."""
    torch.manual_seed(seed)
    maker = {"digits": _digits, "bytes": _bytes}[name]
    return maker(ranks, steps, np.random.default_rng(seed))


def _digits(ranks: int, steps: int, random: np.random.Generator) -> Task:
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    order = random.permutation(len(labels))
    images = torch.from_numpy((pixels[order] / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels[order])
    train, per_rank = len(labels) * 4 // 5, 32
    wanted = steps * ranks * per_rank
    epochs = [random.permutation(train) for _ in range(wanted // train + 1)]
    rows = np.concatenate(epochs)[:wanted].reshape(steps, ranks, per_rank)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return Task(
        name="digits",
        title="digits: convolutional network",
        model=model,
        batches=[
            [(images[rows[step, rank]], targets[rows[step, rank]]) for step in range(steps)] for rank in range(ranks)
        ],
        held_out=[(images[train:], targets[train:])],
        learning_rate=1e-3,
        judged_by="accuracy",
    )


class ByteModel(nn.Module):
    """A small transformer over bytes: (n, length) integers to (n, length, 256) logits."""

    def __init__(self, width: int = 192, layers: int = 3, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x) + self.place[: x.shape[1]]
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def _bytes(ranks: int, steps: int, random: np.random.Generator) -> Task:
    length, per_rank = 64, 8
    text = standard_library(limit_bytes=4 << 20)
    train = len(text) * 9 // 10

    def draw(low: int, high: int) -> Batch:
        starts = random.integers(low, high - length - 1, per_rank)
        rows = torch.from_numpy(np.stack([text[start : start + length + 1] for start in starts]).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    by_step = [[draw(0, train) for _ in range(ranks)] for _ in range(steps)]
    return Task(
        name="bytes",
        title="standard library: byte transformer",
        model=ByteModel(length=length),
        batches=[[by_step[step][rank] for step in range(steps)] for rank in range(ranks)],
        held_out=[draw(train, len(text)) for _ in range(16)],
        learning_rate=2e-3,
        judged_by="bits per byte",
    )


def standard_library(limit_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the source files of Python's standard library as one array of bytes, in the order of their names."""
    parts, total = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(np.frombuffer(path.read_bytes(), np.uint8))
        total += parts[-1].size
        if total >= limit_bytes:
            break
    return np.concatenate(parts)[:limit_bytes]
