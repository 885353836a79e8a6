"""Program: one rank's part of a plan, a list of steps; each step is a fold of sources into targets.

Its bytes are what the engine loads: native/include/hccl_py/program.hpp has the same structures, docs/PLAN_FORMAT.md
describes them. A Program by itself promises nothing; a Plan (plan.py) holds programs that were verified together.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order

MAGIC = 0x4E4C5048  # "HPLN"
VERSION = 1
WINDOW = 64  # at most this many unfinished steps of a rank are open at a time
_FLAG_ONE_ROUND = 1
_LENDS_SHIFT, _LENDS_MASK = 1, 3  # two bits of the flags
_FLAG_SHARED_FOLD = 8
_HEADER = struct.Struct("<IHBB12IQ")
_SCRATCH = struct.Struct("<II")
_STEP = struct.Struct("<IHHII")
_OPERAND = struct.Struct("<BBHIII")


class Where(IntEnum):
    """Where an operand lives."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    PEER = 3


class Lends(IntEnum):
    """When messages may stay in the sender's memory until they are taken; see lending.py."""

    NEVER = 0
    APART = 1  # where INPUT and OUTPUT are separate
    ALWAYS = 2


class Operand(NamedTuple):
    """One source or target of a step: ``span`` slots from ``slot`` on, or a message of ``span`` slots.

    Attributes:
        where: INPUT, OUTPUT, SCRATCH, or PEER for a message.
        raw: of a source: the content is one rank's unscaled contribution, not a sum; of a PEER target, in what the
            engine loads: the message may land in the peer's OUTPUT (lending.py).
        channel: PEER only: which of the parallel channels to that rank.
        peer: PEER only: the rank.
        slot: first slot; in a source from a peer in a one-round plan, the slot of the peer's INPUT; in what the
            engine loads, of a target that may land, the slot of the peer's OUTPUT, and of the source that gets it, 1.
        span: number of slots.
    """

    where: Where
    raw: bool
    channel: int
    peer: int
    slot: int
    span: int

    def __str__(self) -> str:
        if self.where is Where.PEER:
            return f"rank {self.peer}" + (f" (channel {self.channel})" if self.channel else "")
        last = f"..{self.slot + self.span - 1}" if self.span > 1 else ""
        return f"{self.where.name}[{self.slot}{last}]"


class Step(NamedTuple):
    """targets = fold of sources, from left to right, rounded once at the end."""

    sources: tuple[Operand, ...]
    targets: tuple[Operand, ...]

    @property
    def word(self) -> str:
        """Which of the five words this step is, or "fold" for the fused forms."""
        from_peers = [o.where is Where.PEER for o in self.sources]
        to_peers = [o.where is Where.PEER for o in self.targets]
        if len(self.sources) == 1:
            if from_peers[0]:
                return "fold" if any(to_peers) else "recv"
            return "send" if all(to_peers) else ("fold" if any(to_peers) else "copy")
        if any(to_peers):
            return "fold"
        return "recv_reduce" if any(from_peers) else "reduce"

    def __str__(self) -> str:
        sources = " + ".join(str(o) for o in self.sources)
        return f"{self.word} {sources} -> {', '.join(str(o) for o in self.targets)}"


class ScratchSize(NamedTuple):
    """A scratch slot is as large as this slot of INPUT or OUTPUT."""

    where: Where
    slot: int


@dataclass(frozen=True)
class Program:
    """One rank's steps, with the shape of its buffers.

    ``order`` and ``digest`` (first 8 bytes of the plan's digest) are FREE and 0 until a Plan has verified the program.
    """

    collective: Collective
    world: int
    rank: int
    root: int
    slots_per_block: int
    input_blocks: int
    output_blocks: int
    scratch: tuple[ScratchSize, ...]
    steps: tuple[Step, ...]
    channels: int = 1
    one_round: bool = False
    shared_fold: bool = False
    lends: Lends = Lends.NEVER  # set by Plan.program
    order: Order = Order.FREE
    digest: int = 0

    def to_bytes(self) -> bytes:
        """The bytes that the engine loads."""
        num_operands = sum(len(step.sources) + len(step.targets) for step in self.steps)
        header = _HEADER.pack(
            MAGIC, VERSION, self.collective, self.order, self.world, self.rank, self.root, self.slots_per_block,
            self.input_blocks, self.output_blocks, len(self.scratch), len(self.steps), num_operands, self.channels,
            self.one_round * _FLAG_ONE_ROUND | self.lends << _LENDS_SHIFT | self.shared_fold * _FLAG_SHARED_FOLD, 0,
            self.digest,
        )  # fmt: skip
        parts = [header]
        parts.extend(_SCRATCH.pack(*size) for size in self.scratch)
        first = 0
        for sources, targets in self.steps:
            parts.append(_STEP.pack(first, len(sources), len(targets), 0, 0))
            first += len(sources) + len(targets)
        for sources, targets in self.steps:
            parts.extend(_OPERAND.pack(*operand) for operand in sources)
            parts.extend(_OPERAND.pack(*operand) for operand in targets)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """The program that has these bytes.

        Raises:
            PlanError: cut off, of another format or version, or a number that the format does not have.
        """
        try:
            return cls._parse(data)
        except (struct.error, ValueError, IndexError) as error:
            raise PlanError(f"these {len(data)} bytes are no program: {error}") from None

    @classmethod
    def _parse(cls, data: bytes) -> Program:
        fields = _HEADER.unpack_from(data)
        magic, version, collective, order, world, rank, root, slots, blocks_in, blocks_out = fields[:10]
        num_scratch, num_steps, num_operands, channels, flags, _, digest = fields[10:]
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"magic {magic:#x}, version {version}; expected {MAGIC:#x}, {VERSION}")
        at_steps = _HEADER.size + num_scratch * _SCRATCH.size
        at_operands = at_steps + num_steps * _STEP.size
        if len(data) != at_operands + num_operands * _OPERAND.size:
            raise ValueError("the tables do not fill them exactly")
        scratch = tuple(
            ScratchSize(Where(where), slot) for where, slot in _SCRATCH.iter_unpack(data[_HEADER.size : at_steps])
        )
        operands = [
            Operand(Where(where), bool(raw), *rest) for where, raw, *rest in _OPERAND.iter_unpack(data[at_operands:])
        ]
        steps = []
        end = 0
        for first, num_sources, num_targets, _, _ in _STEP.iter_unpack(data[at_steps:at_operands]):
            if first != end:
                raise ValueError("steps do not use the operands in order")
            middle, end = first + num_sources, first + num_sources + num_targets
            steps.append(Step(tuple(operands[first:middle]), tuple(operands[middle:end])))
        if end != num_operands:
            raise ValueError("operands that belong to no step")
        return cls(
            Collective(collective), world, rank, root, slots, blocks_in, blocks_out, scratch, tuple(steps),
            channels, bool(flags & _FLAG_ONE_ROUND), bool(flags & _FLAG_SHARED_FOLD),
            Lends(flags >> _LENDS_SHIFT & _LENDS_MASK), Order(order), digest,
        )  # fmt: skip
