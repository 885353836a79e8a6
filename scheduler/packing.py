"""Tree packing: the trees, and how much goes over each, by which a collective is done in the least time of the graph.

A *scheme* moves a part of the bytes: to reduce, along a tree towards its root, to broadcast, along a tree away from its
root, to all-reduce, along both at once. With shares z of schemes, a link is busy for the sum of z times what the scheme
puts on it, and the time is that of the busiest link: a linear programme, with a variable for each of the very many
schemes. It is solved by column generation: HiGHS solves it over the schemes known so far; its dual values are prices of
the links; the cheapest scheme at these prices (a cheapest tree, arborescence.py) is added, until none is cheaper.

[Note: bound] For any prices y >= 0 of sum 1, no set of schemes is faster than the price of the cheapest one: that is
the bound returned. What is sent once from rank to rank takes the route of `Topology.path`, so for broadcast and
all-gather it holds for whatever ranks may do without coding (each part reaches all ranks along a tree), and reversed in
time for reduce and reduce-scatter. For all-reduce it is the least over all mixes of trees, as in ForestColl.

Ideas: Edmonds, Edge-disjoint branchings (1973); ForestColl (2024) and Blink (2020) pack trees on networks of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccl_py.core.errors import InternalError
from hccl_py.core.types import Collective
from hccl_py.scheduler.arborescence import cheapest_tree
from hccl_py.scheduler.routes import Floats, Routes

C = Collective
Parents = tuple[int, ...]  # by rank; -1 at the root
_SHALLOW = 1e-4  # the same for each message that waits for another
_TIDY = 1e-3  # how much cheaper, all in all, a link counts beside the busiest one: settles ties for few and short hops


@dataclass(frozen=True)
class Scheme:
    """One way to move a part of the bytes.

    Attributes:
        root: where everything comes together or comes from.
        up: next rank on the way to the root, -1 at the root; () if nothing is reduced.
        down: the rank that one receives from, -1 at the root; () if nothing is broadcast.
    """

    root: int
    up: Parents
    down: Parents

    @classmethod
    def star(cls, root: int, size: int, up: bool, down: bool) -> Scheme:
        """Straight to the root and straight back."""
        parents = tuple(-1 if rank == root else root for rank in range(size))
        return cls(root, parents if up else (), parents if down else ())

    def depth(self) -> int:
        """Messages one after the other, up and down."""
        return _depth(self.up) + _depth(self.down)

    def pairs(self) -> list[tuple[int, int]]:
        """All messages as (source, destination)."""
        rising = [(rank, parent) for rank, parent in enumerate(self.up) if parent >= 0]
        return rising + [(parent, rank) for rank, parent in enumerate(self.down) if parent >= 0]


def _depth(parents: Parents) -> int:
    deepest = 0
    for rank in range(len(parents)):
        at, hops = rank, 0
        while parents[at] >= 0:
            at, hops = parents[at], hops + 1
        deepest = max(deepest, hops)
    return deepest


@dataclass(frozen=True)
class Packing:
    """Schemes and their shares.

    Attributes:
        schemes: with a share above zero.
        shares: of the bytes of a block; those of one root sum up to 1 where each root has a block of its own, else all.
        seconds_per_byte: time of the busiest link for a block of one byte.
        bound_s: what no mix of schemes can be below, in the same unit.
    """

    schemes: tuple[Scheme, ...]
    shares: tuple[float, ...]
    seconds_per_byte: float
    bound_s: float


def pack(
    routes: Routes,
    collective: Collective,
    root: int = 0,
    *,
    gap: float = 1e-3,
    max_rounds: int = 300,
    known_bound_s: float = 0.0,
    seeds: Sequence[Scheme] = (),
) -> Packing:
    """The packing of a collective that is within ``gap`` of the best, or what ``max_rounds`` rounds came to.

    Args:
        collective: all_reduce, reduce, broadcast, all_gather or reduce_scatter.
        root: of reduce and broadcast.
        known_bound_s: what no packing can be below, for a block of one byte, where somebody knows: it may be found
            much earlier than the prices are that prove it.
        seeds: schemes to begin with; each one's tree away from the root is taken for both ways.
    """
    search = _Search(routes, collective, root)
    search.raise_bound(known_bound_s)
    search.seed(seeds)
    for _ in range(max_rounds):
        search.solve()
        if search.seconds <= search.bound * (1 + gap) or not search.extend():
            break
    return search.result()


class _Search:
    """The columns so far. Times are divided by the spacing of the slowest link, so that numbers are about one."""

    def __init__(self, routes: Routes, collective: Collective, root: int) -> None:
        self._routes = routes
        self._unit = float(routes.spacing_s.max())
        self._spacing = routes.spacing_s / self._unit
        self._up = collective.reduces
        self._down = collective not in (C.REDUCE, C.REDUCE_SCATTER)
        self._per_root = collective in (C.ALL_GATHER, C.REDUCE_SCATTER)
        self._roots = [root] if collective in (C.BROADCAST, C.REDUCE) else list(range(routes.size))
        hop = float(self._spacing.mean()) / 8
        self._tidy = _TIDY * (routes.prices(self._spacing) + hop) / max(1.0, self._spacing.sum())
        self._schemes: list[Scheme] = []
        self._known: set[Scheme] = set()
        self._loads: list[Floats] = []
        self._costs: list[float] = []
        self._shares: Floats = np.zeros(0)
        self.seconds, self.bound = np.inf, 0.0
        self._prices: Floats = np.full(len(routes.spacing_s), 1.0 / len(routes.spacing_s))
        self._worth: Floats = np.full(len(self._roots), np.inf)
        for top in self._roots:
            self._add(Scheme.star(top, routes.size, self._up, self._down))
        self.extend()

    def raise_bound(self, seconds_per_byte: float) -> None:
        """Nothing can be below."""
        self.bound = max(self.bound, seconds_per_byte / self._unit)

    def seed(self, schemes: Sequence[Scheme]) -> None:
        """Add the trees of ``schemes``, up and down the same tree."""
        for scheme in schemes:
            self._add(Scheme(scheme.root, scheme.down, scheme.down))

    def _add(self, scheme: Scheme) -> bool:
        if scheme in self._known:
            return False
        self._known.add(scheme)
        self._schemes.append(scheme)
        self._loads.append(self._routes.load(scheme.pairs()) * self._spacing)
        self._costs.append(self._price(scheme, self._tidy) + _SHALLOW * scheme.depth())
        return True

    def extend(self) -> bool:
        """Add each root's cheapest scheme, where it is cheaper than what its bytes cost so far; raise the bound."""
        plain = self._routes.prices(self._prices * self._spacing)
        added, cheapest = False, []
        for number, root in enumerate(self._roots):
            scheme = self._cheapest(plain + self._tidy, root)
            price = self._price(scheme, plain + self._tidy)
            # what is cheapest with the tidy part is not far from the cheapest without: the true one bounds it
            cheapest.append(self._price(self._cheapest(plain, root), plain))
            if price < self._worth[number] - 1e-9:
                added = self._add(scheme) or added
        self.bound = max(self.bound, sum(cheapest) if self._per_root else min(cheapest))
        return added

    @staticmethod
    def _price(scheme: Scheme, table: Floats) -> float:
        return sum(float(table[pair]) for pair in scheme.pairs())

    def _cheapest(self, price: Floats, root: int) -> Scheme:
        up = tuple(map(int, cheapest_tree(price.T, root))) if self._up else ()
        down = tuple(map(int, cheapest_tree(price, root))) if self._down else ()
        return Scheme(root, up, down)

    def solve(self) -> None:
        """The best shares of the schemes known so far, and the prices that come with them."""
        # here, so that a worker whose plans need no programme does not load it
        from scipy.optimize import linprog  # type: ignore[import-untyped]
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

        count = len(self._schemes)
        busy = np.column_stack([*self._loads, -np.ones(len(self._spacing))])
        rows = {root: number for number, root in enumerate(self._roots)}
        whole = np.zeros((len(self._roots) if self._per_root else 1, count + 1))
        for column, scheme in enumerate(self._schemes):
            whole[rows[scheme.root] if self._per_root else 0, column] = 1.0
        answer = linprog(
            [*self._costs, 1.0], A_ub=csr_matrix(busy), b_ub=np.zeros(len(busy)), A_eq=csr_matrix(whole),
            b_eq=np.ones(len(whole)), method="highs",
        )  # fmt: skip
        if answer.status != 0:
            raise InternalError(f"packing of trees: HiGHS says {answer.message!r}")
        self._shares = np.maximum(answer.x[:-1], 0.0)
        self.seconds = float((busy[:, :-1] @ self._shares).max())
        prices = np.maximum(-answer.ineqlin.marginals, 0.0)
        self._prices = prices / prices.sum() if prices.sum() > 0 else np.full(len(prices), 1.0 / len(prices))
        worth = answer.eqlin.marginals
        self._worth = worth if self._per_root else np.full(len(self._roots), worth[0])

    def result(self) -> Packing:
        """The schemes that got a share."""
        kept = [number for number, share in enumerate(self._shares) if share > 1e-6]
        return Packing(
            tuple(self._schemes[number] for number in kept),
            tuple(float(self._shares[number]) for number in kept),
            self.seconds * self._unit,
            min(self.bound, self.seconds) * self._unit,
        )


def busiest_s(routes: Routes, schemes: Sequence[Scheme], amounts: Sequence[float]) -> float:
    """Time of the busiest link where scheme i moves ``amounts[i]`` bytes."""
    total = sum((amount * routes.load(scheme.pairs()) for scheme, amount in zip(schemes, amounts, strict=True)))
    return float((total * routes.spacing_s).max())
