"""mpi4py's own benchmarks (demo/osu_*.py of its sources) with only the import changed, beside mpi4py in the same run.

``osu_demos.py FOLDER`` runs each file of FOLDER on 2 ranks, once over mpi4py as it is and once with its import of MPI
replaced, with fewer iterations so that all together take two minutes; prints the list of what passes and how the times
compare. None of their code is in this repository: ``pip download mpi4py --no-binary :all:`` has it, or its git.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError
from hccl_py.launch import mpirun, run

IMPORT = re.compile(r"^from mpi4py import MPI$", re.MULTILINE)
LIMIT_S = 60.0
_FEWER = """
import runpy, sys
program = runpy.run_path(sys.argv[1])
name = sys.argv[2]
words = program[name].__code__.co_varnames[: program[name].__code__.co_argcount]
few = {"skip": 5, "loop": 100, "skip_small": 5, "loop_small": 100, "skip_large": 2, "loop_large": 20}
program[name](**{word: value for word, value in few.items() if word in words})
"""


class Outcome(NamedTuple):
    """One file: what it printed, by message size in bytes (0 where it has no sizes); or why it printed nothing."""

    name: str
    mpi4py: dict[int, float]
    ours: dict[int, float]
    why: str

    @property
    def passed(self) -> bool:
        """True if it ran to the end and printed what it prints over mpi4py."""
        return not self.why and bool(self.ours) and self.ours.keys() == self.mpi4py.keys()

    @property
    def gain(self) -> float:
        """mpi4py's time over ours, geometric mean over the sizes; of bandwidths ours over mpi4py's."""
        if not self.passed:
            return math.nan
        pairs = [(self.mpi4py[size], self.ours[size]) for size in self.ours]
        flip = self.name.endswith("bw")
        return geometric_mean((b / a if flip else a / b) for a, b in pairs if a > 0 and b > 0)


def numbers(text: str) -> dict[int, float]:
    """What a benchmark printed, by size."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words and not line.startswith("#") and all(re.fullmatch(r"[0-9.]+", word) for word in words):
            found[int(words[0]) if len(words) > 1 else 0] = float(words[-1])
    return found


def attempt(file: Path, folder: Path) -> Outcome:
    """Run one file both ways."""
    text = file.read_text(encoding="utf-8")
    if len(IMPORT.findall(text)) != 1:
        raise ConfigError(f"{file}: it does not import MPI from mpi4py in a line of its own")
    moved, starter = folder / file.name, folder / "fewer.py"
    moved.write_text(IMPORT.sub("from hccl_py import MPI", text), encoding="utf-8")
    starter.write_text(_FEWER, encoding="utf-8")
    outputs = []
    for program in (file, moved):
        job = run(mpirun(2, [sys.executable, str(starter), str(program), file.stem]), LIMIT_S, child_environ())
        if job.status != 0:
            last = (job.output.strip().splitlines() or ["nothing was printed"])[-1]
            return Outcome(file.stem, {}, {}, f"{'over mpi4py' if program is file else ''} status {job.status}: {last}")
        outputs.append(numbers(job.output))
    return Outcome(file.stem, *outputs, "")


def all_demos(folder: Path) -> list[Outcome]:
    """Every osu_*.py of a folder. Raises ConfigError if there are none."""
    files = sorted(folder.glob("osu_*.py"))
    if not files:
        raise ConfigError(f"{folder}: no osu_*.py; give the folder demo/ of mpi4py's sources")
    with tempfile.TemporaryDirectory() as scratch:
        return [attempt(file, Path(scratch)) for file in files]


def main() -> int:
    """Print the list; 1 if a file did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    outcomes = all_demos(parser.parse_args().folder)
    print("| benchmark | passes | mpi4py's time / ours (bandwidth: ours / mpi4py's), geometric mean |")
    print("| --- | --- | --- |")
    for outcome in outcomes:
        print(f"| {outcome.name} | {'yes' if outcome.passed else 'no: ' + outcome.why} | {outcome.gain:.2f} |")
    print(f"{sum(outcome.passed for outcome in outcomes)} of {len(outcomes)} pass with only the import changed")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
