"""Builds the C++ tests of the engine and runs them: all under ASan + UBSan, and those with threads under TSan.

The build folders stay in build/, so that only what has changed is compiled again.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_build", Path(__file__).with_name("build.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _build_module()


@pytest.mark.timeout(4 * build.COMMAND_TIMEOUT_S)
@pytest.mark.parametrize(
    ("sanitizer", "selection"), [("address", []), ("thread", ["-L", "threads"])], ids=["address", "thread"]
)
def test_native_tests_pass(sanitizer: str, selection: list[str]) -> None:
    if build.obstacle():
        pytest.skip(build.obstacle())
    folder = build.build(sanitizer)
    ctest = str(Path(build.find_tool("cmake")).with_name("ctest"))
    report = build.run(ctest, "--test-dir", str(folder), "--output-on-failure", "--no-tests=error", *selection)
    assert "100% tests passed" in report


def test_run_rejects_a_command_that_fails() -> None:
    with pytest.raises(AssertionError, match="exited with 3"):
        build.run(sys.executable, "-c", "raise SystemExit(3)")
