"""These tests are for mpirun: a plain pytest runs them through tests/multiproc/test_mpi.py."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out unless pytest-mpi is told to run it."""
    return None if config.getoption("--with-mpi", default=False) else True
