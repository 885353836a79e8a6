"""Every key of the cluster file is named by a test that changes it: walks the schema, so that a new key needs one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from hccl_py.topology.schema import ClusterFile

_HERE = Path(__file__)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def fields(top: type[BaseModel]) -> set[str]:
    """``Model.key`` of this model and of all below it; a key that a base has is named by the base."""
    found: set[str] = set()
    seen: set[type[BaseModel]] = set()
    todo = [top]
    while todo:
        model = todo.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            owner = next(base for base in reversed(model.__mro__) if name in getattr(base, "model_fields", {}))
            found.add(f"{owner.__name__}.{field.alias or name}")
            todo += _models(field.annotation)
            for extra in field.metadata:
                todo += _models(extra)
    return found


def named(tree: ast.Module, text: str) -> set[str]:
    """Words that stand as keys (``word:`` or ``"word"``) in the tests of a file, or in what their names stand for."""
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Assign)]
    found: set[str] = set()
    for node in tests:
        lines = text.splitlines()
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        found |= set(re.findall(r"\b([a-z_]+):", source)) | set(re.findall(r"[\"']([a-z_]+)[\"']", source))
    return found


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Of all tests of this folder but this one."""
    found: set[str] = set()
    for file in _HERE.parent.glob("test_*.py"):
        if file != _HERE:
            text = file.read_text("utf-8")
            found |= named(ast.parse(text), text)
    return found


@pytest.mark.parametrize("field", sorted(fields(ClusterFile)))
def test_a_test_names_it(field: str, words: set[str]) -> None:
    assert field.partition(".")[2] in words, f"{field}: no test of tests/unit/topology changes it"


def test_a_key_that_nobody_tests_is_found(words: set[str]) -> None:
    class Below(BaseModel):
        unheard_of: int = 0

    class Above(BaseModel):
        inner: dict[str, Below]

    missing = {field for field in fields(Above) if field.partition(".")[2] not in words}
    assert "Below.unheard_of" in missing
