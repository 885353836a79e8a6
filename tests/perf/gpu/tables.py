"""The GPU tables of docs/BENCHMARKS.md, from the samples that worker.py left; losses in bold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pages import bytes_text

BEGIN = "<!-- table: make bench-gpu -->"
Medians = Mapping[str, Mapping[str, float]]


def page(samples: Mapping[str, Any], date: str) -> str:
    """Everything between the marks."""
    about = samples["about"]
    medians = {
        name: {who: statistics.median(times) for who, times in by.items()}
        for name, by in samples.items()
        if name != "about"
    }
    caption = (
        f"`make bench-gpu TABLES=1`, {date}: {about['ranks']} {about['gpu']} of one host, NCCL {about['nccl']}, "
        f"torch {about['torch']}. Microseconds, medians; both libraries alternate in one process."
    )
    return "\n\n".join((caption, all_reduce(medians), others(medians), ddp(medians), tcp(medians)))


def _rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + " ---: |" * len(head)
    return "\n".join((f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)))


def _ratio(ours: float, nccl: float) -> str:
    text = f"{nccl / ours:.2f}x"
    return f"**{text}**" if ours > nccl else text


def all_reduce(medians: Medians) -> str:
    """bf16 in place: in a graph, through torch eagerly, and with 32 SMs."""
    lines = []
    for size in sorted({int(name.split()[2]) for name in medians if name.startswith("all_reduce eager")}):
        eager, graph = medians[f"all_reduce eager {size}"], medians.get(f"all_reduce graph {size}")
        queued = medians.get(f"all_reduce queued {size}")
        in_graph = (
            (f"{graph['ours']:.1f}", f"{graph['nccl']:.1f}", _ratio(graph["ours"], graph["nccl"])) if graph else "---"
        )
        lines.append([
            bytes_text(size),
            *in_graph,
            f"{eager['ours']:.0f}", f"{eager['nccl']:.0f}", _ratio(eager["ours"], eager["nccl"]),
            f"{eager['few']:.0f}", _ratio(eager["few"], eager["nccl"]),
            " / ".join(f"{size / queued[who] / 1e3:.0f}" for who in ("ours", "few", "nccl")) if queued else "-",
        ])  # fmt: skip
    head = ("all_reduce, bf16", "graph", "NCCL", "gain", "eager", "NCCL", "gain", "32 SMs, eager", "gain",
            "GB/s of queued calls: ours, 32 SMs, NCCL")  # fmt: skip
    return _rows(head, lines)


def tcp(medians: Medians) -> str:
    """float32 all_reduce between two "hosts" over loopback TCP."""
    lines = []
    for name, by in medians.items():
        if name.startswith("tcp "):
            _, sockets, size = name.split()
            ours, nccl = by["ours"], by["nccl"]
            lines.append([bytes_text(int(size)), sockets, f"{ours:.0f}", f"{nccl:.0f}", _ratio(ours, nccl)])
    return _rows(
        ("all_reduce, float32, over TCP", "NCCL's sockets a thread, and threads", "ours", "NCCL", "gain"), lines
    )


def others(medians: Medians) -> str:
    """The other collectives by size of the input, in graphs to 16 MiB, eager above."""
    kinds = ("all_gather", "reduce_scatter", "all_to_all", "broadcast")
    lines = []
    for size in sorted({int(name.split()[1]) for name in medians if name.split()[0] in kinds}):
        line = [bytes_text(size)]
        for kind in kinds:
            by = medians[f"{kind} {size}"]
            line.append(f"{by['ours']:.1f} / {by['nccl']:.1f} ({_ratio(by['ours'], by['nccl'])})")
        lines.append(line)
    return _rows(("ours / NCCL", *kinds), lines)


def ddp(medians: Medians) -> str:
    """A step under DDP: how much longer than the same step without communication, measured beside it."""
    lines = []
    for name, by in medians.items():
        if name.startswith("ddp "):
            _, model, who, cap = name.split()
            alone, step = by["alone"], by[f"{who} {cap}"]
            lines.append([model, who, cap, f"{alone / 1e3:.1f}", f"{step / 1e3:.1f}", f"{step / alone - 1:.1%}"])
    head = ("DDP, layers x width", "group", "bucket_cap_mb", "alone, ms", "step, ms", "exposed")
    return _rows(head, lines)
