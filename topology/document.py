"""Document: a YAML file as plain values, and for each value the line it stands on, so that errors can name it.

The text comes from strangers: its size, its nesting and what its aliases expand to are bounded, and all that can be
wrong with it ends in one ConfigError with file and line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hccl_py.core.errors import ConfigError

MAX_FILE_BYTES = 2**20
MAX_DEPTH = 24
MAX_PARTS = 100_000
MAX_VALUES = 200_000  # after aliases are expanded

Key = str | int
Path_ = tuple[Key, ...]
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]


@dataclass
class Document:
    """The content of one file.

    Attributes:
        file: its name as the user wrote it.
        value: plain dicts, lists and scalars; keys are always text.
        lines: line (from 1) of each key path, such as ``("hosts", "node0", "links", 0)``; a mapping's value stands on
            the line of its key.
    """

    file: str
    value: Value
    lines: dict[Path_, int] = field(default_factory=dict)

    def line(self, path: Path_) -> int:
        """The line of a key path; of its nearest parent, if there is nothing at the path."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: Path_, message: str) -> ConfigError:
        """A ConfigError that says file:line, key path and message. A key that is not there takes its parent's line."""
        where = f"{self.file}:{self.line(path)}"
        return ConfigError(f"{where}: {path_text(path)}: {message}" if path else f"{where}: {message}")


def path_text(path: Path_) -> str:
    """``hosts.node0.links[0].bandwidth``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def short(value: object) -> str:
    """``repr(value)``, cut to what an error message can bear."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def read_document(path: str | Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: not readable, not UTF-8, not YAML, empty, too large, too deep, a key twice, or a tag.
    """
    file = str(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}:1: larger than {MAX_FILE_BYTES} bytes, which no cluster file needs to be")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}:{line}: not UTF-8 (byte {data[error.start]:#04x})") from error
    return parse_document(text, file)


def parse_document(text: str, file: str) -> Document:
    """As `read_document`, from text; ``file`` is what errors call it."""
    _check_size(text, file)
    try:
        root = YAML(pure=True).compose(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{file}:{line}: not YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:  # no mark: a character that YAML forbids, a bad escape
        raise ConfigError(f"{file}:1: not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}:1: nested too deeply") from error
    if root is None:
        raise ConfigError(f"{file}:1: the file is empty")
    document = Document(file, None)
    document.value = _Converter(document).convert(root, ())
    return document


def _check_size(text: str, file: str) -> None:
    """Refuse deep nesting and too many parts before the parser sees them.

    The parser needs some 0.1 ms for each part, time quadratic in the depth, and a deep stack.
    """
    parts = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.count("[") + line.count("{") > 1000 or re.match(r"\s*(?:[-?:]\s+){50}", line):
            raise ConfigError(f"{file}:{number}: nested too deeply")
        parts += 1 + line.count(",") + line.count(": ") + line.count("- ")
        if parts > MAX_PARTS:
            raise ConfigError(f"{file}:{number}: more than {MAX_PARTS} lines, commas, colons and dashes until here")


class _Converter:
    """Turns the parser's nodes into plain values, and writes down the lines."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_VALUES

    def convert(self, node: Node, path: Path_) -> Value:
        line = node.start_mark.line + 1
        self._document.lines.setdefault(path, line)
        self._left -= 1
        if self._left < 0:
            raise self._document.error(path, f"the file expands to more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:  # also where an alias stands inside its own anchor
            raise ConfigError(f"{self._document.file}:{line}: nested more than {MAX_DEPTH} deep")
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, ScalarNode):
            return self._scalar(str(node.value), tag, path)
        if isinstance(node, SequenceNode) and tag == "seq":
            return [self.convert(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and tag == "map":
            return self._mapping(node, path)
        raise self._document.error(path, f"the tag {node.tag!r} is not known here")

    def _mapping(self, node: MappingNode, path: Path_) -> Value:
        result: dict[str, Value] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                raise ConfigError(f"{self._document.file}:{line}: a key must be one word")
            name = str(key.value)
            at = (*path, name)
            if name in result:
                message = f"the key {name!r} is there twice (first in line {self._document.lines[at]})"
                raise ConfigError(f"{self._document.file}:{line}: {path_text(at)}: {message}")
            self._document.lines[at] = line
            result[name] = self.convert(value, at)
        return result

    def _scalar(self, text: str, tag: str, path: Path_) -> Value:
        if tag == "str":
            return text
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in ("true", "yes", "on")
        try:
            if tag == "int":
                return int(text.replace("_", ""), 0 if re.match(r"[+-]?0[xob]", text) else 10)
            if tag == "float" and math.isfinite(float(text.replace("_", ""))):
                return float(text.replace("_", ""))
        except ValueError:
            pass
        raise self._document.error(path, f"{short(text)} ({tag}) cannot be used here: put it in quotes if it is text")
