"""The committed types of the native module are those that it has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMMITTED = Path(__file__).parents[2] / "hccl_py" / "_native.pyi"


def generated(folder: Path) -> str:
    """What nanobind says of the module that was built."""
    stub = folder / "_native.pyi"
    command = [sys.executable, "-P", "-m", "nanobind.stubgen", "-P", "-q", "-m", "hccl_py._native", "-o", str(stub)]
    subprocess.run(command, check=True, timeout=60, cwd=folder)
    return stub.read_text()


def test_the_committed_stub_is_the_generated_one(tmp_path: Path) -> None:
    assert generated(tmp_path) == COMMITTED.read_text(), "copy build/*/_native.pyi over hccl_py/_native.pyi"


def test_a_function_that_is_missing_would_be_noticed(tmp_path: Path) -> None:
    without = "\n".join(line for line in COMMITTED.read_text().splitlines() if "def isa(" not in line)
    assert generated(tmp_path) != without
