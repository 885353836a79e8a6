"""ring: every rank talks to its two neighbours only. Least bytes per rank, most rounds; for large sizes.

all_reduce, reduce_scatter and all_gather pass slots around the ring; broadcast and reduce are a chain that begins or
ends at the root, which the engine pipelines piece by piece. The parameter ``order`` puts the ranks of a host next to
each other.

[Note: store, then send] What goes around is stored first, and sent on by a second step that follows element by element.
In one step, receiving would wait for room at the next rank, whose receiving waits in turn: around a ring, a deadlock as
soon as a slot is larger than what a channel holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.common import by_rank, host_order, rank_order
from hccl_py.scheduler.algorithms.rails import rails_template
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.ring_order import ring_sets
from hccl_py.scheduler.template import Template
from hccl_py.scheduler.writer import Writer


def _write(w: Writer) -> None:
    order = rank_order(w.params, w.world)
    if w.collective is Collective.ALL_REDUCE:
        _all_reduce(w, order)
    elif w.collective is Collective.REDUCE_SCATTER:
        _reduce_scatter(w, order)
    elif w.collective is Collective.ALL_GATHER:
        _all_gather(w, order)
    else:
        at = order.index(w.root)
        chain = order[at:] + order[:at]
        if w.collective is Collective.BROADCAST:
            _broadcast(w, chain)
        else:
            _reduce(w, chain)


def _all_reduce(w: Writer, order: tuple[int, ...]) -> None:
    """Slot k starts at position k, is complete after n - 1 hops at position k - 1, then goes round once more."""
    n, p = w.world, order.index(w.rank)
    before, after = order[p - 1], order[(p + 1) % n]
    w.send(w.input(k=p), w.peer(after))
    for hop in range(1, n):
        k = (p - hop) % n
        sources = by_rank([(before, w.peer(before, raw=hop == 1)), (w.rank, w.input(k=k))])
        w.fold(sources, [w.output(k=k)])
        w.send(w.output(k=k), w.peer(after))
    for hop in range(n - 1):
        k = (p - hop) % n
        w.recv(w.peer(before, raw=False), w.output(k=k))
        if hop < n - 2:
            w.send(w.output(k=k), w.peer(after))


def _reduce_scatter(w: Writer, order: tuple[int, ...]) -> None:
    """The block of position k starts at position k + 1 and ends at k. Two slots of scratch take turns."""
    n, p = w.world, order.index(w.rank)
    before, after = order[p - 1], order[(p + 1) % n]
    sums = w.scratch(w.output(), w.output()) if n > 2 else w.output()
    w.send(w.input(before), w.peer(after))
    for hop in range(1, n):
        block = w.input(order[(p - 1 - hop) % n])
        target = w.part(sums, hop % 2) if hop < n - 1 else w.output()
        w.fold(by_rank([(before, w.peer(before, raw=hop == 1)), (w.rank, block)]), [target])
        if hop < n - 1:
            w.send(target, w.peer(after))


def _all_gather(w: Writer, order: tuple[int, ...]) -> None:
    n, p = w.world, order.index(w.rank)
    before, after = order[p - 1], order[(p + 1) % n]
    w.send(w.input(), w.output(w.rank), w.peer(after))
    for hop in range(1, n):
        block = w.output(order[(p - hop) % n])
        w.recv(w.peer(before), block)
        if hop < n - 1:
            w.send(block, w.peer(after))


def _broadcast(w: Writer, chain: tuple[int, ...]) -> None:
    p = chain.index(w.rank)
    onward = [w.peer(chain[p + 1])] if p + 1 < w.world else []
    w.fold([w.input() if p == 0 else w.peer(chain[p - 1])], [w.output(), *onward])


def _reduce(w: Writer, chain: tuple[int, ...]) -> None:
    p = chain.index(w.rank)
    sources = [(w.rank, w.input())]
    if p + 1 < w.world:
        sources.append((chain[p + 1], w.peer(chain[p + 1], raw=p + 2 == w.world)))
    w.fold(by_rank(sources), [w.output() if p == 0 else w.peer(chain[p - 1])])


def _shape(collective: Collective, world: int, _: Mapping[str, ParamValue]) -> Shape:
    return Shape(slots=world if collective is Collective.ALL_REDUCE else 1)


def _variants(_: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    return host_order(groups)


def _template(world: int, params: Mapping[str, ParamValue]) -> Template:
    """The all-reduce over rails of which each host has one rank."""
    order = rank_order(params, world)
    return rails_template(world, {"groups": tuple((rank,) for rank in order)}, "ring")


RING = Algorithm(
    name="ring",
    summary="neighbours only: least bytes, most rounds",
    collectives=frozenset(
        {
            Collective.ALL_REDUCE,
            Collective.REDUCE_SCATTER,
            Collective.ALL_GATHER,
            Collective.BROADCAST,
            Collective.REDUCE,
        }
    ),
    write=_write,
    shape=_shape,
    variants=_variants,
    refine=ring_sets,
    template=_template,
)
