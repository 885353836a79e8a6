"""RankClasses: which ranks of a plan behave alike on a topology, so that one of each class need be simulated only.

[Note: classes] Ranks of one *kind* run the same program but for the names of their peers. They behave alike if, peer by
peer, their peers do and the links on the way do; links do if they are equally fast and carry messages of ranks that
behave alike. The coarsest such partition is found by refining: colours of ranks and links are mixed with those of their
neighbours until no class is cut any more (as in the Weisfeiler-Leman test of graphs). Links that all messages together
cannot fill do not count. Where that gives too many classes, latencies do not count either, and a class gets the mean of
its members', which is right for what goes round all of them; where it still gives too many, refining stops before: then
ranks are alike that differ in what is far away from them only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hccl_py.scheduler.program import Program, Where
from hccl_py.topology.graph import Link, Topology
from hccl_py.topology.placement import Placement

_Colours = npt.NDArray[np.uint64]
_MANY = 16  # classes


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

    @classmethod
    def alike(
        cls, kinds: Sequence[int], peers: Sequence[Sequence[int]], topology: Topology, placement: Placement
    ) -> RankClasses:
        """The coarsest partition on this topology.

        Args:
            kinds: of each rank; ranks of equal kind have equal programs but for the peers in ``peers``.
            peers: of each rank, in an order that is the same for all ranks of a kind.
        """
        ways = _Ways(peers, topology, placement)
        known = np.array(kinds, dtype=np.uint64)
        of = ways.refine(known, latencies=True)
        if len(set(of)) > _MANY:
            of = ways.refine(known, latencies=False, most=max(_MANY, len(set(kinds))))
        first: dict[int, int] = {}
        for rank, colour in enumerate(of):
            first.setdefault(colour, rank)
        number = {colour: index for index, colour in enumerate(first)}
        return cls(tuple(number[colour] for colour in of), tuple(first.values()), tuple(map(tuple, peers)))


def peers_of(program: Program) -> tuple[int, ...]:
    """The ranks that a rank exchanges messages with, in the order in which its program names them."""
    found: dict[int, None] = {}
    for step in program.steps:
        for operands in step:
            for operand in operands:
                if operand.where is Where.PEER:
                    found[operand.peer] = None
    return tuple(found)


class _Ways:
    """The lanes from all ranks to all their peers, and the links on them that matter."""

    def __init__(self, peers: Sequence[Sequence[int]], topology: Topology, placement: Placement) -> None:
        links: dict[Link, int] = {}
        lanes, lengths, on_way, latency_s = [], [], [], []
        for rank, others in enumerate(peers):
            for slot, peer in enumerate(others):
                path = placement.path(rank, peer, topology)
                lanes.append((rank, slot, peer))
                lengths.append(len(path))
                latency_s.append(round(Topology.latency_s(path) * 1e12))
                on_way += [links.setdefault(link, len(links)) for link in path]
        self._senders, self._slots, self._receivers = np.array(lanes, dtype=np.int64).reshape(-1, 3).T
        self._latency_ps = np.array(latency_s, dtype=np.uint64)
        lane = np.repeat(np.arange(len(lanes)), lengths)
        link = np.array(on_way, dtype=np.int64)
        bandwidth_Bps = np.array([each.bandwidth_Bps for each in links])
        most_Bps = np.full(len(lanes), np.inf)
        np.minimum.at(most_Bps, lane, bandwidth_Bps[link])
        fills = np.bincount(link, most_Bps[lane], minlength=len(links)) > bandwidth_Bps * (1 + 1e-9)
        # of the links of a lane that nobody else uses the narrowest fills up; one is enough
        narrow = np.bincount(link, minlength=len(links))[link] == 1
        narrow &= bandwidth_Bps[link] == most_Bps[lane]
        kept = fills[link] | narrow
        self._lane, self._link = lane[kept], link[kept]
        self._wires = np.unique(bandwidth_Bps, return_inverse=True)[1].astype(np.uint64)

    def refine(self, kinds: _Colours, latencies: bool, most: int | None = None) -> list[int]:
        """The class of each rank, by any numbers; at most so many classes, if refining can stop there."""
        ranks, classes = kinds, 0
        delays = self._latency_ps if latencies else np.zeros_like(self._latency_ps)
        while True:
            ends = _mix(ranks[self._senders], self._slots, ranks[self._receivers], delays)
            lines = _mix(self._wires, _added(self._link, ends[self._lane], len(self._wires)))
            ways = _mix(ends, _added(self._lane, lines[self._link], len(ends)))
            new = _mix(ranks, _added(self._senders, ways, len(ranks)))
            distinct, of = np.unique(new, return_inverse=True)
            if len(distinct) == classes or (classes and most is not None and len(distinct) > most):
                return [int(colour) for colour in (of if len(distinct) == classes else ranks)]
            ranks, classes = of.astype(np.uint64), len(distinct)


def _added(where: npt.NDArray[np.int64], colours: _Colours, size: int) -> _Colours:
    """Colours added up (modulo 2**64) by place: the sum of a multiset does not depend on its order."""
    total = np.zeros(size, dtype=np.uint64)
    np.add.at(total, where, colours)
    return total


def _mix(first: _Colours, *more: npt.NDArray[np.generic]) -> _Colours:
    """One colour of several (the finalizer of splitmix64 after each)."""
    mixed = first.astype(np.uint64)
    for other in (np.zeros(1, dtype=np.uint64), *more):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + other.astype(np.uint64) + np.uint64(0xD1B54A32D192ED03)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed
