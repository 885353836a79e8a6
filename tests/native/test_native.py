"""Builds the C++ tests of the engine and runs them: all under ASan + UBSan, and those with threads under TSan.

The build folders stay in build/, so that only what has changed is compiled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent
BUILD_ROOT = SOURCE.parents[1] / "build"
COMMAND_TIMEOUT_S = 1500


def find_tool(name: str) -> str | None:
    """Path of an executable beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command: str) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def cmake() -> str:
    """Path of cmake; skips where nothing can be built."""
    path = find_tool("cmake")
    if path is None:
        pytest.skip("no cmake beside this Python or on PATH")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("no C++ compiler on PATH")
    return path


@pytest.mark.timeout(4 * COMMAND_TIMEOUT_S)
@pytest.mark.parametrize(
    ("sanitizer", "target", "selection"),
    [("address", "all", []), ("thread", "hccl_py_thread_tests", ["-L", "threads"])],
    ids=["address", "thread"],
)
def test_native_tests_pass(cmake: str, sanitizer: str, target: str, selection: list[str]) -> None:
    build = BUILD_ROOT / f"native-tests-{sanitizer}"
    ninja = find_tool("ninja")
    generator = (
        [] if ninja is None or (build / "Makefile").exists() else ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    )
    run(cmake, "-S", str(SOURCE), "-B", str(build), f"-DHCCL_PY_SANITIZE={sanitizer}", *generator)
    run(cmake, "--build", str(build), "--target", target, "--parallel", "2")
    ctest = str(Path(cmake).with_name("ctest"))
    report = run(ctest, "--test-dir", str(build), "--output-on-failure", "--no-tests=error", *selection)
    assert "100% tests passed" in report


def test_run_rejects_a_command_that_fails() -> None:
    with pytest.raises(AssertionError, match="exited with 3"):
        run(sys.executable, "-c", "raise SystemExit(3)")
