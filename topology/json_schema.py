"""The schema of cluster files as JSON schema, so that editors complete keys and mark mistakes while one writes."""

from __future__ import annotations

from typing import Any

from hccl_py.topology.schema import ClusterFile

_MAY_BE_EMPTY = ("NumaEntry", "DeviceEntry", "NicEntry", "SwitchEntry", "HostBody")
_SHORT_KEYS = ("link", "uplink", "local", "global")


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12). What only the reader checks, such as names that exist, is not in it."""
    form = ClusterFile.model_json_schema(by_alias=True)
    _widen(form, "")
    form["properties"]["version"] = {"const": 1}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "hccl_py cluster file", **form}


def _widen(part: Any, key: str) -> None:
    """Allow what the models read besides mappings: nothing after ``eth0:``, and the name of a link type."""
    if isinstance(part, list):
        for item in part:
            _widen(item, key)
        return
    if not isinstance(part, dict):
        return
    for name, value in list(part.items()):
        reference = value.get("$ref", "").rpartition("/")[2] if isinstance(value, dict) else ""
        if name == "additionalProperties" and reference in _MAY_BE_EMPTY:
            part[name] = {"anyOf": [value, {"type": "null"}]}
        elif key == "properties" and name in _SHORT_KEYS and reference == "Figures":
            part[name] = {"anyOf": [{"type": "string"}, value]}
        else:
            _widen(value, name)
