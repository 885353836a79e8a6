"""Fields of a cluster file: the kinds of text that its values may be, shared by all models of the schema."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import parse_bandwidth, parse_bytes, parse_ratio, parse_seconds, parse_share
from hccl_py.topology.document import short
from hccl_py.topology.link import LinkKind
from hccl_py.topology.node import DeviceKind, did_you_mean

E = TypeVar("E", bound=Enum)


class Entry(BaseModel):
    """Base of all models: frozen, no conversions, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _word(kind: type[E]) -> BeforeValidator:
    """Reads the lower-case name of an enum member."""

    def read(value: object) -> object:
        words = {member.name.lower(): member for member in kind}
        if isinstance(value, str) and value in words:
            return words[value]
        near = did_you_mean(value, words) if isinstance(value, str) else ""
        raise ConfigError(f"{short(value)} is not one of {', '.join(words)}{near}")

    return BeforeValidator(read)


def _words_schema(kind: type[Enum]) -> WithJsonSchema:
    return WithJsonSchema({"enum": [member.name.lower() for member in kind]})


def _text_schema(*examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9.]", "examples": list(examples)})


def empty_body(value: object) -> object:
    """``eth0:`` with nothing after it (null) is an entry without keys."""
    return {} if value is None else value


Bandwidth = Annotated[float, BeforeValidator(parse_bandwidth), _text_schema("25GB/s", "100Gbit/s")]
Latency = Annotated[float, BeforeValidator(parse_seconds), _text_schema("1.5us", "20ns")]
Size = Annotated[int, BeforeValidator(parse_bytes), _text_schema("64KiB", "1MB")]
Share = Annotated[float, BeforeValidator(parse_share), _text_schema("50%")]
Ratio = Annotated[float, BeforeValidator(parse_ratio), _text_schema("2:1", "1:1")]
KindOfLink = Annotated[LinkKind, _word(LinkKind), _words_schema(LinkKind)]
KindOfDevice = Annotated[DeviceKind, _word(DeviceKind), _words_schema(DeviceKind)]


class Figures(Entry):
    """What a wire is: a link type, or kind, bandwidth and latency, or a type with some of them replaced."""

    type: str = ""
    kind: KindOfLink | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None


def _short_figures(value: object) -> object:
    """``link: ndr`` is short for ``link: {type: ndr}``."""
    return {"type": value} if isinstance(value, str) else value


ShortFigures = Annotated[Figures, BeforeValidator(_short_figures)]
