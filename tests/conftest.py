"""What all tests share: a clear word where the engine is not built; an MPI job that ends with its first failure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NEED_ENGINE = ("lab", "conformance", "multiproc", "perf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse to run tests of the engine on a source tree that has none, before the first of them fails obscurely."""
    folders = {item.path.relative_to(TESTS).parts[0] for item in items if item.path.is_relative_to(TESTS)}
    if folders.intersection(NEED_ENGINE) and importlib.util.find_spec("hccl_py._native") is None:
        where = importlib.import_module("hccl_py").__path__[0]
        raise pytest.UsageError(
            f"hccl_py was imported from {where}, where hccl_py._native is not built: run `make install`, then use "
            ".venv/bin/pytest (without an editable install, a Python started here finds the bare sources)"
        )


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Under mpirun, end the job when a test fails on one rank: its peers would wait for it for ever."""
    if report.failed and "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size > 1:
            sys.stderr.write(f"\n[rank {MPI.COMM_WORLD.rank}] {report.nodeid} FAILED\n{report.longreprtext}\n")
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
