"""`import hccl_py` and `hccl-py --help` pull in nothing heavy: no torch, no MPI, no file format, no drawing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# third-party modules that `import hccl_py` may load; the parts that need more load it when they are used
ALLOWED = {"hccl_py", "numpy", "nanobind_backend"}
ALLOWED_IN_COMMAND = {
    "hccl_py",
    "typer",
    "click",
    "rich",
    "shellingham",
    "typing_extensions",
    "annotated_doc",
    "pygments",
}


def third_party(statement: str, folder: Path) -> set[str]:
    """Return the top-level modules, beyond the standard library, that ``statement`` loads in a fresh Python."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(' '.join(sorted(names - sys.stdlib_module_names)))"
    )
    # from an empty folder, so that what is installed is imported, not the sources that lie about
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return {name for name in done.stdout.split() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import hccl_py", ALLOWED),
        ("import hccl_py.cli.main as m; m.build(None)", ALLOWED_IN_COMMAND),
    ],
)
def test_import_is_light(statement: str, allowed: set[str], tmp_path: Path) -> None:
    assert third_party(statement, tmp_path) <= allowed


def test_checker_notices_a_heavy_import(tmp_path: Path) -> None:
    assert not third_party("import json, networkx", tmp_path) <= ALLOWED
