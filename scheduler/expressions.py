"""Expressions: symbolic values, hash-consed, so that equal numbers mean equal bits.

A leaf is what one rank puts in (an INPUT slot). A fold is a list of values added from left to right and rounded once.
"""

from __future__ import annotations

from hccl_py.core.errors import PlanError


class Expressions:
    """A table of values; each value is a number.

    Attributes:
        slot: of each value, the INPUT slot whose contributions it holds.
        ranks: of each value, the ranks whose contributions it holds, as a bit mask.
        leaf: of each value, whether it is one raw contribution.
    """

    def __init__(self) -> None:
        self.slot: list[int] = []
        self.ranks: list[int] = []
        self.leaf: list[bool] = []
        self._parts: list[tuple[int, ...]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def input(self, rank: int, slot: int) -> int:
        """The content of an INPUT slot of ``rank``."""
        return self._number((-1, rank, slot), slot, 1 << rank, leaf=True)

    def fold(self, parts: tuple[int, ...]) -> int:
        """Left fold; of one value, that value.

        Raises:
            PlanError: a rank's contribution would be in it twice, or contributions to different results.
        """
        if len(parts) == 1:
            return parts[0]
        known = self._known.get(parts)
        if known is not None:
            return known
        slot, ranks = self.slot[parts[0]], 0
        for part in parts:
            if self.slot[part] != slot:
                raise PlanError(f"wrong block: adds up contributions of INPUT slots {slot} and {self.slot[part]}")
            twice = ranks & self.ranks[part]
            if twice:
                raise PlanError(f"adds the contribution of rank {twice.bit_length() - 1} twice")
            ranks |= self.ranks[part]
        return self._number(parts, slot, ranks, leaf=False)

    def is_canonical(self, value: int, world: int) -> bool:
        """True if the value is one left fold over the contributions of ranks 0 to world - 1 in this order."""
        parts = self._parts[value]
        if self.leaf[value]:
            return world == 1
        return len(parts) == world and all(
            self.leaf[part] and self.ranks[part] == 1 << rank for rank, part in enumerate(parts)
        )

    def text(self, value: int) -> str:
        """ "((r0 + r1) + r2)", for messages."""
        if self.leaf[value]:
            return f"r{self.ranks[value].bit_length() - 1}"
        return "(" + " + ".join(self.text(part) for part in self._parts[value]) + ")"

    def _number(self, key: tuple[int, ...], slot: int, ranks: int, leaf: bool) -> int:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.slot)
            self.slot.append(slot)
            self.ranks.append(ranks)
            self.leaf.append(leaf)
            self._parts.append(() if leaf else key)
        return known
