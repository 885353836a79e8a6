"""XML as plain elements that know their line. No entities, no network, bounded depth: the files come from strangers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from hccl_py.core.errors import ConfigError

MAX_DEPTH = 200
MAX_ELEMENTS = 500_000


@dataclass
class Element:
    """One element: tag, attributes, line (from 1), children."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """An attribute."""
        return self.attributes.get(name, default)

    def named(self, tag: str) -> Iterator[Element]:
        """The children with that tag."""
        return (child for child in self.children if child.tag == tag)


def parse_xml(text: str, file: str) -> Element:
    """The root element.

    Raises:
        ConfigError: not XML, too deep or too large, or it declares entities; says file:line.
    """
    parser = expat.ParserCreate()
    stack = [Element("", {}, 0)]
    count = 0

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{file}:{parser.CurrentLineNumber}: {message}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) > MAX_DEPTH or count > MAX_ELEMENTS:
            refuse(f"more than {MAX_DEPTH} deep" if len(stack) > MAX_DEPTH else f"more than {MAX_ELEMENTS} elements")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def entity(*_: object) -> None:
        refuse("entities are not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        raise ConfigError(f"{file}:{error.lineno}: not XML: {expat.ErrorString(error.code)}") from error
    return stack[0].children[0]
