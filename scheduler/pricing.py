"""Pricing: what the all_reduces of an arrangement cost on a graph; the policy compares arrangements by it."""

from __future__ import annotations

from collections.abc import Callable

from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.engine_costs import EngineCosts
from hccl_py.scheduler.partition import LinkCost
from hccl_py.scheduler.select import PlanTable
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_SIZES_BYTES = tuple(2**power for power in range(12, 28))  # 4 KiB to 128 MiB


class Pricing:
    """Plan tables for graphs, and what they cost on graphs. Equal questions are answered once.

    Args:
        placement: of the ranks.
        make: gives the table for a graph, and for so many connections to a peer (0: all).
        engine: what the engine itself costs.
    """

    def __init__(
        self, placement: Placement, make: Callable[[Topology, int], PlanTable], engine: EngineCosts | None = None
    ) -> None:
        self._placement, self._make, self._engine = placement, make, engine
        self._tables: dict[tuple[str, int], PlanTable] = {}
        self._costs: dict[tuple[int, str], tuple[PlanTable, LinkCost]] = {}

    def table(self, topology: Topology, channels: int = 0) -> PlanTable:
        """The plans that are chosen for this graph."""
        key = topology.digest(), channels
        if key not in self._tables:
            self._tables[key] = self._make(topology, channels)
        return self._tables[key]

    def cost(self, table: PlanTable, topology: Topology) -> LinkCost:
        """Seconds of an all_reduce by these plans, whatever graph they were chosen for, on this graph."""
        key = (id(table), topology.digest())
        if key not in self._costs:
            model = CostModel(topology, self._placement, self._engine)
            by_plan: dict[bytes, list[int]] = {}
            for size in _SIZES_BYTES:
                by_plan.setdefault(table.choose(size).plan.digest, []).append(size)
            found: dict[int, float] = {}
            for sizes in by_plan.values():
                found.update(zip(sizes, model.curve(table.choose(sizes[0]).plan, sizes), strict=True))
            seconds, most = [], 0.0
            for size in _SIZES_BYTES:
                most = max(most, found[size])
                seconds.append(most)
            self._costs[key] = table, LinkCost(_SIZES_BYTES, tuple(seconds))
        return self._costs[key][1]
