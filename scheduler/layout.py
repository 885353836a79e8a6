"""Layout: what a collective gives each rank and asks of it, in blocks and slots. The verifier's specification.

A slot index is ``block * slots_per_block + k``. BARRIER has no blocks for its caller; its programs see one block in and
one out, tokens that belong to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.core.types import Collective

C = Collective


@dataclass(frozen=True)
class Layout:
    """INPUT and OUTPUT of ``rank`` in a collective over ``world`` ranks."""

    collective: Collective
    world: int
    root: int
    rank: int
    slots_per_block: int

    @property
    def is_root(self) -> bool:
        """True if this rank is the root."""
        return self.rank == self.root

    @property
    def input_blocks(self) -> int:
        """Blocks of INPUT: 0, 1 or world."""
        if self.collective in (C.REDUCE_SCATTER, C.ALL_TO_ALL):
            return self.world
        if self.collective is C.SCATTER:
            return self.world if self.is_root else 0
        if self.collective is C.BROADCAST:
            return int(self.is_root)
        return 1

    @property
    def output_blocks(self) -> int:
        """Blocks of OUTPUT: 0, 1 or world."""
        if self.collective in (C.ALL_GATHER, C.ALL_TO_ALL):
            return self.world
        if self.collective is C.GATHER:
            return self.world if self.is_root else 0
        if self.collective is C.REDUCE:
            return int(self.is_root)
        return 1

    @property
    def input_slots(self) -> int:
        """Slots of INPUT."""
        return self.input_blocks * self.slots_per_block

    @property
    def output_slots(self) -> int:
        """Slots of OUTPUT."""
        return self.output_blocks * self.slots_per_block

    def in_place_shifts(self) -> tuple[int, int]:
        """Where INPUT and OUTPUT begin, in slots, inside the larger of the two when a call is in place."""
        if not (self.input_blocks and self.output_blocks):
            return 0, 0
        if self.collective in (C.ALL_GATHER, C.GATHER):
            return self.rank * self.slots_per_block, 0
        if self.collective in (C.REDUCE_SCATTER, C.SCATTER):
            return 0, self.rank * self.slots_per_block
        return 0, 0

    def input_owner(self, slot: int) -> tuple[int, int]:
        """Names the size of an INPUT slot: equal names, equal number of elements, whatever the counts of the blocks."""
        block = slot // self.slots_per_block
        if self.collective in (C.ALL_GATHER, C.GATHER):
            return self.rank, 0
        if self.collective is C.ALL_TO_ALL:
            return self.rank, block
        return block, 0

    def output_owner(self, slot: int) -> tuple[int, int]:
        """Names the size of an OUTPUT slot, as :meth:`input_owner`."""
        block = slot // self.slots_per_block
        if self.collective in (C.REDUCE_SCATTER, C.SCATTER):
            return self.rank, 0
        if self.collective is C.ALL_TO_ALL:
            return block, self.rank
        return block, 0

    def wanted(self, slot: int) -> tuple[int, int | None]:
        """What an OUTPUT slot must hold at the end: ``(INPUT slot, rank it comes from)``; rank None: of all ranks."""
        block, k = divmod(slot, self.slots_per_block)
        own = self.rank * self.slots_per_block + k
        if self.collective in (C.ALL_GATHER, C.GATHER):
            return k, block
        if self.collective is C.ALL_TO_ALL:
            return own, block
        if self.collective is C.SCATTER:
            return own, self.root
        if self.collective is C.REDUCE_SCATTER:
            return own, None
        return slot, self.root if self.collective is C.BROADCAST else None
