"""`make bench-compression`: what compression must show, as claims in out/bench/compression.json; 1 if one is missed.

``python tests/perf/compression_bench.py [--part codecs,sparse,auto,shm,hosts,lossless,digits,bytes]``. Times
are taken in turns, in one run. Trainings (digits: 8 minutes, bytes: 12) want two quiet cores; records of those that are
done are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
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
from hccl_py.codecs import decode_lossless, encode_lossless, top_indices, whole  # noqa: E402
from hccl_py.compression.blocks import BlockCodec  # noqa: E402
from hccl_py.compression.codecs import builtin_codecs, parse_codec  # noqa: E402
from hccl_py.core.env import child_environ  # noqa: E402
from hccl_py.core.errors import ConfigError  # noqa: E402
from hccl_py.launch import mpirun  # noqa: E402
from hccl_py.launch import run as launch_run  # noqa: E402

COMMAND = "make bench-compression"
COUNT = 1 << 24  # float32, 64 MiB: far beyond the caches
ROUNDS = 15
PARTS: dict[str, tuple[str, ...]] = {
    "codecs": ("casts", "int8", "topk"),
    "sparse": ("sparse_topk", "sparse_embedding"),
    "auto": ("auto_200", "auto_1000"),
    "shm": ("auto_shm",),
    "hosts": (),
    "lossless": (),
    "digits": ("volume_digits", "volume_digits_quality", "most_digits", "most_digits_quality", "switching"),
    "bytes": ("volume_lm", "volume_lm_loss", "volume_lm_deviation", "most_lm", "most_lm_loss"),
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
    words = np.zeros(parse_codec("lossless").wire_bytes(COUNT), np.uint8)
    mine = words[: encode_lossless(values, words)].copy()
    calls["lossless encode"] = lambda: encode_lossless(values, words)
    calls["lossless decode"] = lambda mine=mine: decode_lossless(mine, out)  # type: ignore[misc]
    calls["lossless add"] = lambda mine=mine: decode_lossless(mine, out, add=True)  # type: ignore[misc]
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


def hosts(_: Claims) -> None:
    """Two hosts of two ranks each at 1 Gbit/s: exact, encoded once a host, and encoded by every rank; printed only."""
    for codec in ("int8", "int4"):
        found = _in_lab("hosts", "1Gbit/s", (0, 0, 1, 1), "host_steps", codec=codec, elements=1 << 22, rounds=9)
        samples = found["samples"]
        times = ", ".join(f"{name} {_ms(each)}" for name, each in samples.items())
        print(f"all_reduce of 16 MiB by 2 x 2 ranks, {codec}: {times}")


def lossless(_: Claims) -> None:
    """Exact against lossless all_reduce at 1 Gbit/s; printed only."""
    for what, places in (("gradients", (0, 1)), ("normal", (0, 1)), ("normal", (0, 1, 2, 3))):
        found = _in_lab("lossless", "1Gbit/s", places, "lossless_steps", what=what, rounds=15)
        samples, ranks = found["samples"], len(places)
        gains = [a / b for a, b in zip(samples["exact"], samples["lossless"], strict=True)]
        saved = 1 - found["sent"] / (2 * (ranks - 1) / ranks * found["bytes"])
        print(
            f"all_reduce of {found['bytes'] / 2**20:.1f} MiB, {what}, {ranks} ranks: exact {_ms(samples['exact'])}, "
            f"lossless {_ms(samples['lossless'])}, {saved:.1%} of the bytes saved: {median(gains):.3f}x "
            f"({min(gains):.3f} to {max(gains):.3f}, n = {len(gains)})"
        )


Runs = dict[str, dict[int, dict[str, Any]]]  # by variant and seed: result and received_bytes
DIGITS, MOST_DIGITS, SWITCHED_DIGITS = "int8", "sign@30", "switch:int8,sign"
BYTES, MOST_BYTES, SWITCHED_BYTES = "int8", "sign@15", "switch:int8,int4"
OTHERS = (
    "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int4", "sign", "topk:0.01", "topk:0.01@30", "threshold:0.001",
    "randomk:0.1", "randomk:0.01", "blocksparse:0.1", "powersgd:2",
)  # fmt: skip
OTHERS_BYTES = ("int4", "sign", "topk:0.01@15", "powersgd:4")
SEEDS, SEEDS_BYTES = range(10), range(3)
_STUDENT = {2: 12.706, 3: 4.303, 10: 2.262}  # 95%, by pairs


def _train(task: str, wanted: dict[str, Iterable[int]]) -> Runs:
    """Trainings by variant and seeds; those whose record is in out/bench/compression/train are kept.

    A training that fails or takes longer than 20 minutes is left out.
    """
    folder = OUT / "compression" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    found: Runs = {}
    for variant, seeds in wanted.items():
        for seed in seeds:
            file = folder / f"{task}_{variant.translate(str.maketrans(':,@', '___'))}_{seed}.json"
            if not file.exists():
                command = mpirun(
                    2, [sys.executable, str(HERE / "compression_train.py"), task, variant, str(seed), str(file)]
                )
                launch_run(command, 1200.0, child_environ(HCCL_PY_TRANSPORTS="tcp", OMP_NUM_THREADS="1"))
            if file.exists():
                record = json.loads(file.read_text(encoding="utf-8"))
                run = {"result": record["results"][str(seed)], "bytes": record["received_bytes"][str(seed)]}
                found.setdefault(variant, {})[seed] = run
    return found


def _saved(runs: Runs, variant: str) -> float:
    """Share of the exact run's bytes that a variant saves, over the seeds that both have."""
    both = sorted(set(runs["exact"]) & set(runs.get(variant, {})))
    if not both:
        return math.nan
    return 1 - sum(runs[variant][s]["bytes"] for s in both) / sum(runs["exact"][s]["bytes"] for s in both)


def _interval(pairs: list[float]) -> tuple[float, float]:
    """The 95% interval of the mean."""
    mean = float(np.mean(pairs))
    half = _STUDENT.get(len(pairs), math.inf) * float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
    return mean - half, mean + half


def digits(claims: Claims) -> None:
    """Accuracy of 5-fold cross-validation over all samples, in pairs of seeds."""
    most = dict.fromkeys((DIGITS, MOST_DIGITS, SWITCHED_DIGITS), SEEDS)
    runs = _train("digits", {"exact": SEEDS, **most, **dict.fromkeys(OTHERS, SEEDS[:2])})
    differences = {}
    for variant, of in runs.items():
        pairs = [100 * (run["result"] - runs["exact"][seed]["result"]) for seed, run in sorted(of.items())]
        differences[variant] = pairs
        saved = _saved(runs, variant)
        print(f"digits {variant:18} {len(pairs):2} seeds: {np.mean(pairs):+.2f} points, {saved:.1%} of the bytes saved")
    baseline = f"exact: {100 * np.mean([run['result'] for run in runs['exact'].values()]):.2f}% right"

    def record(id_: str, variant: str, value: Callable[[tuple[float, float]], float]) -> None:
        pairs = differences.get(variant, [])
        if len(pairs) in _STUDENT:
            samples = {"points": pairs, "bytes": [run["bytes"] for _, run in sorted(runs[variant].items())]}
            between = _interval(pairs)
            said = f"{baseline}; {variant}: {np.mean(pairs):+.3f} points, 95% {between[0]:+.3f} to {between[1]:+.3f}"
            command = f"{COMMAND} PART=digits"
            claims.record(id_, value(between), command=command, n=len(pairs), samples=samples, baseline=said)

    record("volume_digits", DIGITS, lambda _: _saved(runs, DIGITS))
    record("volume_digits_quality", DIGITS, lambda between: max(map(abs, between)))
    record("most_digits", MOST_DIGITS, lambda _: _saved(runs, MOST_DIGITS))
    record("most_digits_quality", MOST_DIGITS, lambda between: -between[0])  # the worse end of the interval
    further = 1 - (1 - _saved(runs, SWITCHED_DIGITS)) / (1 - _saved(runs, DIGITS))
    record("switching", SWITCHED_DIGITS, lambda between: further if between[0] >= -0.5 else math.nan)


def byte_model(claims: Claims) -> None:
    """Held-out loss of the byte-level language model."""
    three = dict.fromkeys(("exact", BYTES, MOST_BYTES, SWITCHED_BYTES), SEEDS_BYTES)
    runs = _train("bytes", {**three, **dict.fromkeys(OTHERS_BYTES, SEEDS_BYTES[:1])})
    exact = {seed: run["result"]["loss"] for seed, run in runs["exact"].items()}
    deviation = float(np.std(list(exact.values()), ddof=1)) if len(exact) > 1 else math.nan
    losses: dict[str, list[float]] = {}
    for variant, of in runs.items():
        losses[variant] = [run["result"]["loss"] - exact[seed] for seed, run in sorted(of.items()) if seed in exact]
        more, share = np.mean(losses[variant]), _saved(runs, variant)
        print(f"bytes {variant:18} {len(of)} seeds: {more:+.4f} nats, {share:.1%} saved")
    said = f"exact loss {', '.join(f'{loss:.4f}' for loss in exact.values())} nats, deviation {deviation:.4f}"

    def record(id_: str, variant: str, value: float) -> None:
        if variant in losses:
            samples = {"more_nats": losses[variant], "exact_nats": list(exact.values())}
            n, command = len(losses[variant]), f"{COMMAND} PART=bytes"
            claims.record(id_, value, command=command, n=n, samples=samples, baseline=f"{variant}; {said}")

    mean_loss = float(np.mean(list(exact.values())))
    worst = {variant: max((abs(each) for each in pairs), default=math.nan) for variant, pairs in losses.items()}
    record("volume_lm", BYTES, _saved(runs, BYTES))
    record("volume_lm_loss", BYTES, worst.get(BYTES, math.nan) / mean_loss)
    record("volume_lm_deviation", BYTES, worst.get(BYTES, math.nan) / deviation)
    record("most_lm", MOST_BYTES, _saved(runs, MOST_BYTES))
    record("most_lm_loss", MOST_BYTES, max(losses.get(MOST_BYTES, [math.nan])) / mean_loss)


MEASURES: dict[str, Callable[[Claims], None]] = {
    "codecs": codecs,
    "sparse": sparse,
    "auto": auto,
    "shm": shm,
    "hosts": hosts,
    "lossless": lossless,
    "digits": digits,
    "bytes": byte_model,
}


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
