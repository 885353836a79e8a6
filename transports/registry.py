"""Which transports there are: one visible tuple, and look-ups in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hccl_py.core.errors import ConfigError
from hccl_py.transports import loopback, shm, tcp
from hccl_py.transports.base import TransportSpec


@dataclass(frozen=True)
class Survey:
    """One line of ``hccl-py doctor``: a transport, and whether it can work here with its default options."""

    name: str
    available: bool
    reason: str


def builtin_transports() -> tuple[TransportSpec[Any], ...]:
    """The transports that come with hccl_py, in order of preference between ranks that can use several."""
    return (shm.SPEC, tcp.SPEC, loopback.SPEC)


def find(name: str, transports: Iterable[TransportSpec[Any]] | None = None) -> TransportSpec[Any]:
    """The transport ``name`` among ``transports`` (None: the built-in ones).

    Raises ConfigError for an unknown name, with the nearest one and all there are.
    """
    by_name = {spec.name: spec for spec in (builtin_transports() if transports is None else transports)}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"there is no transport {name!r}; {hint}There are: {', '.join(by_name)}")


def survey(transports: Iterable[TransportSpec[Any]] | None = None) -> tuple[Survey, ...]:
    """Ask each of ``transports`` (None: the built-in ones) whether it can work on this machine."""
    asked = [(spec.name, spec.availability()) for spec in (builtin_transports() if transports is None else transports)]
    return tuple(Survey(name, found.ok, found.reason) for name, found in asked)
