"""RankClasses: which ranks of a plan behave alike on a topology, so that one of each class need be simulated only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hccl_py.scheduler.program import Program, Where


@dataclass(frozen=True)
class RankClasses:
    """A partition of the ranks.

    Attributes:
        of: class of each rank.
        representatives: of each class, the rank that is written out.
        peers: of each rank, the ranks it exchanges messages with. Ranks of a class do the same with the peers in the
            same places of their lists.
    """

    of: tuple[int, ...]
    representatives: tuple[int, ...]
    peers: tuple[tuple[int, ...], ...]

    def slot(self, rank: int, peer: int) -> int:
        """Place of ``peer`` in the list of ``rank``."""
        return self.peers[rank].index(peer)

    @classmethod
    def apart(cls, world: int, program: Callable[[int], Program]) -> RankClasses:
        """Every rank in a class of its own."""
        return cls(tuple(range(world)), tuple(range(world)), tuple(peers_of(program(rank)) for rank in range(world)))


def peers_of(program: Program) -> tuple[int, ...]:
    """The ranks that a rank exchanges messages with, in the order in which its program names them."""
    found: dict[int, None] = {}
    for step in program.steps:
        for operands in step:
            for operand in operands:
                if operand.where is Where.PEER:
                    found[operand.peer] = None
    return tuple(found)
