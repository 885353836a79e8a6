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
MAX_STEPS = 10_000_000
MAX_SPECIALS = 4
_RANGE = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_NUMBER = "_range"  # no variable begins with _
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


class Work:
    """How many more names patterns may look at: bounds the time that a few kilobytes of YAML can ask for."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count ``steps``.

        Raises:
            ConfigError: there were too many.
        """
        self._left -= steps
        if self._left < 0:
            raise ConfigError("the patterns of this file match too many names too often: write fewer or plainer ones")


@dataclass(frozen=True)
class Pattern:
    """A pattern over names. ``variables`` are those written ``<x>``, sorted."""

    text: str
    variables: tuple[str, ...]
    plain: frozenset[str]  # the names themselves, if nothing is special but a range
    expressions: tuple[tuple[re.Pattern[str], frozenset[str]], ...]  # with what the number of the range may be
    effort: int  # of matching one name

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ConfigError if a range or a variable is malformed."""
        names = expand_range(text)
        variables = {match[1] for match in _SPECIAL.finditer(text) if match[1] is not None}
        for variable in variables:
            if not re.fullmatch(r"[A-Za-z]\w{0,20}", variable, re.ASCII):
                raise ConfigError(f"{text!r}: <{variable}> is not a variable: write a letter, such as <i>")
        if not _SPECIAL.search(text):
            return cls(text, (), frozenset(names), (), 1)
        most = max(len(_SPECIAL.findall(word)) for word in text.split("/"))
        if most > MAX_SPECIALS:
            raise ConfigError(f"{text!r}: more than {MAX_SPECIALS} of * and <x> in one word")
        range_ = _RANGE.fullmatch(text)
        if range_ is not None and len(names) > 1 and _stands_alone(range_):
            numbers = frozenset(name[len(range_[1]) : len(name) - len(range_[3])] for name in names)
            expressions: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = (
                (_compile(range_[1], range_[3]), numbers),
            )
        else:
            expressions = tuple((_compile(name), frozenset[str]()) for name in names)
        effort = len(expressions) * 16 ** max(0, most - 1)  # several in one word: a name may be split in many ways
        return cls(text, tuple(sorted(variables)), frozenset(), expressions, effort)

    def match(self, names: Collection[str], work: Work | None = None) -> Iterator[tuple[str, dict[str, str]]]:
        """Each name that matches, with what its variables stand for, in the order of ``names``."""
        if len(self.plain) == 1:
            (only,) = self.plain
            if only in names:
                yield only, {}
            return
        (work or Work()).spend(self.effort * len(names))
        for name in names:
            if self.plain:
                if name in self.plain:
                    yield name, {}
                continue
            for expression, numbers in self.expressions:
                found = expression.fullmatch(name)
                if found is not None:
                    binding = found.groupdict()
                    if not numbers or binding.pop(_NUMBER) in numbers:
                        yield name, binding
                        break


def select(text: str, names: Collection[str], work: Work | None = None) -> tuple[str, ...]:
    """All names that match the pattern, in the order of ``names``.

    Raises:
        ConfigError: a malformed pattern, or none matches; names the nearest.
    """
    found = tuple(name for name, _ in Pattern.parse(text).match(names, work))
    if not found:
        raise ConfigError(nothing(text, names))
    return found


def pairs(a: str, b: str, names: Collection[str], limit: int, work: Work | None = None) -> list[tuple[str, str]]:
    """All ordered pairs (x, y), x matching ``a``, y matching ``b``, x != y, variables that both have being equal.

    Raises:
        ConfigError: a malformed pattern, no match for one of them, no pair, or more than ``limit``.
    """
    left, right = Pattern.parse(a), Pattern.parse(b)
    shared = [variable for variable in left.variables if variable in right.variables]
    rights: dict[tuple[str, ...], list[str]] = {}
    for name, binding in right.match(names, work):
        rights.setdefault(tuple(binding[variable] for variable in shared), []).append(name)
    if not rights:
        raise ConfigError(nothing(b, names))
    lefts = list(left.match(names, work))
    if not lefts:
        raise ConfigError(nothing(a, names))
    partners = [(x, rights.get(tuple(binding[variable] for variable in shared), [])) for x, binding in lefts]
    if sum(len(ys) for _, ys in partners) > limit:  # before the first is made, and with it thousands of links
        raise ConfigError(f"{a!r} and {b!r} make more than {limit} links")
    found = [(x, y) for x, ys in partners for y in ys if x != y]
    if not found:
        raise ConfigError(f"{a!r} and {b!r} match, but no two of their nodes go together")
    return found


def _stands_alone(found: re.Match[str]) -> bool:
    """Whether a range's number is found in a name in one way only: no digit, variable or * beside it."""
    before, after = found[1].rpartition("/")[2], found[3].partition("/")[0]
    return "*" not in before + after and not re.search(r"[0-9>]$", before) and not re.match(r"[0-9<]", after)


def _compile(*parts: str) -> re.Pattern[str]:
    """The expression of a name; of two parts, with the number of the range between them."""
    out, seen = "", set[str]()
    for index, part in enumerate(parts):
        out += f"(?P<{_NUMBER}>[0-9]+)" if index else ""
        at = 0
        for special in _SPECIAL.finditer(part):
            out += re.escape(part[at : special.start()])
            variable = special[1]
            if variable is None:
                out += "[^/]*"
            elif variable in seen:
                out += f"(?P={variable})"
            else:
                seen.add(variable)
                out += f"(?P<{variable}>[0-9]+)"
            at = special.end()
        out += re.escape(part[at:])
    return re.compile(out)


def nothing(text: str, names: Collection[str]) -> str:
    """The words for a pattern without a match."""
    return f"no node matches {text!r}{did_you_mean(text, names)}"
