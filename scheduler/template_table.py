"""ClassTable: the operands of a class as columns, so that what holds for one operand or one step is checked at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hccl_py.scheduler.program import Where

if TYPE_CHECKING:
    from hccl_py.scheduler.template import ClassOperand, ClassProgram

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class ClassTable:
    """Operands in order: step by step, sources before targets.

    Attributes:
        step, where, raw, channel, span: of each operand.
        side: 0 for sources, 1 for targets.
        place: of each operand and member, its slot, or its peer for messages.
        num_steps: of the class.
    """

    step: Ints
    side: Ints
    where: Ints
    raw: Ints
    channel: Ints
    span: Ints
    place: Ints
    num_steps: int

    @classmethod
    def of(cls, part: ClassProgram) -> ClassTable:
        """The table of a class."""
        operands: list[ClassOperand] = []
        sources, targets = [], []
        for step in part.steps:
            operands += step.sources
            operands += step.targets
            sources.append(len(step.sources))
            targets.append(len(step.targets))
        lengths = np.array([sources, targets], dtype=np.int64).reshape(2, -1)
        step_of = np.repeat(np.arange(len(part.steps)), lengths.sum(axis=0))
        side = np.repeat(np.tile([0, 1], len(part.steps)), lengths.T.ravel())
        peer = Where.PEER
        place = np.array([o[3] if o[0] is peer else o[4] for o in operands], dtype=np.int64)
        rest = np.array([(o[0], o[1], o[2], o[5]) for o in operands], dtype=np.int64).reshape(-1, 4)
        where, raw, channel, span = rest.T
        at = place.reshape(len(operands), len(part.members))
        return cls(step_of, side, where, raw, channel, span, at, len(part.steps))

    @property
    def is_peer(self) -> Bools:
        """Messages."""
        found: Bools = self.where == Where.PEER
        return found

    def sound(self, members: Ints, world: int, channels: int, slots: int) -> bool:
        """What check.py asks of one program of an all_reduce, for all members; True if nothing is wrong."""
        peer, local = self.is_peer, ~self.is_peer
        at = self.place
        inside = (at >= 0).all() and (at[peer] < world).all() and (at[peer] != members).all()
        inside &= (at[local] + self.span[local, None] <= slots).all() and (self.where[local] <= Where.OUTPUT).all()
        inside &= ((self.channel >= 0) & (self.channel < channels))[peer].all() and (self.span > 0).all()
        if not inside or not len(self.step):
            return bool(inside) and not self.num_steps
        target = self.side == 1
        sources, targets = self._count(~target), self._count(target)
        local_targets = self._count(target & local)
        if (sources == 0).any() or (targets == 0).any() or (self._count(local) == 0).any():
            return False
        many = (local_targets > 1) | ((local_targets == 0) & (targets > 1) & (sources > 1))
        spans_differ = not self._one(self.span[:, None], np.ones_like(local))
        if many.any() or (self.where[target] == Where.INPUT).any() or spans_differ:
            return False
        # in the one block that there is, slots of equal size are the same slots; no two messages of one channel
        ends = ((self.step * 2 + self.side) * channels + self.channel)[peer, None] * world + at[peer]
        return self._one(at, local) and not (np.diff(np.sort(ends, axis=0), axis=0) == 0).any()

    def _count(self, which: Bools) -> Ints:
        return np.bincount(self.step[which], minlength=self.num_steps)

    def _one(self, values: Ints, which: Bools) -> bool:
        """True if in each step these have one value, member by member."""
        step, values = self.step[which], values[which]
        same = step[1:] == step[:-1]
        return bool((values[1:][same] == values[:-1][same]).all())

    def touches(self, number: Ints, num_cuts: int, words: Callable[[int], Words]) -> Words:
        """The sum of one word for each operand that touches it: of each member and each piece of a block (``number``:
        from slots to pieces)."""
        local = ~self.is_peer
        word = words(len(self.step))[local]
        begins, ends = self.place[local], self.place[local] + self.span[local, None]
        found = np.zeros((begins.shape[1], num_cuts), dtype=np.uint64)
        member = np.arange(begins.shape[1])
        np.add.at(found, (member, number[begins]), word[:, None])
        np.subtract.at(found, (member, number[ends]), word[:, None])
        total: Words = np.cumsum(found, axis=1, dtype=np.uint64)
        return total
