"""Measures the CPU data path against Open MPI, MPICH and gloo, and judges the claims of section cpu of wanted.toml.

Run on an idle machine after ``make install``::

    make bench-cpu                  # all of it; a quarter of an hour
    make bench-cpu PART=two,torch   # some; the rest of out/bench/cpu.json is kept
    make bench-cpu TABLES=1         # all of it, and the tables and pictures of docs/BENCHMARKS.md from it
    make bench-cpu RESUME=1         # go on where a run was cut off: what it has measured is not measured again

The libraries take turns in both orders in one job, MPICH in an environment of its own; a ratio is the median over pairs
of samples, its upper 95% limit by bootstrap.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cpu_tables
import lab_bench
import native_pair
from claims import OUT, Claims

from hccl_py.bench.compare import CLIFF, Ratio, steepness
from hccl_py.bench.metrics import geometric_mean
from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError, HcclError
from hccl_py.lab.kernel import obstacle
from hccl_py.launch import Job

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BASELINES = ("openmpi", "mpich", "gloo")
OTHERS = (
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
    "barrier",
)
LARGE = 64 << 10
WIDE = tuple(4 << power for power in range(0, 25, 2))  # 4 B to 64 MiB
RECORDS = OUT / "cpu" / "records"
Samples = dict[tuple[str, int, str], dict[str, list[float]]]  # (collective, bytes, form) -> library -> seconds


def samples_of(record: Mapping[str, Any]) -> Samples:
    """Return the samples of a record of hccl_py.bench by collective, size and form."""
    found: Samples = {}
    for row in record["rows"]:
        for form in ("out_of_place", "in_place"):
            if "samples_s" in row[form]:
                key = (row["collective"], row["size_bytes"], form)
                found.setdefault(key, {})[row["library"]] = row[form]["samples_s"]
    return found


def against_best(
    samples: Samples, ours: str, baselines: Sequence[str] = BASELINES
) -> dict[tuple[str, int, str], Ratio]:
    """Return time of ours / time of the quickest baseline, wherever both were measured."""
    found = {}
    for key, libraries in samples.items():
        there = [name for name in baselines if name in libraries]
        if ours in libraries and there:
            best = min(there, key=lambda name: median(libraries[name]))
            found[key] = Ratio.of(libraries[ours], libraries[best])
    return found


def worst(ratios: Mapping[Any, Ratio]) -> float:
    """Return the largest upper limit; NaN if nothing was measured."""
    return max((ratio.high for ratio in ratios.values()), default=float("nan"))


def mean_speedup(ratios: Mapping[Any, Ratio]) -> float:
    """Return the geometric mean of baseline's time / ours; NaN if nothing was measured."""
    return geometric_mean([1 / ratio.median for ratio in ratios.values()]) if ratios else float("nan")


def worst_steepness(samples: Samples, library: str) -> float:
    """Return the largest time over what the neighbours promise, over all curves of ``library``."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for (case, size, form), libraries in samples.items():
        if library in libraries:
            curves.setdefault((case, form), {})[size] = median(libraries[library])
    return max((steep for curve in curves.values() for steep in steepness(curve).values()), default=float("nan"))


def merged(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one record with the rows of all, which were measured alike; its date is that of the last."""
    rows = [row for record in records for row in record["rows"]]
    derived = ("ratios", "cliffs", "command")
    return {key: value for key, value in records[-1].items() if key not in derived} | {"rows": rows}


class Bench:
    """The parts. Each measures, and records its claims; records of the benchmark are kept for the tables.

    Long parts are measured piece by piece, each a job of its own. With ``resume`` pieces that are there are taken.
    """

    def __init__(self, claims: Claims, samples: int, resume: bool = False) -> None:
        self._claims, self._samples, self._part, self._resume = claims, samples, "", resume

    def run(self, part: str) -> None:
        """Measure one part."""
        self._part = part
        began_s = time.monotonic()
        print(f"== {part}", flush=True)
        PARTS[part].measure(self)
        print(f"== {part}: {time.monotonic() - began_s:.0f} s", flush=True)

    def two(self) -> None:
        """Two ranks, private and registered buffers, and the limit."""
        pieces = {f"{size}": self._worker_command("two", "--sizes", str(size)) for size in WIDE}
        record = self._pieces(2, "two2", pieces)
        samples = samples_of(record)
        private = against_best(samples, "hccl_py")
        registered = against_best(samples, "registered")
        baseline = f"best of {_versions(record)} at each size"
        self._record("two_ranks_worst", worst(private), samples, baseline)
        self._record("two_ranks_mean", mean_speedup(_from(private, LARGE)), samples, baseline)
        self._record("registered_mean", mean_speedup(_from(registered, LARGE)), samples, baseline)
        shares = [
            Ratio.of(libraries["limit"], libraries["registered"]).median
            for (_, size, _), libraries in samples.items()
            if size >= LARGE and {"limit", "registered"} <= libraries.keys()
        ]
        self._record("registered_limit", min(shares, default=float("nan")), samples, "tests/perf/native/limit.cpp")

    def engine(self) -> None:
        """A plan in the engine against code written by hand: C++ on both sides, in turns."""
        rings: dict[str, dict[str, list[float]]] = {}
        with native_pair.Pair() as pair:
            for size in (LARGE, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
                calls = max(1, min(16, (2 << 20) // size))
                rings[str(size)] = _in_turns(
                    self._samples, plan=lambda n, s=size, c=calls: pair.ask("plan", s, n, c),
                    ring=lambda n, s=size, c=calls: pair.ask("ring", s, n, c),
                )  # fmt: skip
            small = _in_turns(
                self._samples,
                plan=lambda n: pair.ask("plan", 8, n, 2000),
                exchange=lambda n: pair.ask("exchange", 8, n, 2000),
            )
        ratios = {size: Ratio.of(both["plan"], both["ring"]) for size, both in rings.items()}
        for size, ratio in ratios.items():
            print(f"plan / ring {size:>9} B  {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})")
        self._record("engine_ring", worst(ratios), rings, "tests/perf/native/ring.cpp")
        more_ns = median((plan - by_hand) * 1e9 for plan, by_hand in zip(small["plan"], small["exchange"], strict=True))
        self._record("engine_exchange", more_ns, small, "tests/perf/native/pair.cpp: Exchange")

    def latency(self) -> None:
        """8 B through Python."""
        record = self._worker(2, "latency")
        samples = samples_of(record)
        call = samples["all_reduce", 8, "out_of_place"]
        for id_, name in (("call_overhead", "hccl_py"), ("prepared_overhead", "prepared")):
            pairs = zip(call.get(name, ()), call["plan"], strict=False)
            over_us = [(ours - native) * 1e6 for ours, native in pairs]
            self._record(id_, median(over_us) if over_us else float("nan"), samples, "Group::run_now in C++")
        ratios = against_best(samples, "hccl_py", ("openmpi",))
        self._record("call_against_mpi4py", worst(ratios), samples, f"mpi4py on {record['versions']['openmpi']}")

    def torch(self) -> None:
        """8 B through torch.distributed."""
        times_s = self._worker(2, "torch")["samples_s"]
        ours = {name: samples for name, samples in times_s.items() if name != "gloo"}
        slowest = max(ours, key=lambda name: median(ours[name]))
        self._record("torch_latency", median(ours[slowest]) * 1e6, times_s, "-")
        speedup = 1 / Ratio.of(ours[slowest], times_s["gloo"]).median
        self._record("torch_against_gloo", speedup, times_s, "gloo through torch.distributed")

    def four(self) -> None:
        """Four ranks on two cores."""
        self._crowded(4, "four_ranks")

    def eight(self) -> None:
        """Eight ranks on two cores."""
        self._crowded(8, "eight_ranks")

    def cliffs(self) -> None:
        """Every power of two, ours alone."""
        steep, all_samples = {}, {}
        for ranks in (4, 8):
            pieces = {  # each has a size more on either side: jobs differ, so a size's neighbours are of the same job
                str(size): self._bench_command("all_reduce", max(4, size >> 1), min(size << 5, 64 << 20), 2)
                for size in (4, 128, 4096, 1 << 17, 1 << 22)
            }
            for piece, record in self._records(ranks, f"cliffs{ranks}", pieces).items():
                samples = samples_of(record)
                all_samples |= {f"{ranks} ranks from {piece} {key}": value for key, value in _plain(samples).items()}
                steepest = steep[ranks, piece] = worst_steepness(samples, "hccl_py")
                print(f"{ranks} ranks from {piece} B: at most {steepest:.2f}x its neighbours (a cliff: {CLIFF})")
        self._record("cliffs", max(steep.values()), all_samples, "-")

    def others(self) -> None:
        """All other collectives, two and four ranks."""
        ratios, samples, versions = {}, {}, ""
        for ranks in (2, 4):
            pieces = {name: self._bench_command(name, 8, 16 << 20, 8, BASELINES) for name in OTHERS}
            record = self._pieces(ranks, f"others{ranks}", pieces)
            found = samples_of(record)
            ratios |= {(ranks, *key): ratio for key, ratio in against_best(found, "hccl_py").items()}
            samples |= {f"{ranks} ranks {key}": value for key, value in _plain(found).items()}
            versions = _versions(record)
        baseline = f"best of {versions} at each size"
        for key, ratio in sorted(ratios.items(), key=lambda item: -item[1].high)[:12]:
            print(f"worst: {key} {ratio.median:.2f} (up to {ratio.high:.2f})")
        self._record("other_collectives_worst", worst(ratios), samples, baseline)
        self._record("other_collectives_mean", mean_speedup(ratios), samples, baseline)

    def idle(self) -> None:
        """Ranks that wait for a late one, with and without a core for each."""
        shares = {
            f"{ranks} ranks, {name}": values
            for ranks in (2, 4)
            for name, values in self._worker(ranks, "idle")["shares"].items()
        }
        self._record("idle_rank", max(median(values) for values in shares.values()), shares, "-")

    def half(self) -> None:
        """bfloat16 and float16."""
        record = self._worker(2, "half")
        large = record["large_s"]
        ratios = {
            name: Ratio.of(times_s, large[f"float32 {name.partition(' ')[2]}"])
            for name, times_s in large.items()
            if not name.startswith("float32")
        }
        self._record("half_types_large", worst(ratios), large, "float32 through hccl_py, the same bytes")
        shares = {name: Ratio.of(both["kernel"], both["hccl_py"]).median for name, both in record["kernel_s"].items()}
        print("bare fold / all_reduce:", ", ".join(f"{name} B {share:.2f}" for name, share in shares.items()))
        self._record("half_types_kernel", min(shares.values()), record["kernel_s"], "fold_kernel on a rank's half")
        errors = {
            f"{ranks} ranks, {k}": v for ranks in (2, 4) for k, v in self._worker(ranks, "errors")["shares"].items()
        }
        self._record("half_types_error", max(errors.values()), errors, "float64 sum of the inputs")

    def lab(self) -> None:
        """Two and four hosts in network namespaces."""
        why = obstacle()
        if why is not None:
            raise ConfigError(f"no lab: {why}")
        with tempfile.TemporaryDirectory() as folder:
            bench = lab_bench.Bench(self._claims, max(6, self._samples), Path(folder))
            for part in lab_bench.PARTS:
                bench.run(part)

    def _crowded(self, ranks: int, prefix: str) -> None:
        sizes = (4 << power for power in range(0, 25, 3))  # 4 B to 64 MiB
        pieces = {str(size): self._bench_command("all_reduce", size, size, 8, BASELINES) for size in sizes}
        record = self._pieces(ranks, prefix, pieces)
        samples = samples_of(record)
        ratios = against_best(samples, "hccl_py")
        baseline = f"best of {_versions(record)} at each size"
        self._record(f"{prefix}_worst", worst(ratios), samples, baseline)
        self._record(f"{prefix}_mean", mean_speedup(ratios), samples, baseline)

    def _record(self, id_: str, value: float, samples: Mapping[Any, Any], baseline: str) -> None:
        plain = _plain(samples)
        lists = [v for value in plain.values() for v in (value.values() if isinstance(value, dict) else [value])]
        n = min((len(v) for v in lists if isinstance(v, list)), default=len(lists))
        self._claims.record(id_, value, command=self._command(), n=n, samples=plain, baseline=baseline)

    def _command(self) -> str:
        return f"make bench-cpu PART={self._part}"

    def _worker(self, ranks: int, part: str) -> dict[str, Any]:
        return self._ranks(ranks, self._worker_command(part), RECORDS / f"{part}{ranks}.json")

    def _worker_command(self, part: str, *arguments: str) -> list[str]:
        return [
            sys.executable,
            str(HERE / "cpu_worker.py"),
            part,
            "--samples",
            str(self._samples),
            *arguments,
            "--json",
        ]

    def _bench_command(self, case: str, begin: int, end: int, factor: int, baselines: Sequence[str] = ()) -> list[str]:
        command = [str(Path(sys.executable).parent / "hccl-py"), "bench", case, "-n", str(self._samples)]
        command += ["-b", str(begin), "-e", str(end), "-f", str(factor)]
        return [*command, *(["--compare", ",".join(baselines)] if baselines else []), "--json"]

    def _pieces(self, ranks: int, name: str, commands: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return one record of what ``commands`` measure; each gets the name of its file as its last word."""
        record = merged(list(self._records(ranks, name, commands).values()))
        (RECORDS / f"{name}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        return record

    def _records(self, ranks: int, name: str, commands: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
        folder = RECORDS / name
        folder.mkdir(parents=True, exist_ok=True)
        files = {piece: folder / f"{piece}.json" for piece in commands}
        if not self._resume:
            for file in files.values():
                file.unlink(missing_ok=True)
        for piece, command in commands.items():
            if not files[piece].exists():
                unfinished = files[piece].with_suffix(".part")
                self._ranks(ranks, command, unfinished)
                unfinished.rename(files[piece])
        return {piece: json.loads(file.read_text(encoding="utf-8")) for piece, file in files.items()}

    def _ranks(self, ranks: int, command: list[str], out: Path) -> dict[str, Any]:
        out.unlink(missing_ok=True)
        mpirun = str(Path(sys.executable).parent / "mpirun")
        self._job([mpirun, "-n", str(ranks), *command, str(out)])
        record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return record

    def _job(self, command: list[str]) -> None:
        with Job(command, timeout_s=900, environ=child_environ(OMP_NUM_THREADS="1")) as job:
            for line in job.lines():
                print(line, flush=True)
        if job.status != 0:
            raise subprocess.CalledProcessError(job.status or 1, command)


class Part:
    """A part: how it is measured, and the claims that it records."""

    def __init__(self, measure: Callable[[Bench], None], *ids: str) -> None:
        self.measure, self.ids = measure, ids


PARTS = {
    "two": Part(Bench.two, "two_ranks_worst", "two_ranks_mean", "registered_mean", "registered_limit"),
    "engine": Part(Bench.engine, "engine_ring", "engine_exchange"),
    "latency": Part(Bench.latency, "call_overhead", "prepared_overhead", "call_against_mpi4py"),
    "torch": Part(Bench.torch, "torch_latency", "torch_against_gloo"),
    "four": Part(Bench.four, "four_ranks_worst", "four_ranks_mean"),
    "eight": Part(Bench.eight, "eight_ranks_worst", "eight_ranks_mean"),
    "cliffs": Part(Bench.cliffs, "cliffs"),
    "idle": Part(Bench.idle, "idle_rank"),
    "others": Part(Bench.others, "other_collectives_worst", "other_collectives_mean"),
    "lab": Part(
        Bench.lab, "tcp_throughput", "tcp_latency", "tcp_line_rate",
        *(f"hierarchical_{hosts}x2_{what}" for hosts in (2, 4) for what in ("bytes", "time", "ring")),
    ),
    "half": Part(Bench.half, "half_types_large", "half_types_kernel", "half_types_error"),
}  # fmt: skip


def _from(ratios: Mapping[tuple[str, int, str], Ratio], size: int) -> dict[tuple[str, int, str], Ratio]:
    return {key: ratio for key, ratio in ratios.items() if key[1] >= size}


def _plain(samples: Mapping[Any, Any]) -> dict[str, Any]:
    return {key if isinstance(key, str) else " ".join(map(str, key)): value for key, value in samples.items()}


def _versions(record: Mapping[str, Any]) -> str:
    return ", ".join(cpu_tables.version(record, name) for name in BASELINES if name in record["versions"])


def _in_turns(samples: int, **take: Callable[[int], list[float]]) -> dict[str, list[float]]:
    """Return the samples of each, taken in turns of both orders."""
    from hccl_py.bench.run import turns

    found: dict[str, list[float]] = {name: [] for name in take}
    for name, share in turns(list(take), samples):
        found[name] += take[name](share)
    return found


def _chosen(text: str) -> Iterator[str]:
    for name in text.split(",") if text else PARTS:
        if name not in PARTS:
            raise SystemExit(f"PART={text}: no part {name}; known: {', '.join(PARTS)}")
        yield name


def main() -> int:
    """Measure the parts and judge the claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="", help="some of " + ",".join(PARTS))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tables", action="store_true", help="write the tables of docs/BENCHMARKS.md afterwards")
    parser.add_argument("--resume", action="store_true", help="take what a run that was cut off has measured")
    parser.add_argument("--only-tables", action="store_true", help="measure nothing")
    options = parser.parse_args()
    parts = list(_chosen(options.part))
    status = 0
    if not options.only_tables:
        native_pair.build()
        claims = Claims("cpu", [id_ for part in parts for id_ in PARTS[part].ids])
        bench = Bench(claims, options.samples, options.resume)
        for part in parts:
            try:
                bench.run(part)
            except (subprocess.CalledProcessError, KeyError, OSError, HcclError) as error:
                print(f"== {part} FAILED: {type(error).__name__}: {error}", flush=True)
        status = claims.finish(OUT / "cpu.json")
    if options.tables or options.only_tables:
        cpu_tables.write(OUT)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
