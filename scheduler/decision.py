"""Decision: what the policy wants of all ranks from a step on; adopted by all of them or by none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property

from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.buckets import BucketPlan

CODECS = ("exact", "bf16")


class Kind(Enum):
    """What a decision asks for."""

    KEEP = "keep"
    PROBE = "probe"
    SWITCH = "switch"


@dataclass(frozen=True)
class PlanChoice:
    """How one bucket travels: the algorithm, its channels to a peer, and what its bytes are on the wire."""

    algorithm: str
    channels: int = 1
    codec: str = "exact"

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise ConfigError(f"codec {self.codec!r}: there are {', '.join(CODECS)}")


@dataclass(frozen=True)
class Tuning:
    """What no model knows the price of, so it is tried.

    Attributes:
        chunk_bytes: a bucket travels as all_reduces of at most so many bytes; 0: as one.
        channels: connections to a peer that plans may use; 0: all that there are.
    """

    chunk_bytes: int = 0
    channels: int = 0

    def __post_init__(self) -> None:
        if self.chunk_bytes < 0 or self.channels < 0:
            raise ConfigError(f"tuning: chunks of {self.chunk_bytes} bytes, {self.channels} channels: not below 0")


@dataclass(frozen=True)
class LinkFigures:
    """What a link of the topology is taken to do from now on."""

    src: str
    dst: str
    bandwidth_Bps: float
    latency_s: float


@dataclass(frozen=True)
class Decision:
    """Keep what is, look at the network more closely, or switch; at the beginning of a step, on all ranks.

    Attributes:
        kind: keep, probe or switch.
        step: the training step from which on it holds.
        why: one sentence for people.
        buckets: the new partition; None: the old one stays.
        choices: how each bucket travels (as many as buckets; empty if the partition stays).
        links: figures of links that differ from the topology's; plan tables are made for them.
        predicted_gain_s: seconds a step that this is predicted to save.
        tuning: of all buckets.

    Raises:
        ConfigError: the number of choices is not that of the buckets.
    """

    kind: Kind
    step: int
    why: str
    buckets: BucketPlan | None = None
    choices: tuple[PlanChoice, ...] = ()
    links: tuple[LinkFigures, ...] = ()
    predicted_gain_s: float = 0.0
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        if len(self.choices) != (len(self.buckets) if self.buckets is not None else 0):
            raise ConfigError(f"decision: {len(self.choices)} choices; one for each bucket was expected")

    @classmethod
    def keep(cls, step: int, why: str) -> Decision:
        """Everything stays as it is."""
        return cls(Kind.KEEP, step, why)

    @classmethod
    def probe(cls, step: int, why: str) -> Decision:
        """All ranks send each other a little, one pair at a time, to see what links do."""
        return cls(Kind.PROBE, step, why)

    @property
    def switches(self) -> bool:
        """True if something changes."""
        return self.kind is Kind.SWITCH

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all of it but ``why``: ranks that will do the same, and only they, have equal ones."""
        parts = [
            self.kind.value,
            self.step,
            self.buckets.digest if self.buckets is not None else "",
            [asdict(choice) for choice in self.choices],
            [[link.src, link.dst, link.bandwidth_Bps.hex(), link.latency_s.hex()] for link in self.links],
            self.predicted_gain_s.hex(),
            asdict(self.tuning),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
