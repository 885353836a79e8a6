"""Routes: the links between every two ranks as arrays, for whoever adds up loads or prices over them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hccl_py.topology.graph import Link, Topology
from hccl_py.topology.placement import Placement

Floats = npt.NDArray[np.float64]


class Routes:
    """The ways of `Topology.path` between the ranks of a placement.

    Attributes:
        size: number of ranks.
        links: the links that some route uses, in the order in which the arrays count them.
        spacing_s: of each link, seconds that a byte takes: shape (links,).
        uses: how often the route from u to v uses a link: shape (size * size, links), row ``u * size + v``.
        latency_s: of each route: shape (size, size).
    """

    def __init__(self, topology: Topology, placement: Placement) -> None:
        self.size = placement.size
        numbers: dict[Link, int] = {}
        found: list[tuple[int, int]] = []
        self.latency_s: Floats = np.zeros((self.size, self.size))
        for src in range(self.size):
            for dst in range(self.size):
                if src == dst:
                    continue
                path = placement.path(src, dst, topology)
                self.latency_s[src, dst] = Topology.latency_s(path)
                found.extend((src * self.size + dst, numbers.setdefault(link, len(numbers))) for link in path)
        self.links: tuple[Link, ...] = tuple(numbers)
        self.uses: Floats = np.zeros((self.size * self.size, max(1, len(numbers))))
        for row, link in found:
            self.uses[row, link] += 1
        self.spacing_s: Floats = np.array([1.0 / link.bandwidth_Bps for link in self.links] or [0.0])

    def load(self, pairs: Iterable[tuple[int, int]]) -> Floats:
        """How often each link is used by one message for each pair (source, destination)."""
        rows = [src * self.size + dst for src, dst in pairs]
        found: Floats = self.uses[rows].sum(axis=0)
        return found

    def prices(self, per_link: Floats) -> Floats:
        """The sum of ``per_link`` over each route; infinite from a rank to itself."""
        table: Floats = (self.uses @ per_link).reshape(self.size, self.size)
        np.fill_diagonal(table, np.inf)
        return table
