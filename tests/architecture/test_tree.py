"""The shape of the tree: folders at the root, linked into the package, and what a lost link would break."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("transports", "topology", "scheduler", "compression", "cluster_configs")


@pytest.mark.parametrize("name", LINKED)
def test_folder_is_linked_into_the_package(name: str) -> None:
    link = ROOT / "hccl_py" / name
    assert link.is_symlink(), f"{link} must be a symbolic link to ../{name}"
    assert link.readlink() == Path("..", name)
    assert (ROOT / name).is_dir()


@pytest.mark.parametrize("name", LINKED)
def test_build_stops_without_the_link(name: str) -> None:
    """A build from an archive that lost the links must fail, and not make a package without its parts."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert name in text and "FATAL_ERROR" in text


def test_compression_is_no_package_of_its_own() -> None:
    """Python 3.14 has a standard package `compression`; started in the root, it would find ours, and lose gzip."""
    assert not (ROOT / "compression" / "__init__.py").exists()


def guards(source: str) -> list[str]:
    """Lines of C++ that use nanobind's own guards of the GIL."""
    return [line.strip() for line in source.splitlines() if "gil_scoped_" in line]


def test_bindings_let_the_gil_go_by_our_own_guard() -> None:
    """nanobind's ends the process where a daemon thread comes back to an interpreter that ends (gil.hpp)."""
    files = sorted((ROOT / "native" / "bindings").glob("*.[ch]pp"))
    assert {file.name: guards(file.read_text("utf-8")) for file in files} == {file.name: [] for file in files}
    assert guards("  const nb::gil_scoped_release release;") == ["const nb::gil_scoped_release release;"]


def test_links_are_tracked_as_links() -> None:
    git = subprocess.run(["git", "ls-files", "-s", "hccl_py"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if git.returncode:
        pytest.skip("not a git checkout")
    modes = {line.split("\t")[1]: line.split()[0] for line in git.stdout.splitlines()}
    assert {name: modes.get(f"hccl_py/{name}") for name in LINKED} == dict.fromkeys(LINKED, "120000")


def exported(source: str) -> list[str] | None:
    """Return the names in ``__all__`` of a module's text, None if it has none."""
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return list(value)
    return None


def export_mistakes(source: str) -> list[str]:
    """Return what is wrong with ``__all__``: not sorted, a name twice."""
    names = exported(source)
    if names is None:
        return []
    mistakes = [] if names == sorted(names) else [f"not sorted: should be {sorted(names)}"]
    return mistakes + [f"{name} twice" for name in set(names) if names.count(name) > 1]


def test_exports_are_sorted() -> None:
    files = [path for base in ("hccl_py", *LINKED[:-1]) for path in (ROOT / base).rglob("*.py")]
    wrong = {
        str(path.relative_to(ROOT)): bad for path in files if (bad := export_mistakes(path.read_text(encoding="utf-8")))
    }
    assert not wrong


@pytest.mark.parametrize("source", ['__all__ = ["b", "a"]', '__all__ = ("a", "a")', '__all__: list[str] = ["b", "a"]'])
def test_export_checker_rejects(source: str) -> None:
    assert export_mistakes(source)


def test_native_sources_start_with_a_licence_line() -> None:
    files = [path for pattern in ("*.cpp", "*.hpp") for path in (ROOT / "native").rglob(pattern)]
    assert files
    wrong = [
        str(path)
        for path in files
        if not path.read_text(encoding="utf-8").startswith("// SPDX-License-Identifier: Apache-2.0\n")
    ]
    assert not wrong
