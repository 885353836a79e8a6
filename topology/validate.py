"""A Document becomes a ClusterFile; what the schema refuses becomes one ConfigError with file, line and a way out."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hccl_py.core.errors import ConfigError
from hccl_py.topology.document import Document, Path_, short
from hccl_py.topology.fabrics.kinds import KINDS
from hccl_py.topology.node import did_you_mean
from hccl_py.topology.schema import VERSION, ClusterFile

_FABRICS = {kind.model_fields["kind"].annotation.__args__[0]: kind for kind in KINDS}  # type: ignore[union-attr]


def validate(document: Document) -> ClusterFile:
    """The content of ``document`` as models.

    Raises:
        ConfigError: file:line, key path, what was found, and the nearest valid key or the allowed values.
    """
    if not isinstance(document.value, dict):
        raise document.error((), f"a cluster file is a mapping of keys, found {short(document.value)}")
    version = document.value.get("version")
    if version is None:
        raise document.error(("version",), f"missing: write 'version: {VERSION}' in the first line")
    if version != VERSION or isinstance(version, bool):
        message = f"this hccl_py reads version {VERSION}, found {short(version)}"
        raise document.error(("version",), message)
    try:
        return ClusterFile.model_validate(document.value)
    except ValidationError as errors:
        found = [dict(error) for error in errors.errors(include_url=False)]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        first = min(found, key=lambda error: _place(document, error))
        raise ConfigError(f"{_explain(document, first)}{more}") from None


def _place(document: Document, error: dict[str, Any]) -> tuple[int, int]:
    """Unknown keys first, for they explain missing ones; then by line."""
    return 0 if error["type"] == "extra_forbidden" else 1, document.line(_document_path(error["loc"]))


def _explain(document: Document, error: dict[str, Any]) -> ConfigError:
    """One pydantic error as ours."""
    path = _document_path(error["loc"])
    what, context = error["type"], error.get("ctx", {})
    if what == "extra_forbidden":
        keys = known_keys(error["loc"][:-1])
        message = f"unknown key{did_you_mean(str(path[-1]), keys)} (keys here: {', '.join(keys) or 'none'})"
    elif what == "missing":
        message = f"missing (keys here: {', '.join(known_keys(error['loc'][:-1]))})"
    elif what == "union_tag_not_found":
        path, message = (*path, "kind"), f"missing: a fabric's kind is one of {', '.join(_FABRICS)}"
    elif what == "union_tag_invalid":
        path, tag = (*path, "kind"), context["tag"]
        message = f"{short(tag)} is not one of {', '.join(_FABRICS)}{did_you_mean(str(tag), _FABRICS)}"
    elif what in ("model_type", "dict_type", "model_attributes_type"):
        message = f"should be a mapping of keys, found {short(error['input'])}"
    elif isinstance(context.get("error"), ConfigError):
        message = str(context["error"])
    else:
        wish = re.sub(r"^(Input|List|Dictionary) | after validation", "", error["msg"])
        message = f"{wish}, found {short(error['input'])}"
    return document.error(path, message)


def _document_path(location: Path_) -> Path_:
    """The key path in the file: pydantic's location has also the kind of a fabric, which stands in no key there."""
    path: list[str | int] = []
    for index, key in enumerate(location):
        if not (index >= 2 and location[index - 2] == "fabrics" and key in _FABRICS):
            path.append(key)
    return tuple(path)


def known_keys(location: Path_) -> tuple[str, ...]:
    """The keys that a mapping at this place (pydantic's location) may have."""
    model: Any = ClusterFile
    for key in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = fields[str(key)].annotation
        elif key in _FABRICS and _FABRICS[str(key)] in get_args(model):
            model = _FABRICS[str(key)]
        else:  # dict[str, X], list[X], X | None: the part that may hold keys
            parts = [part for part in get_args(model) if part is not type(None)]
            model = parts[-1] if parts else None
        if hasattr(model, "__metadata__"):  # Annotated
            model = get_args(model)[0]
    if isinstance(model, type) and issubclass(model, BaseModel):
        return tuple(field.alias or name for name, field in model.model_fields.items())
    return ()
