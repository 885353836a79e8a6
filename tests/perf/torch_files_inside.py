"""One of PyTorch's own distributed test files over one backend; prints a line of JSON for each test.

Started by torch_files.py. Ranks are forked, not spawned: each test starts in milliseconds instead of seconds. Where a
test asks torch for a group of gloo and hccl_py is to be tested, it gets one of hccl_py; a test in which no rank asked
for a group is reported as one that says nothing about a backend.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

import hccl_py.torch  # noqa: F401  # registers the backend

WHEEL = "distributed_test"  # the one that torch's wheel brings along
GROUPS = "HCCL_TEST_GROUPS"  # the file in which ranks note that they asked for a group


def note_group() -> None:
    """Note, for the parent of this rank, that a group was asked for by the name of its backend."""
    with open(os.environ[GROUPS], "a", encoding="ascii") as file:
        file.write(".")


def replaced(backend: Any) -> Any:
    """``backend`` with hccl_py in the place of gloo."""
    return re.sub(r"\bgloo\b", "hccl_py", str(backend)) if backend is not None else None


def replace_calls(swap: bool) -> None:
    """Let ``init_process_group`` and ``new_group`` note their calls and, for ``swap``, take hccl_py for gloo."""
    c10d = dist.distributed_c10d
    for name in ("init_process_group", "new_group", "split_group"):
        inner = getattr(c10d, name)

        def call(*arguments: Any, _inner: Callable[..., Any] = inner, _name: str = name, **named: Any) -> Any:
            named_backend = arguments[0] if _name == "init_process_group" and arguments else named.get("backend")
            if named_backend is None or re.search(r"\b(gloo|hccl_py)\b", str(named_backend)):
                note_group()
            if swap and named.get("backend") is not None:
                named["backend"] = replaced(named["backend"])
            if swap and _name == "init_process_group" and arguments:
                arguments = (replaced(arguments[0]), *arguments[1:])
            return _inner(*arguments, **named)

        for module in (dist, c10d):
            setattr(module, name, call)
    if swap:
        dist.Backend.default_device_backend_map["cpu"] = "hccl_py"


def fork_ranks() -> None:
    """Let torch's test cases fork their ranks."""
    from torch.testing._internal import common_distributed

    case = common_distributed.MultiProcessTestCase

    def fork(self: Any) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    case._spawn_processes = fork  # type: ignore[method-assign]


class Name(str):
    """A backend's name for which a test does all that it does for gloo."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def wheel_cases(backend: str) -> ModuleType:
    """The cases of the file in the wheel, which is made to be subclassed and takes the name of a backend."""
    source = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    source.BACKEND = Name(backend)

    class TestDistBackendWithFork(source.TestDistBackend, source.DistributedTest._DistTestBase):  # type: ignore
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    module = ModuleType(WHEEL)
    TestDistBackendWithFork.__module__ = WHEEL
    TestDistBackendWithFork.__qualname__ = "TestDistBackendWithFork"
    module.TestDistBackendWithFork = TestDistBackendWithFork  # type: ignore[attr-defined]
    sys.modules[WHEEL] = module
    return module


def load(path: str, backend: str) -> ModuleType:
    """The module of a test file."""
    if path == WHEEL:
        return wheel_cases(backend)
    file = Path(path)
    sys.path[:0] = [str(file.parent), *(str(folder) for folder in file.parents if folder.name == "test")]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def cases(suite: Any) -> Iterator[unittest.TestCase]:
    """The single tests of a suite."""
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from cases(item)


def run_one(case: unittest.TestCase) -> dict[str, Any]:
    """Run a test; what came of it."""
    groups = Path(os.environ[GROUPS])
    groups.write_text("")
    result = unittest.TestResult()
    begin_s = time.monotonic()
    case.run(result)
    problems = [*result.errors, *result.failures]
    outcome = "failed" if problems else "skipped" if result.skipped else "passed"
    if not groups.read_text():
        outcome = "no group" if outcome == "passed" else outcome
    said = problems[0][1] if problems else result.skipped[0][1] if result.skipped else ""
    return {
        "test": case.id(),
        "outcome": outcome,
        "seconds": round(time.monotonic() - begin_s, 2),
        "said": said[-3000:],
    }


def main() -> None:
    """Run the tests of one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("backend")
    parser.add_argument("--match", default="")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--done", type=Path, help="a file with the names of tests that need not run")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    folder = tempfile.mkdtemp(prefix="torch_files_")
    os.environ.update(
        {"TEMP_DIR": folder, "WORLD_SIZE": "3", "BACKEND": "gloo", GROUPS: f"{folder}/groups", "OMP_NUM_THREADS": "1"}
    )
    torch.set_num_threads(1)
    replace_calls(swap=options.backend == "hccl_py")
    fork_ranks()
    found = list(cases(unittest.defaultTestLoader.loadTestsFromModule(load(options.file, options.backend))))
    done = set() if options.done is None else set(options.done.read_text().split())
    for index, case in enumerate(found):
        if index % parts != part or not re.search(options.match, case.id()):
            continue
        if case.id() in done:
            continue
        print("RESULT " + json.dumps({"test": case.id(), "outcome": "did not end", "seconds": 0, "said": ""}))
        sys.stdout.flush()
        print("RESULT " + json.dumps(run_one(case)), flush=True)


if __name__ == "__main__":
    main()
