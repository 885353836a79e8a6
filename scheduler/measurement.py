"""Measurement: what one rank saw in one training step, in a form that all ranks can exchange."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import ConfigError

_HEAD = struct.Struct("<4sIQdddddII")
_CHANNEL = struct.Struct("<IIQdd")
_BUCKET = struct.Struct("<Qdd")
_MAGIC = b"hpm1"


@dataclass(frozen=True)
class ChannelUse:
    """What this rank sent to a peer by one channel since the last measurement.

    Attributes:
        sent_bytes: payload that the peer has acknowledged.
        busy_s: seconds during which some of it was under way, the peer being ready to take it.
        stalled_s: seconds during which the peer took nothing: it was late or had no CPU.
    """

    peer: int
    channel: int
    sent_bytes: int
    busy_s: float
    stalled_s: float = 0.0


@dataclass(frozen=True)
class BucketRun:
    """One bucket's all_reduce: seconds from the beginning of backward to its start and to its end on this rank."""

    num_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Measurement:
    """One step of one rank.

    Attributes:
        step: the step's number.
        rank: whose.
        step_s: seconds of the whole step.
        backward_s: seconds of backward without what it waited for communication at its end.
        exposed_s: seconds that the rank waited for communication at the end of backward.
        waited_s: seconds between this rank's start of the first bucket and the last rank's: how early it was; see
            :func:`late_ranks`.
        cpu_share: CPU time over wall time of the step, over all threads (0: not known).
        channels, buckets: what was sent, and when.
    """

    step: int
    rank: int
    step_s: float
    backward_s: float = 0.0
    exposed_s: float = 0.0
    waited_s: float = 0.0
    cpu_share: float = 0.0
    channels: tuple[ChannelUse, ...] = ()
    buckets: tuple[BucketRun, ...] = ()

    @property
    def synced_s(self) -> float:
        """Seconds from the beginning of backward to the end of the last bucket; of the step if that is not known."""
        return self.backward_s + self.exposed_s if self.exposed_s > 0 else self.step_s

    def to_bytes(self) -> bytes:
        """The exchanged form."""
        head = (_MAGIC, self.rank, self.step, self.step_s, self.backward_s, self.exposed_s, self.waited_s,
                self.cpu_share, len(self.channels), len(self.buckets))  # fmt: skip
        parts = [_HEAD.pack(*head)]
        parts += [_CHANNEL.pack(c.peer, c.channel, c.sent_bytes, c.busy_s, c.stalled_s) for c in self.channels]
        parts += [_BUCKET.pack(b.num_bytes, b.start_s, b.end_s) for b in self.buckets]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Measurement:
        """What :meth:`to_bytes` made; bytes that follow are ignored.

        Raises:
            ConfigError: it is not one, or it is cut off.
        """
        try:
            magic, rank, step, *rest = _HEAD.unpack_from(data)
            step_s, backward_s, exposed_s, waited_s, cpu_share, num_channels, num_buckets = rest
            at = _HEAD.size
            channels, buckets = [], []
            for _ in range(num_channels):
                channels.append(ChannelUse(*_CHANNEL.unpack_from(data, at)))
                at += _CHANNEL.size
            for _ in range(num_buckets):
                buckets.append(BucketRun(*_BUCKET.unpack_from(data, at)))
                at += _BUCKET.size
        except struct.error as error:
            raise ConfigError(f"measurement: cut off: {error}") from None
        if magic != _MAGIC:
            raise ConfigError(f"measurement: begins with {magic!r}, not {_MAGIC!r}: another version of hccl_py?")
        times = (step_s, backward_s, exposed_s, waited_s, cpu_share)
        return cls(step, rank, *times, tuple(channels), tuple(buckets))


@dataclass(frozen=True)
class ProbeRun:
    """What one rank received in one round of a probe: ``num_bytes`` from ``src`` in ``seconds``, by wall clock."""

    round: int
    src: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Probe:
    """What one rank received in a probe, in which in every round each rank sends to one other.

    Attributes:
        step: the step before which it was made.
        rank: whose.
        number: which probe of that step.
        seconds: how long it kept the rank.
    """

    step: int
    rank: int
    number: int
    seconds: float
    runs: tuple[ProbeRun, ...]


def late_ranks(measurements: Sequence[Measurement], least_s: float) -> tuple[int, ...]:
    """Ranks for which the others waited ``least_s`` or more: their backward took so much longer than the median."""
    if len(measurements) < 2:
        return ()
    times = sorted(m.backward_s for m in measurements)
    median = times[(len(times) - 1) // 2]
    return tuple(m.rank for m in measurements if m.backward_s - median >= least_s)
