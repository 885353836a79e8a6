"""halving_doubling: exchange with partners 1, 2, 4, ... away. Logarithmically many rounds, least bytes per rank.

Where the world is no power of two, the ranks beyond one fold into a neighbour first: of the first 2 * rest ranks each
even one (a guest) hands its data to the odd one after it (its host), which takes part for both. The others take part
alone. Taking part means having a number v below the power of two. barrier is by dissemination and needs no such step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.common import by_rank
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import Operand
from hccl_py.scheduler.writer import Writer

_DOUBLING = 1  # all_reduce: the channel of the second half, so that it need not wait for the first


class _Fold(NamedTuple):
    """How n ranks are mapped to the numbers 0 .. power - 1."""

    n: int

    @property
    def power(self) -> int:
        return 1 << (self.n.bit_length() - 1)

    @property
    def rest(self) -> int:
        return self.n - self.power

    def is_guest(self, rank: int) -> bool:
        return rank < 2 * self.rest and rank % 2 == 0

    def has_guest(self, rank: int) -> bool:
        return rank < 2 * self.rest and rank % 2 == 1

    def number(self, rank: int) -> int:
        return rank // 2 if rank < 2 * self.rest else rank - self.rest

    def rank(self, v: int) -> int:
        return 2 * v + 1 if v < self.rest else v + self.rest

    def blocks(self, first: int, count: int) -> tuple[int, int]:
        """First block and number of blocks of the ranks (with their guests) numbered ``first .. first + count - 1``."""

        def begin(v: int) -> int:
            return v + min(v, self.rest)

        return begin(first), begin(first + count) - begin(first)


def _write(w: Writer) -> None:
    fold = _Fold(w.world)
    write = {
        Collective.ALL_REDUCE: _all_reduce,
        Collective.REDUCE_SCATTER: _reduce_scatter,
        Collective.ALL_GATHER: _all_gather,
        Collective.BARRIER: _barrier,
    }
    write[w.collective](w, fold)


def _all_reduce(w: Writer, fold: _Fold) -> None:
    """Halve: with each partner reduce the half of the slots that contains one's own. Double: collect them again."""
    power, everything = fold.power, w.output(span=fold.power)
    if fold.is_guest(w.rank):
        w.send(w.input(span=power), w.peer(w.rank + 1))
        w.recv(w.peer(w.rank + 1, raw=False), everything)
        return
    v, held = fold.number(w.rank), w.input(span=power)
    if fold.has_guest(w.rank):
        w.fold([w.peer(w.rank - 1), held], [everything])
        held = everything
    half, first = power // 2, 0
    while half:
        q = fold.rank(v ^ half)
        keep, give = (first + half, first) if v & half else (first, first + half)
        w.send(w.part(held, give, half), w.peer(q))
        raw = half == power // 2 and not fold.has_guest(q)
        sources = by_rank([(w.rank, w.part(held, keep, half)), (q, w.peer(q, raw=raw))])
        # the last fold is also the first message of the doubling
        w.fold(sources, [w.part(everything, keep, half), *([w.peer(q, channel=_DOUBLING)] if half == 1 else [])])
        held, first, half = everything, keep, half // 2
    size = 1
    while size < power:
        q = fold.rank(v ^ size)
        if size > 1:
            w.send(w.output(k=v & -size, span=size), w.peer(q, channel=_DOUBLING))
        w.recv(w.peer(q, raw=False, channel=_DOUBLING), w.output(k=(v ^ size) & -size, span=size))
        size *= 2
    if fold.has_guest(w.rank):
        w.send(everything, w.peer(w.rank - 1))


def _reduce_scatter(w: Writer, fold: _Fold) -> None:
    if fold.is_guest(w.rank):
        w.send(w.input(span=w.world), w.peer(w.rank + 1))
        w.recv(w.peer(w.rank + 1, raw=False), w.output())
        return
    v, held, begin = fold.number(w.rank), w.input(span=w.world), 0
    if fold.has_guest(w.rank):
        sums = w.scratch(held)
        w.fold([w.peer(w.rank - 1), held], [sums])
        held = sums
    half = fold.power // 2
    while half > 1:
        q = fold.rank(v ^ half)
        keep, kept = fold.blocks(v & -half, half)
        give, given = fold.blocks((v ^ half) & -half, half)
        w.send(w.part(held, give - begin, given), w.peer(q))
        mine = w.part(held, keep - begin, kept)
        sums = mine if half < fold.power // 2 or fold.has_guest(w.rank) else w.scratch(w.input(keep, span=kept))
        raw = half == fold.power // 2 and not fold.has_guest(q)
        w.fold(by_rank([(w.rank, mine), (q, w.peer(q, raw=raw))]), [sums])
        held, begin, half = sums, keep, half // 2
    _last_halving(w, fold, held, begin)


def _last_halving(w: Writer, fold: _Fold, held: Operand, begin: int) -> None:
    """Block by block, since a guest's block goes to the guest and one's own to OUTPUT."""
    v = fold.number(w.rank)
    q = fold.rank(v ^ 1)
    give, given = fold.blocks(v ^ 1, 1)
    for block in range(give, give + given):
        w.send(w.part(held, block - begin), w.peer(q))
    keep, kept = fold.blocks(v, 1)
    raw = fold.power == 2 and not fold.has_guest(q)
    for block in range(keep, keep + kept):
        sources = by_rank([(w.rank, w.part(held, block - begin)), (q, w.peer(q, raw=raw))])
        w.fold(sources, [w.output() if block == w.rank else w.peer(block)])


def _all_gather(w: Writer, fold: _Fold) -> None:
    n = w.world
    if fold.is_guest(w.rank):
        w.send(w.input(), w.output(w.rank), w.peer(w.rank + 1))
        for first, count in ((0, w.rank), (w.rank + 1, n - w.rank - 1)):
            if count:
                w.recv(w.peer(w.rank + 1), w.output(first, span=count))
        return
    v, guest = fold.number(w.rank), w.rank - 1
    if fold.has_guest(w.rank):
        w.copy(w.input(), w.output(w.rank))
        w.recv(w.peer(guest), w.output(guest))
    size = 1
    while size < fold.power:
        q = fold.rank(v ^ size)
        first, count = fold.blocks(v & -size, size)
        if size == 1 and not fold.has_guest(w.rank):
            w.send(w.input(), w.output(w.rank), w.peer(q))
        else:
            w.send(w.output(first, span=count), w.peer(q))
        first, count = fold.blocks((v ^ size) & -size, size)
        w.recv(w.peer(q), w.output(first, span=count))
        size *= 2
    if fold.has_guest(w.rank):
        for first, count in ((0, guest), (guest + 1, n - guest - 1)):
            if count:
                w.send(w.output(first, span=count), w.peer(guest))


def _barrier(w: Writer, _: _Fold) -> None:
    """After the message over distance d, a rank has heard of the 2 d ranks before it.

    Tokens of two slots and of one take turns, so that each step waits for the end of the last: [Note: empty tokens] in
    verify.py.
    """
    token, distance, span = w.input(span=2), 1, 2
    while distance < w.world:
        w.send(token, w.peer((w.rank + distance) % w.world))
        w.recv(w.peer((w.rank - distance) % w.world), w.output(span=span))
        distance, span = distance * 2, 3 - span
        token = w.output(span=span)


def _shape(collective: Collective, world: int, _: Mapping[str, ParamValue]) -> Shape:
    if collective is Collective.ALL_REDUCE:
        return Shape(slots=_Fold(world).power, channels=2)
    return Shape(slots=2 if collective is Collective.BARRIER else 1)


def _variants(_: Collective, __: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    return ({},)


HALVING_DOUBLING = Algorithm(
    name="halving_doubling",
    summary="partners 1, 2, 4, ... away: few rounds, least bytes",
    collectives=frozenset(
        {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.BARRIER}
    ),
    write=_write,
    shape=_shape,
    variants=_variants,
)
