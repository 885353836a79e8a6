"""What the pages name exists: files, folders, and the functions in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "docs", "hccl_py", "topology", "scheduler", "transports", "compression", "native", "tests", "cluster_configs",
)  # fmt: skip
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))


def missing(text: str) -> list[str]:
    """What is named in backticks as a path, or as path:function, and is not there."""
    absent = []
    for path, name in re.findall(r"`([\w./-]+/[\w./-]*\w/?)(?::([\w:.]+))?`", text):
        if path.partition("/")[0] not in FOLDERS or "X." in path:  # X stands for any name
            continue
        target = ROOT / path
        word = re.split(r"[.:]+", name)[-1] if name else ""
        defined = rf"\b{word}\(|\b(class|struct) {word}\b"
        if not target.exists() or (word and not re.search(defined, target.read_text(encoding="utf-8"))):
            absent.append(f"{path}:{name}" if name else path)
    return absent


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        folder = (ROOT / page).parent
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / link).exists(), f"{page} links to {link}"


def test_a_page_that_is_out_of_date_is_noticed() -> None:
    text = "`native/src/group.cpp:Group::begin` and `native/src/gone.cpp` and `native/src/group.cpp:Group::gone`"
    assert missing(text) == ["native/src/gone.cpp", "native/src/group.cpp:Group::gone"]
