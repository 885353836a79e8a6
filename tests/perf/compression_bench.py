"""`make bench-compression`: what compression must show, as claims in out/bench/compression.json; 1 if one is missed.

``python tests/perf/compression_bench.py [--part codecs]``. Everything is a ratio of times of one run, in turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from claims import OUT, Claims

from hccl_py.buffers import describe
from hccl_py.codecs import top_indices, whole
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codecs import builtin_codecs, parse_codec
from hccl_py.core.errors import ConfigError

COMMAND = "make bench-compression"
COUNT = 1 << 24  # float32, 64 MiB: far beyond the caches
ROUNDS = 15
PARTS: dict[str, tuple[str, ...]] = {"codecs": ("casts", "int8", "topk")}


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


MEASURES: dict[str, Callable[[Claims], None]] = {"codecs": codecs}


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
