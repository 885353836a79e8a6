"""The lock files: exact, free of machine paths, and within what pyproject.toml asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def pinned(text: str) -> dict[str, str]:
    """Return name -> version of a lock file's text. Raises ValueError for a line that is not exactly NAME==VERSION."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)", line)
            if match is None:
                raise ValueError(f"not NAME==VERSION: {line}")
            found[canonicalize_name(match[1])] = match[2]
    return found


def project_requirements() -> list[Requirement]:
    """Return what pyproject.toml asks for: build, run time and all extras."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    build, _, rest = text.partition("[project]")
    lists = re.findall(
        r"^(?:requires|dependencies|torch|mpi|viz|test) = \[(.*?)\]\s*$", build + rest, re.MULTILINE | re.DOTALL
    )
    return [Requirement(item) for items in lists for item in re.findall(r'"([^"]+)"', items)]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_lock_satisfies_the_project(path: Path) -> None:
    versions = pinned(path.read_text(encoding="utf-8"))
    wanted = project_requirements()
    assert len(wanted) > 15
    for requirement in wanted:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{path.name} lacks {requirement.name}: run `make lock`"
        assert requirement.specifier.contains(version), (
            f"{path.name}: {requirement.name}=={version} is not {requirement}"
        )


def test_there_are_locks() -> None:
    assert [path.name for path in LOCKS] == ["python3.10.lock", "python3.11.lock"]


@pytest.mark.parametrize("line", ["numpy>=1", "numpy @ file:///tmp/x.whl", "torch==2.13.0+cpu", "--index-url x"])
def test_checker_rejects(line: str) -> None:
    with pytest.raises(ValueError, match="not NAME==VERSION"):
        pinned(line)
