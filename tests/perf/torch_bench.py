"""Measure what is asked for of torch's backend, mpi4py's face and the contract check: ``make bench-torch``.

``--part=contract,rows`` for some; ``--demos=FOLDER``: demo/ of mpi4py's sources, for the part ``osu`` (its results are
kept; without a folder the part is left out). ``files`` runs torch's own test files on the wheel's file for at most 140
seconds; run it again until tests/perf/torch_files.py says that all are done. Each part takes under 150 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE)]

from claims import OUT, Claims  # noqa: E402
from native_pair import PROGRAM, configure  # noqa: E402
from osu_demos import all_demos  # noqa: E402

COMMAND = "make bench-torch"
PARTS: dict[str, tuple[str, ...]] = {
    "files": ("files",),
    "osu": ("osu",),
    "rows": ("gloo_rows",),
    "properties": ("random_programs", "random_mismatches"),
    "contract": ("contract_shm", "contract_tcp"),
}
ROUNDS = 15  # runs of each program, in turns


def files(claims: Claims, _: Path | None) -> None:
    """torch's own test files, by gloo and by hccl_py."""
    command = [sys.executable, str(HERE / "torch_files.py"), "--limit", "140"]
    subprocess.run(command, cwd=ROOT, timeout=240, check=False)
    found = json.loads((OUT / "torch_files.json").read_text(encoding="utf-8"))
    if not found["complete"]:
        return
    claims.record(
        "files", found["lost_without_reason"], command=f"{COMMAND} PART=files", n=found["gloo_passes"],
        samples={key: [found[key]] for key in ("gloo_passes", "both_pass", "won", "lost_with_reason")},
        baseline=f"gloo in the same run passes {found['gloo_passes']}, of these hccl_py {found['both_pass']}; "
        f"the reasons of {found['lost_with_reason']} stand in torch_files.toml",
    )  # fmt: skip


def osu(claims: Claims, demos: Path | None) -> None:
    """mpi4py's own benchmarks."""
    if demos is None:
        print("osu: left out; --demos=FOLDER (make: DEMOS=FOLDER) names demo/ of mpi4py's sources")
        return
    outcomes = all_demos(demos)
    for outcome in outcomes:
        print(f"{outcome.name:16} {'passes' if outcome.passed else 'does not: ' + outcome.why}, {outcome.gain:.2f}")
    gains = ", ".join(f"{outcome.name.removeprefix('osu_')} {outcome.gain:.2f}" for outcome in outcomes)
    claims.record(
        "osu", sum(outcome.passed for outcome in outcomes) / len(outcomes), command=f"{COMMAND} PART=osu DEMOS=FOLDER",
        n=len(outcomes), samples={outcome.name: [outcome.gain] for outcome in outcomes},
        baseline=f"mpi4py in the same run; its time / ours: {gains}",
    )  # fmt: skip


def _pytest(*arguments: str) -> tuple[int, int]:
    """Tests that passed, and that did not."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    if done.returncode != 0:
        print(done.stdout[-4000:])
    bad = counts.get("failed", 0) + counts.get("error", 0)
    return counts.get("passed", 0), max(bad, int(done.returncode != 0))


def rows(claims: Claims, _: Path | None) -> None:
    """The rows of what was measured on gloo, as tests."""
    passed, failed = _pytest("tests/multiproc/torch/test_api.py", "-k", "what_gloo_gets_wrong")
    claims.record(
        "gloo_rows", failed, command=f"{COMMAND} PART=rows", n=passed + failed, samples=[failed],
        baseline="gloo, torch 2.13: docs/COMPATIBILITY.md",
    )  # fmt: skip


def properties(claims: Claims, _: Path | None) -> None:
    """Random programs against the oracle, random mismatches."""
    for id_, word in (("random_programs", "random_programs"), ("random_mismatches", "random_mismatches")):
        passed, failed = _pytest("tests/conformance/test_properties.py", "-k", word)
        claims.record(
            id_, failed, command=f"{COMMAND} PART=properties", n=passed + failed, samples=[failed], baseline="-"
        )


def _contract(kind: str, over: str, calls: int) -> float:
    """Nanoseconds a call, the median of a run of the program."""
    command = [str(PROGRAM.with_name(f"bench_contract_{kind}")), over, "5", str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return median(map(float, done.stdout.split()))


def contract(claims: Claims, _: Path | None) -> None:
    """All-reduces over the engine with and without the check, in turns."""
    configure("bench_contract")
    for id_, over, calls in (("contract_shm", "shm", 20_000), ("contract_tcp", "tcp", 1_000)):
        samples: dict[str, list[float]] = {"checked": [], "unchecked": []}
        for turn in range(ROUNDS):
            for kind in sorted(samples, reverse=turn % 2 == 1):
                samples[kind].append(_contract(kind, over, calls))
        pairs = list(zip(samples["checked"], samples["unchecked"], strict=True))
        cost = median(a - b for a, b in pairs) if over == "shm" else median(a / b - 1 for a, b in pairs)
        without = median(samples["unchecked"])
        claims.record(
            id_, cost, command=f"{COMMAND} PART=contract", n=ROUNDS, samples=samples,
            baseline=f"the engine compiled without the check, {without:.0f} ns a call; with it "
            f"{median(samples['checked']):.0f} ns",
        )  # fmt: skip


def main() -> int:
    """Measure the parts that are asked for; 1 if a claim is missed or missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="", help=f"some of {', '.join(PARTS)}; empty: all")
    parser.add_argument("--demos", default="", help="demo/ of mpi4py's sources")
    options = parser.parse_args()
    wanted = [part for part in options.part.split(",") if part] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    claims = Claims("torch", [id_ for part in wanted for id_ in PARTS[part]])
    demos = Path(options.demos) if options.demos else None
    for part in wanted:
        {"files": files, "osu": osu, "rows": rows, "properties": properties, "contract": contract}[part](claims, demos)
    return claims.finish(OUT / "torch.json")


if __name__ == "__main__":
    raise SystemExit(main())
