"""Measures all_reduce on this machine against gloo, Open MPI and MPICH; fills in README.md and docs/BENCHMARKS.md.

Run on an idle machine after ``make install``::

    .venv/bin/python tests/perf/all_reduce_table.py            # a quarter of an hour; --quick to try it

Each run compares hccl_py with its baselines in one job, the libraries taking turns (ABBA) at every size. The raw
samples are in out/perf/.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hccl_py.core.env import child_environ
from hccl_py.launch import Job

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- table: tests/perf/all_reduce_table.py -->", "<!-- end of table -->"
RUNS = (  # environment, ranks, baselines
    (".venv", 2, ("gloo", "openmpi")),
    (".venv", 4, ("gloo", "openmpi")),
    (".venv-mpich", 2, ("mpich",)),
    (".venv-mpich", 4, ("mpich",)),
)
FORMS = ("out_of_place", "in_place")


def measure(venv: str, ranks: int, baselines: Sequence[str], largest: str) -> dict[str, Any]:
    """Run the benchmark once; return its record."""
    out = ROOT / "out" / "perf" / f"all_reduce_{venv.lstrip('.')}_{ranks}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    bench = [str(ROOT / venv / "bin" / "hccl-py"), "bench", "all_reduce", "-b", "8", "-e", largest, "-f", "8"]
    command = [
        str(ROOT / venv / "bin" / "mpirun"),
        "-n",
        str(ranks),
        *bench,
        "--compare",
        ",".join(baselines),
        "--json",
        str(out),
    ]
    with Job(command, timeout_s=1800, environ=child_environ(OMP_NUM_THREADS="1")) as job:
        for line in job.lines():
            print(line, flush=True)
    if job.status != 0:
        raise SystemExit(f"the benchmark failed:\n{job.output}")
    record: dict[str, Any] = json.loads(out.read_text())
    return record


def times_s(record: dict[str, Any], form: str) -> dict[int, dict[str, float]]:
    """``{size in bytes: {library: median seconds}}`` of one form."""
    table: dict[int, dict[str, float]] = {}
    for row in record["rows"]:
        if "time_s" in row[form]:
            table.setdefault(row["size_bytes"], {})[row["library"]] = row[form]["time_s"]
    return table


def markdown(record: dict[str, Any]) -> str:
    """One table: a line per size, a column per library, both forms; losses of hccl_py in bold."""
    libraries = ["hccl_py", *(name for name in record["versions"] if name in ("gloo", "openmpi", "mpich"))]
    head = ["size", *(f"{name} {form}" for form in ("out of place", "in place") for name in libraries)]
    lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    tables = {form: times_s(record, form) for form in FORMS}
    for size in tables["in_place"]:
        cells = [_bytes(size)]
        for form in FORMS:
            row = tables[form][size]
            best = min(value for name, value in row.items() if name != "hccl_py")
            for name in libraries:
                text = _time(row[name]) if name in row else "-"
                cells.append(f"**{text}**" if name == "hccl_py" and row[name] > best else text)
        lines.append("| " + " | ".join(cells) + " |")
    for name in libraries[1:]:
        ratios = [row[name] / row["hccl_py"] for form in FORMS for row in tables[form].values() if name in row]
        mean, faster = statistics.geometric_mean(ratios), sum(ratio > 1 for ratio in ratios)
        lines.append(f"\nAgainst {name}: {mean:.2f}x as fast (geometric mean), faster at {faster} of {len(ratios)}.")
    return "\n".join(lines)


def caption(record: dict[str, Any]) -> str:
    """What was run, where and when."""
    machine, ranks, known = record["machine"], record["ranks"], ("gloo", "openmpi", "mpich")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if name in known)
    command = " ".join(Path(word).name if "/" in word else word for word in record["command"].split())
    return (
        f"all_reduce, float32 sum, {ranks} ranks on {machine['cores_usable']} cores of one host "
        f"({machine['processor']}, {machine['system']}), {record['date'][:10]}; time per call, median of "
        f"{record['samples']} samples; {versions}; losses in bold. `mpirun -n {ranks} {command}`"
    )


def replace_between(path: Path, text: str) -> None:
    """Put ``text`` between the marks of a page."""
    page = path.read_text(encoding="utf-8")
    before, mark, rest = page.partition(BEGIN)
    if not mark or END not in rest:
        raise SystemExit(f"{path} has no place for the table: {BEGIN} ... {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _bytes(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def main() -> None:
    """Measure, and write both pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only; the pages are left alone")
    quick = parser.parse_args().quick
    records = [measure(*run, largest="64K" if quick else "64M") for run in RUNS]
    sections = [f"{caption(record)}\n\n{markdown(record)}" for record in records]
    if quick:
        print("\n\n".join(sections))
        return
    replace_between(ROOT / "README.md", sections[0])
    replace_between(ROOT / "docs" / "BENCHMARKS.md", "\n\n".join(sections))


if __name__ == "__main__":
    main()
