"""Tables of the documentation that scripts write: the text between two marks of a page."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "docs" / "BENCHMARKS.md"
END = "<!-- end of table -->"


def replace_between(path: Path, begin: str, text: str, end: str = END) -> None:
    """Put ``text`` between the marks of ``path``. Exits if they are not there."""
    before, mark, rest = path.read_text(encoding="utf-8").partition(begin)
    if not mark or end not in rest:
        raise SystemExit(f"{path} has no place for the table: {begin} ... {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def bytes_text(size: int) -> str:
    """As tables have it: "64 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"
