"""Ranges: many names as few texts such as ``gpu[0-7]``, which `names.expand_range` turns back into the same names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hccl_py.topology.node import natural_key

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)", re.DOTALL)


def fold(names: Iterable[str]) -> list[str]:
    """The fewest texts, in natural order, that stand for exactly these names; names may have one ``HOST/``."""
    words: dict[str, set[str]] = {}
    for name in names:
        host, _, local = name.rpartition("/")
        words.setdefault(host, set()).add(local)
    texts = _fold_words(words.pop("", ()))
    by_hosts: dict[tuple[str, ...], set[str]] = {}  # hosts with equal locals, then locals with equal hosts: few texts
    for host, locals_ in words.items():
        by_hosts.setdefault(tuple(sorted(locals_)), set()).add(host)
    for inner, hosts in by_hosts.items():
        some_hosts, some_locals = _fold_words(hosts), _fold_words(inner)
        if any("[" in host for host in some_hosts) and any("[" in local for local in some_locals):
            # a text has one range: write the shorter side out
            if len(inner) * len(some_hosts) <= len(hosts) * len(some_locals):
                some_locals = sorted(inner)
            else:
                some_hosts = sorted(hosts)
        texts += [f"{host}/{local}" for host in some_hosts for local in some_locals]
    return sorted(texts, key=natural_key)


def _fold_words(names: Iterable[str]) -> list[str]:
    runs: dict[tuple[str, str], set[str]] = {}
    texts = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            texts.append(name)
        else:
            runs.setdefault((match[1], match[3]), set()).add(match[2])
    for (before, after), numbers in runs.items():
        padded = {len(number) for number in numbers if number[0] == "0" and len(number) > 1}
        for width in (0, *sorted(padded)):
            group = [n for n in numbers if len(n) == width] if width else [n for n in numbers if len(n) not in padded]
            if len(group) == 1:
                texts.append(f"{before}{group[0]}{after}")
            elif group:
                texts.append(f"{before}[{_parts(group, width)}]{after}")
    return sorted(texts, key=natural_key)


def _parts(numbers: Iterable[str], width: int) -> str:
    """``0-3,7``."""
    parts: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(str(number).zfill(width) for number in part) for part in parts)
