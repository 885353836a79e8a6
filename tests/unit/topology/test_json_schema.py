"""The exported JSON schema takes what the reader takes, and marks what it would mark while one types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hccl_py.topology.document import parse_document
from hccl_py.topology.json_schema import json_schema

CONFIGS = sorted((Path(__file__).parents[3] / "cluster_configs").glob("*.yaml"))
SCHEMA = json_schema()
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "null": type(None)}


def accepts(form: dict[str, Any], value: Any) -> bool:
    """The part of JSON schema that ours uses."""
    if "$ref" in form:
        return accepts(SCHEMA["$defs"][form["$ref"].rpartition("/")[2]], value)
    if "oneOf" in form:
        return sum(accepts(one, value) for one in form["oneOf"]) == 1
    if "anyOf" in form and not any(accepts(one, value) for one in form["anyOf"]):
        return False
    if "const" in form and value != form["const"]:
        return False
    if "enum" in form and value not in form["enum"]:
        return False
    if "type" in form and not isinstance(value, TYPES[form["type"]]):
        return False
    if isinstance(value, dict) and form.get("type") == "object":
        known, more = form.get("properties", {}), form.get("additionalProperties", True)
        if any(key not in value for key in form.get("required", ())):
            return False
        for key, item in value.items():
            rule = known.get(key, more)
            if rule is False or (isinstance(rule, dict) and not accepts(rule, item)):
                return False
    if isinstance(value, list) and "items" in form:
        return all(accepts(form["items"], item) for item in value)
    return True


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_every_shipped_file_fits(path: Path) -> None:
    assert accepts(SCHEMA, parse_document(path.read_text(), "f").value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 2"),
        ("name: four PCIe hosts with two sockets", "nam: x"),
        ("kind: pcie_tree", "kind: pcie_twig"),
        ("kind: gpu", "kind: gpi"),
        ("bandwidth: 31.5GB/s", "bandwidth: 31.5"),
        ("switches_per_root", "x"),
        ("link: gen4", "link: 4"),
        ("roots: [numa0, numa1], ", ""),
    ],
)
def test_mistakes_do_not_fit(old: str, new: str) -> None:
    text = next(path for path in CONFIGS if path.stem == "pcie_two_sockets").read_text()
    text = text.replace("link: gen4}", "link: gen4, switches_per_root: 1}")
    assert accepts(SCHEMA, parse_document(text, "f").value)
    assert old in text
    assert not accepts(SCHEMA, parse_document(text.replace(old, new, 1), "f").value)
