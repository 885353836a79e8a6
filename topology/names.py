"""Short ways to write many names in a cluster file.

Declared names may hold one range, as Slurm writes it: ``gpu[0-7]``, ``node[01-16,20]`` (zeros in front are kept).
Ends of links and places of ranks may be patterns over declared names: ``*`` stands for any letters but "/", ``<i>`` for
a number, the same in both ends of a link: ``between: [node<n>/nic<r>, leaf<r>]``; ranges work there too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError
from hccl_py.topology.node import did_you_mean

MAX_NAMES = 65536  # of one range: bounds the memory that a few bytes of YAML can ask for
_RANGE = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SPECIAL = re.compile(r"\*|<([^<>]*)>")


def expand_range(text: str) -> tuple[str, ...]:
    """The names that ``text`` stands for, in the order written: ``a[0-2]`` gives a0, a1, a2.

    Raises:
        ConfigError: a malformed, backward or too large range, or a name that comes out twice.
    """
    if "[" not in text and "]" not in text:
        return (text,)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r}: a name may have one range, such as gpu[0-7] or node[1-4,7]")
    before, inner, after = match.groups()
    numbers: list[str] = []
    for part in inner.split(","):
        bounds = _PART.fullmatch(part.strip())
        if bounds is None:
            raise ConfigError(f"{text!r}: {part!r} is not a number or a range such as 0-7")
        low, high = bounds[1], bounds[2] or bounds[1]
        if int(high) < int(low):
            raise ConfigError(f"{text!r}: the range {part!r} runs backward")
        if len(numbers) + int(high) - int(low) >= MAX_NAMES:
            raise ConfigError(f"{text!r}: more than {MAX_NAMES} names")
        width = len(low) if low.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in range(int(low), int(high) + 1)]
    names = tuple(f"{before}{number}{after}" for number in numbers)
    if len(set(names)) != len(names):
        raise ConfigError(f"{text!r}: a name comes out twice")
    return names


@dataclass(frozen=True)
class Pattern:
    """A pattern over names. ``variables`` are those written ``<x>``, sorted."""

    text: str
    variables: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ConfigError if a range or a variable is malformed."""
        names = expand_range(text)
        variables = {match[1] for match in _SPECIAL.finditer(text) if match[1] is not None}
        for variable in variables:
            if not re.fullmatch(r"[A-Za-z]\w{0,20}", variable, re.ASCII):
                raise ConfigError(f"{text!r}: <{variable}> is not a variable: write a letter, such as <i>")
        return cls(text, tuple(sorted(variables)), tuple(_compile(name) for name in names))

    @property
    def literal(self) -> bool:
        """True if the text names one node and nothing in it is special."""
        return len(self.expressions) == 1 and "[" not in self.text and not _SPECIAL.search(self.text)

    def match(self, names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
        """Each name that matches, with what its variables stand for, in the order of ``names``."""
        if self.literal:
            if self.text in names:
                yield self.text, {}
            return
        for name in names:
            for expression in self.expressions:
                found = expression.fullmatch(name)
                if found is not None:
                    yield name, found.groupdict()
                    break


def select(text: str, names: Collection[str]) -> tuple[str, ...]:
    """All names that match the pattern, in the order of ``names``.

    Raises:
        ConfigError: a malformed pattern, or none matches; names the nearest.
    """
    found = tuple(name for name, _ in Pattern.parse(text).match(names))
    if not found:
        raise ConfigError(_nothing(text, names))
    return found


def pairs(a: str, b: str, names: Collection[str], limit: int) -> list[tuple[str, str]]:
    """All ordered pairs (x, y), x matching ``a``, y matching ``b``, x != y, variables that both have being equal.

    Raises:
        ConfigError: a malformed pattern, no match for one of them, no pair, or more than ``limit``.
    """
    left, right = Pattern.parse(a), Pattern.parse(b)
    shared = [variable for variable in left.variables if variable in right.variables]
    rights: dict[tuple[str, ...], list[str]] = {}
    for name, binding in right.match(names):
        rights.setdefault(tuple(binding[variable] for variable in shared), []).append(name)
    if not rights:
        raise ConfigError(_nothing(b, names))
    lefts = list(left.match(names))
    if not lefts:
        raise ConfigError(_nothing(a, names))
    partners = [(x, rights.get(tuple(binding[variable] for variable in shared), [])) for x, binding in lefts]
    if sum(len(ys) for _, ys in partners) > limit:  # before the first is made, and with it thousands of links
        raise ConfigError(f"{a!r} and {b!r} make more than {limit} links")
    found = [(x, y) for x, ys in partners for y in ys if x != y]
    if not found:
        raise ConfigError(f"{a!r} and {b!r} match, but no two of their nodes go together")
    return found


def _compile(name: str) -> re.Pattern[str]:
    out, at, seen = "", 0, set()
    for special in _SPECIAL.finditer(name):
        out += re.escape(name[at : special.start()])
        variable = special[1]
        if variable is None:
            out += "[^/]*"
        elif variable in seen:
            out += f"(?P={variable})"
        else:
            seen.add(variable)
            out += f"(?P<{variable}>[0-9]+)"
        at = special.end()
    return re.compile(out + re.escape(name[at:]))


def _nothing(text: str, names: Collection[str]) -> str:
    return f"no node matches {text!r}{did_you_mean(text, names)}"
