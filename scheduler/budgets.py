"""Budgets: what a policy may spend, and may do."""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.decision import CODECS
from hccl_py.scheduler.partition import MOST_BUCKET_BYTES


@dataclass(frozen=True)
class Budgets:
    """What the policy may spend.

    Attributes:
        least_gain: share of the time from backward's beginning to the last bucket's end that a switch must be
            predicted to gain.
        probe_share: share of all time that may be spent on probes for which nothing asks but time.
        suspicion_share: share of all time that may be spent on probes, those that a suspicion asks for included.
        first_probe_s: what may be spent before any time has passed.
        most_bucket_bytes: of a bucket.
        codecs: what buckets of float32 may be encoded with, "exact" among them.
    """

    least_gain: float = 0.03
    probe_share: float = 0.005
    suspicion_share: float = 0.01
    first_probe_s: float = 0.25
    most_bucket_bytes: int = MOST_BUCKET_BYTES
    codecs: tuple[str, ...] = ("exact",)

    def __post_init__(self) -> None:
        if "exact" not in self.codecs or set(self.codecs) - set(CODECS):
            raise ConfigError(f"codecs {self.codecs}: some of {', '.join(CODECS)} were expected, exact among them")
