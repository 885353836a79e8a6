"""The commands in README.md run here, and print what the README says that they print.

Every ```bash block must be preceded by a comment, invisible to readers, that says how it is tested::

    <!-- test: timeout_s=60 expect="Out of bounds values : 0 OK" -->
    <!-- no test: make demo takes four minutes; tests/multiproc/test_demo.py runs its quick form -->

``expect`` is a regular expression that the output must contain; it may be given several times. The block runs under
``bash -euo pipefail`` in an empty folder with links to what the repository has, and this Python's commands in PATH.
"""

from __future__ import annotations

import re
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from hccl_py.core.env import child_environ
from hccl_py.launch import run

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINKED = ("cluster_configs", "docs", "examples", "hccl_py", "tests")


@dataclass(frozen=True)
class Block:
    """One block of commands. ``reason`` says why it is not run; it is empty for one that is."""

    line: int
    script: str
    timeout_s: float
    expect: tuple[str, ...]
    reason: str = ""


def blocks(text: str) -> list[Block]:
    """Return the ```bash blocks of a Markdown text. Raises ValueError for one without a mark, or with a wrong one."""
    found = []
    for match in re.finditer(r"^```(?:bash|sh|shell|console)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        before = text[: match.start()].rstrip().splitlines()
        mark = re.fullmatch(r"<!-- (test|no test): ?(.*?) ?-->", before[-1].strip()) if before else None
        if mark is None:
            raise ValueError(f"line {line}: a block of commands needs a comment `<!-- test: ... -->` above it")
        if mark[1] == "no test":
            if not mark[2]:
                raise ValueError(f"line {line}: say why it is not tested")
            found.append(Block(line, match[1], 0, (), mark[2]))
            continue
        timeout_s, expect = 60.0, []
        for word in shlex.split(mark[2]):
            key, _, value = word.partition("=")
            if key == "timeout_s":
                timeout_s = float(value)
            elif key == "expect":
                expect.append(value)
            else:
                raise ValueError(f"line {line}: {key!r} is neither timeout_s nor expect")
        if not expect:
            raise ValueError(f"line {line}: say what the output must contain: expect=...")
        found.append(Block(line, match[1], timeout_s, tuple(expect)))
    return found


def check(block: Block, folder: Path) -> None:
    """Run a block in ``folder``. Raises AssertionError if it fails or does not print what is expected."""
    for name in LINKED:
        if (ROOT / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    scripts = sysconfig.get_path("scripts")
    environ = child_environ()
    environ["PATH"] = f"{scripts}:{environ.get('PATH', '')}"
    job = run(["bash", "-euo", "pipefail", "-c", block.script], block.timeout_s, environ, cwd=str(folder))
    assert job.status == 0, f"line {block.line}: exit status {job.status}\n{block.script}\n{job.output}"
    for pattern in block.expect:
        assert re.search(pattern, job.output), f"line {block.line}: no {pattern!r} in the output:\n{job.output}"


def test_every_block_is_marked() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(blocks(text)) == len(re.findall(r"^```(?:bash|sh|shell|console)", text, re.MULTILINE))


TESTED = [block for block in blocks(README.read_text(encoding="utf-8")) if not block.reason] if README.exists() else []


@pytest.mark.timeout(660)
@pytest.mark.parametrize("block", TESTED, ids=lambda block: f"line{block.line}")
def test_block_runs_and_prints_what_it_should(block: Block, tmp_path: Path) -> None:
    check(block, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nls\n```\n",
        "text\n\n```bash\nls\n```\n",
        "<!-- no test: -->\n```bash\nls\n```\n",
        "<!-- test: timeout_s=5 -->\n```bash\nls\n```\n",
        "<!-- test: expects=x -->\n```bash\nls\n```\n",
    ],
)
def test_block_without_a_proper_mark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        blocks(text)


def test_blocks_are_found_with_their_marks() -> None:
    tested = '<!-- test: timeout_s=5 expect="a b" expect=c -->\n```bash\necho 1\necho 2\n```\n'
    text = f"{tested}\n<!-- no test: slow -->\n```sh\nmake\n```\n"
    first, second = blocks(text)
    assert first == Block(2, "echo 1\necho 2\n", 5.0, ("a b", "c"))
    assert second.reason == "slow"


def test_checker_accepts_and_rejects(tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    check(Block(1, f"{python} -c 'print(6*7)'\ntest -d hccl_py", 30, ("^42$",)), tmp_path)
    with pytest.raises(AssertionError, match="exit status 3"):
        check(Block(1, "(exit 3)\necho fine", 30, ("fine",)), tmp_path)
    with pytest.raises(AssertionError, match="no 'fine' in the output"):
        check(Block(1, "echo well", 30, ("fine",)), tmp_path)
