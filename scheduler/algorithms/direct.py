"""direct: every rank talks to every other. Fewest rounds; folds in rank order, so that its bits never depend on size.

``rounds=1``: everybody sends its INPUT to all who need it; over shared memory that becomes mere reading.
``rounds=2`` (all_reduce, reduce, broadcast): rank r is the master of slot r, so that no rank carries more than its
share. Peers are visited in rotated order, so that not all ranks turn to the same one at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.common import by_rank
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import WINDOW, Operand
from hccl_py.scheduler.writer import Writer

C = Collective
_TWO_ROUNDS = (C.ALL_REDUCE, C.REDUCE, C.BROADCAST)
_RESULTS = 1  # two rounds: the channel of the second one, so that it need not wait for the first


def _write(w: Writer) -> None:
    one_round = {
        C.ALL_REDUCE: _all_reduce,
        C.BARRIER: _barrier,
        C.REDUCE: _reduce,
        C.BROADCAST: _broadcast,
        C.ALL_GATHER: _all_gather,
        C.REDUCE_SCATTER: _reduce_scatter,
        C.ALL_TO_ALL: _all_to_all,
        C.GATHER: _gather,
        C.SCATTER: _scatter,
    }
    two_rounds = {C.ALL_REDUCE: _all_reduce_two, C.REDUCE: _reduce_two, C.BROADCAST: _broadcast_two}
    (two_rounds if w.params.get("rounds", 1) == 2 else one_round)[w.collective](w)


def _others(w: Writer) -> list[int]:
    return [(w.rank + distance) % w.world for distance in range(1, w.world)]


def _all_to_me(w: Writer, mine: Operand, slot: int = 0) -> list[Operand]:
    """Everybody's contribution in rank order, one of them local."""
    return by_rank([(w.rank, mine), *((q, w.peer(q, slot=slot)) for q in _others(w))])


# ---- one round


def _all_reduce(w: Writer) -> None:
    w.send(w.input(), *map(w.peer, _others(w)))
    w.fold(_all_to_me(w, w.input()), [w.output()])


def _reduce(w: Writer) -> None:
    if w.rank == w.root:
        w.fold(_all_to_me(w, w.input()), [w.output()])
    else:
        w.send(w.input(), w.peer(w.root))


def _broadcast(w: Writer) -> None:
    if w.rank == w.root:
        w.send(w.input(), w.output(), *map(w.peer, _others(w)))
    else:
        w.recv(w.peer(w.root), w.output())


def _all_gather(w: Writer) -> None:
    w.send(w.input(), w.output(w.rank), *map(w.peer, _others(w)))
    for q in reversed(_others(w)):
        w.recv(w.peer(q), w.output(q))


def _reduce_scatter(w: Writer) -> None:
    for q in _others(w):
        w.send(w.input(q), w.peer(q))
    w.fold(_all_to_me(w, w.input(w.rank), slot=w.rank), [w.output()])


def _all_to_all(w: Writer) -> None:
    """In turn t, ranks with r + q = t exchange: in place, what arrives replaces what has just been sent."""
    for turn in range(w.rank, w.rank + w.world):
        q = (turn - w.rank) % w.world
        if q == w.rank:
            w.copy(w.input(q), w.output(q))
        else:
            w.send(w.input(q), w.peer(q))
            w.recv(w.peer(q, slot=w.rank), w.output(q))


def _barrier(w: Writer) -> None:
    w.send(w.input(), *map(w.peer, _others(w)))
    for q in reversed(_others(w)):
        w.recv(w.peer(q), w.output())


def _gather(w: Writer) -> None:
    if w.rank != w.root:
        w.send(w.input(), w.peer(w.root))
        return
    w.copy(w.input(), w.output(w.rank))
    for q in _others(w):
        w.recv(w.peer(q), w.output(q))


def _scatter(w: Writer) -> None:
    if w.rank != w.root:
        w.recv(w.peer(w.root, slot=w.rank), w.output())
        return
    for q in _others(w):
        w.send(w.input(q), w.peer(q))
    w.copy(w.input(w.rank), w.output())


# ---- two rounds


def _all_reduce_two(w: Writer) -> None:
    for q in _others(w):
        w.send(w.input(k=q), w.peer(q))
    mine, onward = w.output(k=w.rank), [w.peer(q, channel=_RESULTS) for q in _others(w)]
    if w.world <= WINDOW // 2:
        w.fold(_all_to_me(w, w.input(k=w.rank)), [mine, *onward])
    else:  # so many steps that those which receive the results open only when the sends above are done
        w.fold(_all_to_me(w, w.input(k=w.rank)), [mine])
        w.send(mine, *onward)
    for q in reversed(_others(w)):
        w.recv(w.peer(q, raw=False, channel=_RESULTS), w.output(k=q))


def _reduce_two(w: Writer) -> None:
    for q in _others(w):
        w.send(w.input(k=q), w.peer(q))
    sources = _all_to_me(w, w.input(k=w.rank))
    if w.rank != w.root:
        sums = w.scratch(w.input(k=w.rank))
        w.fold(sources, [sums])
        w.send(sums, w.peer(w.root, channel=_RESULTS))
        return
    w.fold(sources, [w.output(k=w.rank)])
    for q in reversed(_others(w)):
        w.recv(w.peer(q, raw=False, channel=_RESULTS), w.output(k=q))


def _broadcast_two(w: Writer) -> None:
    others = _others(w)
    if w.rank == w.root:
        for q in others:
            w.send(w.input(k=q), w.output(k=q), w.peer(q))
        w.send(w.input(k=w.rank), w.output(k=w.rank), *(w.peer(q, channel=_RESULTS) for q in others))
        return
    onward = [w.peer(q, channel=_RESULTS) for q in others if q != w.root]
    w.recv(w.peer(w.root), w.output(k=w.rank), *onward)
    for q in reversed(others):
        w.recv(w.peer(q, channel=_RESULTS), w.output(k=q))


def _shape(collective: Collective, world: int, params: Mapping[str, ParamValue]) -> Shape:
    rounds = params.get("rounds", 1)
    if rounds == 1:
        return Shape(one_round=True)
    if rounds != 2 or collective not in _TWO_ROUNDS:
        able = ", ".join(c.name.lower() for c in _TWO_ROUNDS)
        raise PlanError(f"direct {collective.name.lower()} in {rounds} rounds: there is 1 for all, and 2 for {able}")
    return Shape(slots=world, channels=2, shared_fold=collective is C.ALL_REDUCE)


def _variants(collective: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    two = collective in _TWO_ROUNDS and sum(map(len, groups)) > 1
    return ({"rounds": 1}, {"rounds": 2}) if two else ({"rounds": 1},)


DIRECT = Algorithm(
    name="direct",
    summary="all pairs: fewest rounds, added up in rank order",
    collectives=frozenset(Collective),
    write=_write,
    shape=_shape,
    variants=_variants,
)
