"""What every transport says of itself: its properties, its options, and whether it can work on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True)
class Availability:
    """Whether a transport can work here. ``reason`` says why not, or what was found; it is never empty."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class TransportConfig:
    """Base of a transport's options. One that exists is valid: making it with a wrong value raises ConfigError."""

    def keywords(self) -> dict[str, object]:
        """The options as keyword arguments of the native group."""
        return asdict(self)


ConfigT = TypeVar("ConfigT", bound=TransportConfig)


@dataclass(frozen=True)
class TransportSpec(Generic[ConfigT]):
    """One transport, as a value.

    ``probe`` looks at this machine only, for at most some milliseconds, and leaves nothing behind.
    """

    name: str
    same_host_only: bool  # both ranks must be on one host
    maps_peer_memory: bool  # a rank can load directly from a buffer of its peer
    needs: str  # what must be there, for people
    config_type: type[ConfigT]
    probe: Callable[[ConfigT], Availability]

    def availability(self, config: ConfigT | None = None) -> Availability:
        """Whether this transport can work here with ``config`` (None: the defaults)."""
        return self.probe(self.config_type() if config is None else config)
