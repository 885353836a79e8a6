"""PyTorch's own distributed test files over gloo and over hccl_py in turn: what gloo passes, hccl_py must pass.

torch's wheel brings one of them (``distributed_test``); the others come from a source of torch somewhere else::

    pip install expecttest                                        # torch's test cases need it
    python tests/perf/torch_files.py                              # the file of the wheel: ten minutes on two cores
    python tests/perf/torch_files.py FOLDER/test/distributed      # and those below that folder
    python tests/perf/torch_files.py FOLDER/... --limit 140       # some; run it again until it says that all are done
    python tests/perf/torch_files.py --fresh                      # forget what earlier runs have found

Writes out/bench/torch_files.json and prints a table; exits with 1 if a test that gloo passes fails over hccl_py and
torch_files.toml gives no reason.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from claims import OUT, tomllib
from rich.console import Console
from rich.table import Table

from hccl_py.bench.report import machine
from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError

HERE = Path(__file__).parent
INSIDE = HERE / "torch_files_inside.py"
RECORDS = OUT / "torch_files"
BACKENDS = ("gloo", "hccl_py")
Results = dict[str, dict[str, Any]]  # by name of the test


def reasons() -> dict[str, str]:
    """Why a test that gloo passes cannot pass, by its last name."""
    table: dict[str, str] = tomllib.loads((HERE / "torch_files.toml").read_text(encoding="utf-8"))["cannot_pass"]
    return table


def files() -> tuple[str, ...]:
    """The files below torch's test/distributed that take a backend or use gloo by name."""
    return tuple(tomllib.loads((HERE / "torch_files.toml").read_text(encoding="utf-8"))["files"])


def run_file(file: str, backend: str, known: Results, test_s: float, deadline_s: float) -> bool:
    """Run the tests of ``file`` that ``known`` lacks, into ``known``; True if all are done.

    Args:
        test_s: after which torch's own test case gives a test up.
    """
    while time.monotonic() < deadline_s:
        before = len(known)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as done:
            done.write("\n".join(known))
            done.flush()
            command = [sys.executable, str(INSIDE), file, backend, "--done", done.name]
            ended = _child(command, known, test_s, deadline_s)
        if ended:
            return True
        if len(known) == before:
            return False  # nothing came, or the time is over
    return False


def _child(command: list[str], known: Results, test_s: float, deadline_s: float) -> bool:
    """Run one child; True if it came to its end."""
    environ = {**child_environ(), "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(int(test_s)), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, env=environ, start_new_session=True)
        try:
            status: int | None = child.wait(max(deadline_s - time.monotonic(), 1.0))
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        said.seek(0)
        last = ""
        for line in said:
            if line.startswith("RESULT "):
                result = json.loads(line.removeprefix("RESULT "))
                last = result["test"]
                known[last] = result
        if status is None and last and known[last]["outcome"] == "did not end":
            del known[last]  # our own time was over, not that of the test
    return status == 0


def compare(gloo: Results, ours: Results) -> dict[str, Any]:
    """What the two have in common, and what gloo has alone."""
    passed = [name for name, result in gloo.items() if result["outcome"] == "passed"]
    both = [name for name in passed if ours.get(name, {}).get("outcome") == "passed"]
    better = [name for name, result in ours.items() if result["outcome"] == "passed" and name not in set(passed)]
    why = reasons()
    lost = [name for name in passed if name not in set(both)]
    return {
        "gloo": dict(Counter(result["outcome"] for result in gloo.values())),
        "hccl_py": dict(Counter(result["outcome"] for result in ours.values())),
        "gloo_passes": len(passed),
        "both_pass": len(both),
        "lost": {name: why.get(name.rsplit(".", 1)[-1], "") for name in lost},
        "won": better,
    }


def main() -> int:
    """Run, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="torch's test/distributed")
    parser.add_argument("--files", default="", help="names or parts of names, with commas")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which to stop, with results kept")
    parser.add_argument("--test-limit", type=float, default=20.0, help="seconds for one test")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        raise ConfigError("torch's test cases need expecttest: pip install expecttest")
    deadline_s = time.monotonic() + options.limit
    RECORDS.mkdir(parents=True, exist_ok=True)
    paths = {"distributed_test": "distributed_test"}
    if options.folder is not None:
        paths |= {name: str(options.folder / name) for name in files() if (options.folder / name).is_file()}
    paths = {name: path for name, path in paths.items() if any(part in name for part in options.files.split(","))}
    table: dict[str, Any] = {}
    complete = True
    for name, path in paths.items():
        found: dict[str, Results] = {}
        for backend in BACKENDS:
            record = RECORDS / f"{name.replace('/', '.')}.{backend}.json"
            stored: dict[str, Any] = json.loads(record.read_text()) if record.exists() and not options.fresh else {}
            found[backend] = stored.get("tests", {})
            if not stored.get("complete"):
                done = run_file(path, backend, found[backend], options.test_limit, deadline_s)
                record.write_text(json.dumps({"complete": done, "tests": found[backend]}, indent=1))
                complete = complete and done
        table[name] = compare(found["gloo"], found["hccl_py"])
    return report(table, complete)


def report(table: dict[str, Any], complete: bool) -> int:
    """Write and print; the exit status."""
    lost = {f"{name}: {test}": why for name, row in table.items() for test, why in row["lost"].items()}
    answer = {
        "torch": torch.__version__,
        "machine": machine(),
        "complete": complete,
        "gloo_passes": sum(row["gloo_passes"] for row in table.values()),
        "both_pass": sum(row["both_pass"] for row in table.values()),
        "won": sum(len(row["won"]) for row in table.values()),
        "lost_with_reason": sum(bool(why) for why in lost.values()),
        "lost_without_reason": sum(not why for why in lost.values()),
        "files": table,
    }
    (OUT / "torch_files.json").write_text(json.dumps(answer, indent=1))
    view = Table("file", "gloo passes", "of these hccl_py", "only hccl_py", "with a reason", "without")
    for name, row in table.items():
        with_reason = sum(bool(why) for why in row["lost"].values())
        counts = (row["gloo_passes"], row["both_pass"], len(row["won"]), with_reason, len(row["lost"]) - with_reason)
        view.add_row(name, *map(str, counts))
    console = Console()
    console.print(view)
    for test, why in lost.items():
        console.print(f"{test}: {why or 'NO REASON'}")
    console.print("complete" if complete else "NOT complete: run it again, it goes on where it stopped")
    return 0 if complete and not answer["lost_without_reason"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
