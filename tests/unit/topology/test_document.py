"""Strangers' YAML: lines are right, and every malformed file is one ConfigError in bounded time and memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.topology.document import MAX_FILE_BYTES, parse_document, read_document


def test_values_and_lines() -> None:
    document = parse_document("a: 1\n\nb:\n  - x: [1.5, yes, ~]\n    1: 'two'\n", "f.yaml")
    assert document.value == {"a": 1, "b": [{"x": [1.5, "yes", None], "1": "two"}]}
    assert document.lines["a",] == 1
    assert document.lines["b",] == 3
    assert document.lines["b", 0, "x", 2] == 4
    assert document.lines["b", 0, "1"] == 5
    assert str(document.error(("b", 0, "x"), "no")) == "f.yaml:4: b[0].x: no"
    assert str(document.error(("b", 0, "y", "z"), "no")) == "f.yaml:4: b[0].y.z: no"  # not there: the parent's line
    assert str(document.error((), "no")) == "f.yaml:1: no"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"f:1: the file is empty"),
        ("# nothing\n", r"f:1: the file is empty"),
        ("a: 1\nb: c: d\n", r"f:2: not YAML: mapping values"),
        ("a: [1\n", r"f:2: not YAML"),
        ("a: 1\n\ta: 2\n", r"f:2: not YAML"),
        ("a: 1\nb: 2\na: 3\n", r"f:3: a: the key 'a' is there twice \(first in line 1\)"),
        ("x:\n  b: 2\n  b: 3\n", r"f:3: x.b: the key 'b' is there twice \(first in line 2\)"),
        ("? [a]\n: 1\n", r"f:1: a key must be one word"),
        ("a: !!python/object:os.system x\n", r"f:1: a: .* cannot be used here"),
        ("a: !mine {b: 1}\n", r"f:1: a: the tag '!mine' is not known"),
        ("a: .inf\n", r"f:1: a: '.inf' \(float\) cannot be used"),
        ("a: 2001-01-01\n", r"\(timestamp\) cannot be used"),
        ("a: " + "9" * 5000, r"\(int\) cannot be used"),
        ("a: 1\n---\nb: 2\n", r"f:2: not YAML|f:3: not YAML"),
        ("a: \x01\n", r"f:1: not YAML"),
        ("a: *nowhere\n", r"f:1: not YAML"),
        ("a: &x [*x]\n", r"f:1: nested more than"),
        ("a: " + "[" * 100 + "]" * 100, r"f:1: nested more than"),
        ("[" * 100_000, r"nested too deeply"),
        ("{a: " * 100_000, r"nested too deeply"),
        ("- " * 100_000, r"nested too deeply"),
        ("\n".join(["["] * 5000), r"nested too deeply"),
        ("\n".join(" " * i + "a:" for i in range(1500)), r"nested too deeply"),
    ],
)
def test_malformed_files_are_refused_with_their_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_document(text, "f")


def test_aliases_are_allowed_but_not_as_a_bomb() -> None:
    assert parse_document("a: &x [1, 2]\nb: *x\n", "f").value == {"a": [1, 2], "b": [1, 2]}
    bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
    )
    started = time.monotonic()
    with pytest.raises(ConfigError, match="expands to more than"):
        parse_document(bomb, "f")
    assert time.monotonic() - started < 30


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml: cannot read: No such file"):
        read_document(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="cannot read: Is a directory"):
        read_document(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin.yaml:2: not UTF-8 \(byte 0xe9\)"):
        read_document(tmp_path / "latin.yaml")
    (tmp_path / "large.yaml").write_bytes(b"[" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_document(tmp_path / "large.yaml")


@given(st.text(alphabet="ab:-[]{},&*!|>'\"#%@ \n\t?0.~<", max_size=40))
def test_any_text_is_a_value_or_one_error(text: str) -> None:
    try:
        parse_document(text, "f")
    except ConfigError as error:
        assert str(error).startswith("f:")
