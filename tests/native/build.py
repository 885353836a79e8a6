"""Builds the C++ tests under sanitizers: `build.py address thread`. Two at a time wait for each other.

`make test` starts it in the background: the compiler works while other tests wait. test_native.py does the rest.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent
BUILD_ROOT = SOURCE.parents[1] / "build"
TARGETS = {"address": "all", "thread": "hccl_py_thread_tests"}
COMMAND_TIMEOUT_S = 1500


def find_tool(name: str) -> str | None:
    """Path of an executable beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def obstacle() -> str:
    """Why nothing can be built here; empty if it can."""
    if find_tool("cmake") is None:
        return "no cmake beside this Python or on PATH"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        return "no C++ compiler on PATH"
    return ""


def run(*command: str) -> str:
    """Output of a command that must succeed. Raises AssertionError with the output if it does not."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout


def build(sanitizer: str) -> Path:
    """Compile what has changed; return the folder. One process at a time."""
    folder = BUILD_ROOT / f"native-tests-{sanitizer}"
    folder.mkdir(parents=True, exist_ok=True)
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    assert cmake is not None, obstacle()
    options = [f"-DHCCL_PY_SANITIZE={sanitizer}"]
    if ninja is not None and not (folder / "Makefile").exists():
        options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    with (BUILD_ROOT / "native-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(cmake, "-S", str(SOURCE), "-B", str(folder), *options)
        run(cmake, "--build", str(folder), "--target", TARGETS[sanitizer], "--parallel", "2")
    return folder


if __name__ == "__main__":
    if not obstacle():
        for name in sys.argv[1:]:
            build(name)
