"""The tables and pictures of README.md and docs/BENCHMARKS.md, from the records that cpu_bench.py left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import load_wanted
from pages import bytes_text, replace_between

from hccl_py.bench import plot
from hccl_py.bench.compare import Ratio
from hccl_py.bench.metrics import geometric_mean

ROOT = Path(__file__).parents[2]
BENCHMARKS, README = ROOT / "docs" / "BENCHMARKS.md", ROOT / "README.md"
BEGIN = "<!-- table: make bench-cpu -->"
BASELINES = ("openmpi", "mpich", "gloo")
FORMS = {"in_place": "in place", "out_of_place": "out of place"}
RECORDS = {"two2": 2, "four_ranks": 4, "eight_ranks": 8}


def version(record: Mapping[str, Any], name: str) -> str:
    """Return a baseline's name and version, short: "Open MPI 5.0.11"."""
    said = str(record["versions"][name])
    number = re.search(r"\d+\.\d+(\.\d+)?", said)
    spelt = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "gloo (torch"}[name]
    return f"{spelt} {number[0] if number else said}" + (")" if name == "gloo" else "")


def times_s(record: Mapping[str, Any], form: str, case: str = "all_reduce") -> dict[int, dict[str, Mapping[str, Any]]]:
    """Return ``{size in bytes: {library: cell}}`` of one form of a collective."""
    table: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in record["rows"]:
        if row["collective"] == case and "time_s" in row[form]:
            table.setdefault(row["size_bytes"], {})[row["library"]] = row[form]
    return table


def all_reduce_table(record: Mapping[str, Any], forms: Sequence[str] = tuple(FORMS)) -> str:
    """One line a size: ours, the baselines, and the ratio to the best of them with its limits; losses in bold."""
    known = {row["library"] for row in record["rows"]}
    libraries = [name for name in ("hccl_py", "registered", *BASELINES, "limit") if name in known]
    parts = []
    for form in forms:
        head = [f"{FORMS[form]}", *libraries, "time / best (95% limits)"]
        lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
        table = times_s(record, form)
        for size, cells in sorted(table.items()):
            there = [name for name in BASELINES if name in cells]
            best = min(there, key=lambda name: cells[name]["time_s"])
            ratio = Ratio.of(cells["hccl_py"]["samples_s"], cells[best]["samples_s"])
            shown = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            times = [_time(cells[name]["time_s"]) if name in cells else "-" for name in libraries]
            shown = f"**{shown}**" if ratio.median > 1 else shown
            lines.append(f"| {bytes_text(size)} | {' | '.join(times)} | {shown} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def others_table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line a collective and number of ranks: mean and worst ratio to the best baseline."""
    lines = [
        "| collective | ranks | best baseline's time / ours (geometric mean) | slower at (time / best) |",
        "| --- | ---: | ---: | --- |",
    ]
    for record in records:
        for case in dict.fromkeys(row["collective"] for row in record["rows"]):
            ratios = {}
            for form in FORMS:
                for size, cells in times_s(record, form, case).items():
                    there = [name for name in BASELINES if name in cells]
                    if "hccl_py" in cells and there:
                        best = min(there, key=lambda name: cells[name]["time_s"])
                        ratios[size, form] = Ratio.of(cells["hccl_py"]["samples_s"], cells[best]["samples_s"]).median
            slower = [
                f"{bytes_text(size)} {FORMS[form]} ({ratio:.2f})" for (size, form), ratio in ratios.items() if ratio > 1
            ]
            mean = geometric_mean([1 / ratio for ratio in ratios.values()])
            lines.append(f"| {case} | {record['ranks']} | {mean:.2f}x | {', '.join(slower) or 'no size'} |")
    return "\n".join(lines)


def claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    """One line a claim: what was wanted, what was measured."""
    lines = ["| claim | wanted | measured | met |", "| --- | --- | ---: | --- |"]
    for claim in claims:
        wanted = load_wanted()["cpu"][claim["id"]]
        measured = "not measured" if claim["value"] is None else f"{claim['value']:.3g} {claim['unit']}"
        met = "yes" if claim["met"] else "**no**"
        lines.append(f"| {claim['name']} | {wanted.sense} {wanted.bound:g} | {measured} | {met} |")
    return "\n".join(lines)


def caption(record: Mapping[str, Any]) -> str:
    """What was run, where and when."""
    machine = record["machine"]
    versions = ", ".join(version(record, name) for name in BASELINES if name in record["versions"])
    return (
        f"all_reduce, float32 sum, {record['ranks']} ranks on {machine['cores_usable']} cores of one host "
        f"({machine['processor']}, {machine['system']}), {record['date'][:10]}; median time per call of "
        f"{record['samples']} samples; {versions}; sizes at which the best baseline is quicker in bold. "
        "`make bench-cpu TABLES=1`"
    )


def write(out: Path) -> None:
    """Write both pages, the pictures and docs/bench/cpu.json from what is in ``out``."""
    bench = ROOT / "docs" / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    sections = []
    if (out / "cpu.json").exists():
        text = (out / "cpu.json").read_text(encoding="utf-8")
        (bench / "cpu.json").write_text(text, encoding="utf-8")
        sections.append(claims_table(json.loads(text)))
    records = {path.stem: json.loads(path.read_text("utf-8")) for path in (out / "cpu" / "records").glob("*.json")}
    for name, ranks in RECORDS.items():
        if name in records:
            picture = bench / f"all_reduce_{ranks}.png"
            plot.draw(records[name], picture)
            drawn = f"![{ranks} ranks: time against size](bench/{picture.name})"
            sections.append(
                f"### {ranks} ranks\n\n{caption(records[name])}\n\n{all_reduce_table(records[name])}\n\n{drawn}"
            )
    others = [records[name] for name in ("others2", "others4") if name in records]
    if others:
        sections.append(f"### The other collectives\n\n8 B to 16 MiB, as above.\n\n{others_table(others)}")
    replace_between(BENCHMARKS, BEGIN, "\n\n".join(sections))
    if "two2" in records:
        replace_between(
            README, BEGIN, f"{caption(records['two2'])}\n\n{all_reduce_table(records['two2'], ('in_place',))}"
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
