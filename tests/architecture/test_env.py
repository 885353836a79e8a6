"""Settings: read in one file only, documented, and the variables for MPI the same wherever they stand."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from hccl_py.core.env import Env, markdown_table, variable
from hccl_py.launch import MPI_ENVIRON

ROOT = Path(__file__).parents[2]


def reads_environment(source: str) -> list[int]:
    """Return the lines that touch os.environ or os.getenv."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv"))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {a.name for a in node.names} & {"environ", "getenv"}
        )
    ]


def test_only_env_reads_the_environment() -> None:
    folders = ("hccl_py", "topology", "scheduler", "transports", "compression")
    files = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    env = ROOT / "hccl_py" / "core" / "env.py"
    wrong = {
        str(path.relative_to(ROOT)): lines
        for path in sorted(files - {env})
        if (lines := reads_environment(path.read_text(encoding="utf-8")))
    }
    assert not wrong, "use hccl_py.core.env"
    assert reads_environment(env.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source", ["import os\nos.getenv('X')", "from os import environ", "import os\nx = os.environ['X']"]
)
def test_checker_rejects(source: str) -> None:
    assert reads_environment(source)


def test_native_code_reads_no_environment() -> None:
    files = [path for pattern in ("*.cpp", "*.hpp") for path in (ROOT / "native").rglob(pattern)]
    assert files
    assert not [str(path) for path in files if re.search(r"\bgetenv\b", path.read_text(encoding="utf-8"))]


def test_every_setting_is_documented() -> None:
    table = markdown_table()
    for setting in fields(Env):
        assert f"`{variable(setting)}`" in table
        assert setting.metadata["doc"].endswith(".") and setting.metadata["allowed"]


def test_documentation_has_the_table_as_generated() -> None:
    pages = [
        path for path in (ROOT / "docs").glob("*.md") if "| variable | default |" in path.read_text(encoding="utf-8")
    ]
    if not pages:
        pytest.skip("no page of docs/ has the table yet: `hccl-py doctor --markdown` prints it")
    for page in pages:
        assert markdown_table() in page.read_text(encoding="utf-8"), f"{page.name}: run `hccl-py doctor --markdown`"


def test_makefile_exports_what_launch_sets() -> None:
    exports = dict(
        re.findall(r"^export (\w+) := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert exports == MPI_ENVIRON
