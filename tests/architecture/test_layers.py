"""The arrows between the folders: core <- topology <- scheduler <- hccl_py, and so on; never sideways, never up."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("topology", "scheduler", "transports", "compression")
MAY_IMPORT = {
    "core": {"core"},
    "topology": {"core", "topology"},
    "scheduler": {"core", "topology", "scheduler"},
    "transports": {"core", "transports"},
    "compression": {"core", "compression"},
}


def layer_of(module: str) -> str:
    """Return the layer of a module of ours: one of MAY_IMPORT, "_native", or "top" for all other parts of hccl_py."""
    part = [*module.split("."), ""][1]
    return part if part in MAY_IMPORT or part == "_native" else "top"


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for every import, also those inside functions, under TYPE_CHECKING and by import_module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            parts = [alias.name for alias in node.names if module == "hccl_py" and _is_module(alias.name)]
            yield from ((node.lineno, f"hccl_py.{part}") for part in parts)
            if len(parts) < len(node.names):
                yield node.lineno, module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_module(name: str) -> bool:
    return name in MAY_IMPORT or name == "_native"


def violations(module: str, source: str) -> list[str]:
    """Return what ``source``, the text of ``module``, imports against the rules, one line each."""
    layer = layer_of(module)
    found = []
    for line, name in imports_of(ast.parse(source)):
        where = f"{module}:{line} imports {name}"
        if name.startswith("."):
            found.append(f"{where}: write absolute imports")
        elif name.split(".")[0] in FOLDERS:
            found.append(f"{where}: the folder's name in the package is hccl_py.{name}")
        elif name.split(".")[0] == "hccl_py":
            if layer in MAY_IMPORT and layer_of(name) not in MAY_IMPORT[layer]:
                found.append(f"{where}: {layer} may import {', '.join(sorted(MAY_IMPORT[layer]))} only")
        elif layer == "core" and name.split(".")[0] not in sys.stdlib_module_names:
            found.append(f"{where}: core uses the standard library only")
    return found


def sources() -> list[tuple[str, Path]]:
    """Return (module, file) of all Python files of the package, each once."""
    found = []
    for base, prefix in ((ROOT / "hccl_py", "hccl_py"), *((ROOT / name, f"hccl_py.{name}") for name in FOLDERS)):
        for path in sorted(base.rglob("*.py")):
            inside = path.relative_to(base)
            if base.name == "hccl_py" and inside.parts[0] in FOLDERS:
                continue  # seen through the symlink
            found.append((".".join((prefix, *inside.with_suffix("").parts)).removesuffix(".__init__"), path))
    return found


def test_every_file_keeps_the_arrows() -> None:
    files = sources()
    assert {layer_of(module) for module, _ in files} >= {"core", "topology", "scheduler", "top"}
    wrong = [line for module, path in files for line in violations(module, path.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hccl_py.topology.graph", "from hccl_py.scheduler.plan import Plan"),
        ("hccl_py.topology.graph", "from hccl_py.transports import registry"),
        ("hccl_py.scheduler.plan", "import hccl_py._native"),
        ("hccl_py.scheduler.plan", "from hccl_py import _native"),
        ("hccl_py.scheduler.plan", "def f():\n    from hccl_py.communicator import Communicator"),
        ("hccl_py.scheduler.plan", "import importlib\nimportlib.import_module('hccl_py.engine')"),
        ("hccl_py.transports.shm", "from hccl_py.topology.graph import Topology"),
        ("hccl_py.compression.codec", "from hccl_py.transports import registry"),
        ("hccl_py.core.types", "import numpy"),
        ("hccl_py.core.types", "from hccl_py.topology import graph"),
        ("hccl_py.communicator", "from .engine import Engine"),
        ("hccl_py.communicator", "from topology.graph import Topology"),
    ],
)
def test_checker_rejects(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hccl_py.scheduler.plan", "from hccl_py.topology.graph import Topology\nimport numpy"),
        ("hccl_py.communicator", "from hccl_py import _native\nfrom hccl_py.scheduler import plan"),
        ("hccl_py.core.types", "import enum\nfrom hccl_py.core.errors import HcclError"),
    ],
)
def test_checker_accepts(module: str, source: str) -> None:
    assert violations(module, source) == []
