"""forest: trees that were packed for the given graph, each with its share of the bytes.

Parameters: ``roots``, ``shares`` (in slots), ``up`` and ``down`` (of each tree, each rank's next rank towards the root
and the one that it receives from, -1 at the root; empty where nothing is reduced or broadcast), ``channels`` (at most
so many to one peer). Where each root has a block of its own, the trees of one root cut that block, else all trees cut
the one block. Synthesis (scheduler/synthesis.py) finds them. Or ``groups`` alone, the ranks of each host: trees of two
levels, which know nothing of the graph.

Partial sums rise and results fall at the same time: a rank has two steps for each tree, and each streams. They go in
the order of the trees at all ranks, so trees that share a channel cannot wait for each other in a circle. Where there
is only one channel, results are stored first and sent on by a step of their own ([Note: store, then send] in ring.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, cast

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.common import by_rank
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import Operand
from hccl_py.scheduler.synthesis import forest_for
from hccl_py.scheduler.writer import Writer

C = Collective
_COLLECTIVES = frozenset({C.ALL_REDUCE, C.REDUCE, C.BROADCAST, C.ALL_GATHER, C.REDUCE_SCATTER})
Parents = tuple[int, ...]


class Tree(NamedTuple):
    """A tree and the slots of a block that go over it. ``up`` and ``down`` as in the parameters."""

    root: int
    first: int
    span: int
    up: Parents
    down: Parents

    def below(self, rank: int) -> list[int]:
        """The ranks whose sums come to ``rank``."""
        return [child for child, parent in enumerate(self.up) if parent == rank]

    def onward(self, rank: int) -> list[int]:
        """The ranks that get the result from ``rank``."""
        return [child for child, parent in enumerate(self.down) if parent == rank]

    def is_leaf(self, rank: int) -> bool:
        """True if what ``rank`` sends up is its contribution alone."""
        return rank not in self.up


def trees_of(collective: Collective, world: int, params: Mapping[str, ParamValue], root: int = 0) -> list[Tree]:
    """The trees of a parameter set; ``root`` counts only where ``groups`` are all that is known.

    Raises:
        PlanError: lists of different lengths, or no tree.
    """
    if "groups" in params:
        params = _two_levels(collective, cast(Groups, params["groups"]), root)
    roots, shares = cast(Parents, params["roots"]), cast(Parents, params["shares"])
    nothing: tuple[Parents, ...] = ((),) * len(roots)
    up = cast("tuple[Parents, ...]", params["up"]) or nothing
    down = cast("tuple[Parents, ...]", params["down"]) or nothing
    if not roots or not len(roots) == len(shares) == len(up) == len(down):
        raise PlanError(f"forest of {len(roots)} roots, {len(shares)} shares, {len(up)} and {len(down)} trees")
    for top, parents in chain(zip(roots, up, strict=True), zip(roots, down, strict=True)):
        if parents and (len(parents) != world or not _is_rooted(parents, top)):
            raise PlanError(f"forest: {parents} are not the parents of {world} ranks in a tree with root {top}")
    if min(shares) < 1:
        raise PlanError(f"forest: shares {shares} are not all one slot or more")
    begin: dict[int, int] = {}
    trees = []
    for root, share, rise, fall in zip(roots, shares, up, down, strict=True):
        block = root if collective in (C.ALL_GATHER, C.REDUCE_SCATTER) else -1
        trees.append(Tree(root, begin.get(block, 0), share, rise, fall))
        begin[block] = begin.get(block, 0) + share
    if len(set(begin.values())) > 1:
        raise PlanError(f"forest: the trees of the roots cut their blocks into {sorted(set(begin.values()))} slots")
    return trees


def _is_rooted(parents: Parents, root: int) -> bool:
    top = [rank for rank, parent in enumerate(parents) if parent == -1]
    return top == [root] and all(parent < len(parents) and parent != rank for rank, parent in enumerate(parents))


def _channels(trees: Sequence[Tree], limit: int) -> tuple[dict[tuple[int, int, int, bool], int], int]:
    """The channel of each message (tree, source, destination, whether it rises), and how many channels there are.

    Trees that use the same pair of ranks take turns; rising and falling messages share a channel only if there is one.
    """
    turn: dict[tuple[int, int, bool], int] = {}
    found = {}
    rising = max(1, limit // 2) if any(t.up for t in trees) else 0
    if rising and not any(t.down for t in trees):
        rising = limit
    falling = limit - rising or limit
    for number, tree in enumerate(trees):
        edges = [(rank, to, True) for rank, to in enumerate(tree.up) if to >= 0]
        edges += [(source, rank, False) for rank, source in enumerate(tree.down) if source >= 0]
        for src, dst, rises in edges:
            index = turn.get((src, dst, rises), 0)
            turn[src, dst, rises] = index + 1
            first = 0 if rises or rising == limit else rising
            found[number, src, dst, rises] = first + index % (rising if rises else falling)
    return found, max(found.values(), default=0) + 1


def _write(w: Writer) -> None:
    trees = trees_of(w.collective, w.world, cast("Mapping[str, ParamValue]", w.params), w.root)
    limit = cast(int, w.params.get("channels", 2))
    channel, _ = _channels(trees, limit)
    for number, tree in enumerate(trees):
        here = w.rank

        def peer(rank: int, sends: bool, rises: bool, raw: bool = False, number: int = number) -> Operand:
            pair = (w.rank, rank) if sends else (rank, w.rank)
            return w.peer(rank, raw=raw, channel=channel[number, pair[0], pair[1], rises])

        block = {C.REDUCE_SCATTER: (tree.root, 0), C.ALL_GATHER: (0, tree.root)}.get(w.collective, (0, 0))
        given = w.input(block[0], k=tree.first, span=tree.span)
        result = w.output(block[1], k=tree.first, span=tree.span)
        send_on = [peer(rank, sends=True, rises=False) for rank in tree.onward(here)]
        onward, later = (send_on, []) if limit > 1 else ([], send_on)
        if tree.up:
            below = [(r, peer(r, sends=False, rises=True, raw=tree.is_leaf(r))) for r in tree.below(here)]
            sources = by_rank([(here, given), *below])
            if here == tree.root:
                w.fold(sources, [result, *onward])
            else:
                w.fold(sources, [peer(tree.up[here], sends=True, rises=True)])
        elif here == tree.root:
            w.fold([given], [result, *onward])
        if tree.down and here != tree.root:
            source = tree.down[here]
            w.recv(peer(source, sends=False, rises=False, raw=not tree.up), result, *onward)
        if later:
            w.send(result, *later)


def _shape(collective: Collective, world: int, params: Mapping[str, ParamValue]) -> Shape:
    trees = trees_of(collective, world, params)
    _, channels = _channels(trees, cast(int, params.get("channels", 2)))
    return Shape(slots=max(tree.first + tree.span for tree in trees), channels=channels)


def _plain(groups: Groups, root: int) -> Parents:
    """Ranks under the first of their host, which is under the root."""
    parents = [-1] * sum(map(len, groups))
    for group in groups:
        leader = root if root in group else group[0]
        for rank in group:
            parents[rank] = -1 if rank == root else root if rank == leader else leader
    return tuple(parents)


def _two_levels(collective: Collective, groups: Groups, root: int) -> Mapping[str, ParamValue]:
    """Trees of two levels, with unequal shares where there are several."""
    roots = tuple(group[0] for group in groups)
    each = collective in (C.ALL_GATHER, C.REDUCE_SCATTER)
    if each:
        roots = tuple(range(sum(map(len, groups))))
    elif collective.rooted:
        roots = (root,)
    trees = tuple(_plain(groups, top) for top in roots)
    shares = tuple(1 if each else 1 + number % 2 for number in range(len(roots)))
    up = trees if collective.reduces else ()
    down = trees if collective not in (C.REDUCE, C.REDUCE_SCATTER) else ()
    return {"roots": roots, "shares": shares, "up": up, "down": down}


def _variants(_: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    return ({"groups": groups},)


FOREST = Algorithm(
    name="forest",
    summary="trees packed for the given graph, with unequal shares",
    collectives=_COLLECTIVES,
    write=_write,
    shape=_shape,
    variants=_variants,
    synthesize=forest_for,
)
