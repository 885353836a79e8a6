"""`make bench-compression`: what compression must show, as claims in out/bench/compression.json; 1 if one is missed.

``python tests/perf/compression_bench.py [--part codecs]``. Everything is a ratio of times of one run, in turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lab")]

from claims import OUT, Claims  # noqa: E402
from lab import Lab  # noqa: E402
from nodes import Nodes  # noqa: E402

from hccl_py.buffers import describe  # noqa: E402
from hccl_py.codecs import top_indices, whole  # noqa: E402
from hccl_py.compression.blocks import BlockCodec  # noqa: E402
from hccl_py.compression.codecs import builtin_codecs, parse_codec  # noqa: E402
from hccl_py.core.errors import ConfigError  # noqa: E402

COMMAND = "make bench-compression"
COUNT = 1 << 24  # float32, 64 MiB: far beyond the caches
ROUNDS = 15
PARTS: dict[str, tuple[str, ...]] = {
    "codecs": ("casts", "int8", "topk"),
    "sparse": ("sparse_topk", "sparse_embedding"),
    "auto": ("auto_200", "auto_1000"),
    "shm": ("auto_shm",),
    "digits": ("volume_digits", "volume_digits_quality", "most_digits", "most_digits_quality"),
    "bytes": ("volume_lm", "volume_lm_loss", "volume_lm_deviation", "most_lm", "most_lm_loss", "switching"),
}


def codecs(claims: Claims) -> None:
    """Throughput on one core as a share of memcpy's, of each codec; prints all, records those that are asked for."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    values = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    out = np.zeros_like(values)
    code = np.zeros(3 * COUNT, np.uint8)
    calls: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(out, values)}
    for name in builtin_codecs():
        codec = None if name == "threshold" else parse_codec(name)
        if not isinstance(codec, BlockCodec):
            continue
        table, mine = whole(codec, COUNT), code[: codec.wire_bytes(COUNT)].copy()
        table.encode(describe(values, "values"), mine)
        calls[f"{name} encode"] = lambda table=table, mine=mine: table.encode(describe(values, "values"), mine)  # type: ignore[misc]
        calls[f"{name} decode"] = lambda table=table, mine=mine: table.decode(mine, describe(out, "out"))  # type: ignore[misc]
        calls[f"{name} add"] = lambda table=table, mine=mine: table.decode(mine, describe(out, "out"), add=True)  # type: ignore[misc]
    calls["topk 1%"] = lambda: top_indices(values, COUNT // 100)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    shares = {name: median(times["memcpy"]) / median(samples) for name, samples in times.items()}
    for name, share in shares.items():
        print(f"{name:18} {share:6.0%} of memcpy, {4 * COUNT / median(times[name]) / 1e9:.2f} GB/s of float32")
    baseline = f"memcpy of 64 MiB on the same core, {4 * COUNT / median(times['memcpy']) / 1e9:.2f} GB/s"
    for id_, names in {
        "casts": ("fp16 encode", "fp16 decode", "bf16 encode", "bf16 decode"),
        "int8": ("int8 encode", "int8 decode"),
        "topk": ("topk 1%",),
    }.items():
        samples = {name: times[name] for name in ("memcpy", *names)}
        value = min(shares[name] for name in names)
        claims.record(id_, value, command=f"{COMMAND} PART=codecs", n=ROUNDS, samples=samples, baseline=baseline)


def _in_lab(name: str, rate: str, places: tuple[int, ...], task: str, **arguments: Any) -> dict[str, Any]:
    """A function of compression_tasks.py on lab hosts whose links have a rate; what rank 0 returned."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = max(places) + 1
        with Lab(name, nodes, rate) as lab, Nodes(lab, Path(folder) / "log", HERE / "compression_tasks.py") as agents:
            found: dict[str, Any] = agents.run(task, places, limit_s=80, **arguments)[0]
            return found


def _gain(samples: dict[str, list[float]], ours: str) -> float:
    """Median of exact time over ours, in pairs."""
    return median(a / b for a, b in zip(samples["exact"], samples[ours], strict=True))


def _ms(samples: list[float]) -> str:
    return f"{median(samples) * 1e3:.1f} ms"


def sparse(claims: Claims) -> None:
    """Sparse against dense all_reduce, two hosts at 1 Gbit/s."""
    for kind in ("topk", "embedding"):
        found = _in_lab("sparse", "1Gbit/s", (0, 1), "sparse", kind=kind, rounds=9)
        samples = found["samples"]
        claims.record(
            f"sparse_{kind}", _gain(samples, "sparse"), command=f"{COMMAND} PART=sparse", n=9, samples=samples,
            baseline=f"exact all_reduce of {found['bytes'] / 2**20:.0f} MiB, {_ms(samples['exact'])}; sparse "
            f"{_ms(samples['sparse'])}, {found['sent'] / 2**20:.2f} MiB sent",
        )  # fmt: skip


def auto(claims: Claims) -> None:
    """A step of DistributedDataParallel with "auto", two hosts, slow links."""
    for id_, rate, rounds in (("auto_200", "200Mbit/s", 7), ("auto_1000", "1Gbit/s", 15)):
        found = _in_lab("auto", rate, (0, 1), "training_step", rounds=rounds)
        samples = found["samples"]
        claims.record(
            id_, _gain(samples, "auto"), command=f"{COMMAND} PART=auto", n=rounds, samples=samples,
            baseline=f"exact step {_ms(samples['exact'])}, auto {_ms(samples['auto'])}, {found['parameters']} "
            f"parameters; {found['why'][0]}",
        )  # fmt: skip


def shm(claims: Claims) -> None:
    """A step with "auto" over shared memory: it chooses exact."""
    rounds = 41
    found = _in_lab("shm", "1Gbit/s", (0, 0), "training_step", rounds=rounds)
    samples = found["samples"]
    exact = all(why.startswith("exact") for why in found["why"])
    claims.record(
        "auto_shm", 1 / _gain(samples, "auto") if exact else float("nan"), command=f"{COMMAND} PART=shm", n=rounds,
        samples=samples, baseline=f"exact step {_ms(samples['exact'])}, auto {_ms(samples['auto'])}; {found['why'][0]}",
    )  # fmt: skip


MEASURES: dict[str, Callable[[Claims], None]] = {"codecs": codecs, "sparse": sparse, "auto": auto, "shm": shm}


def main() -> int:
    """Measure; print the table; 1 if a claim is missed or missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", help=f"some of {', '.join(PARTS)}, with commas; none: all")
    chosen = [part for part in parser.parse_args().part.split(",") if part]
    unknown = set(chosen) - set(PARTS)
    if unknown:
        raise ConfigError(f"--part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    claims = Claims("compression", [id_ for part in chosen for id_ in PARTS[part]] if chosen else None)
    for part in chosen or PARTS:
        MEASURES[part](claims)
    return claims.finish(OUT / "compression.json")


if __name__ == "__main__":
    raise SystemExit(main())
