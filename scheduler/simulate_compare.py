"""Several plans of one collective, simulated side by side: what `hccl-py simulate` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hccl_py.core.types import Collective
from hccl_py.scheduler.bounds import Bound, gap, lower_bound
from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.select import build_table, candidates
from hccl_py.scheduler.simulate import Simulation, bus_factor, simulate
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement


@dataclass(frozen=True)
class Row:
    """One plan.

    Attributes:
        plan: what was simulated.
        predicted_s: what the cost model says, by which plans are chosen.
        simulation: what came out.
        chosen: True for the plan that would serve.
        bound: of the graph; no plan is faster.
        bytes_per_block: the size.
    """

    plan: Plan
    predicted_s: float
    simulation: Simulation
    chosen: bool
    bound: Bound
    bytes_per_block: int

    @property
    def algbw_Bps(self) -> float:
        """Bytes of the larger buffer / time."""
        blocks = max(max(p.input_blocks, p.output_blocks) for p in map(self.plan.program, (0, self.plan.world - 1)))
        return blocks * self.bytes_per_block / self.simulation.seconds if self.simulation.seconds else 0.0

    @property
    def busbw_Bps(self) -> float:
        """As nccl-tests defines it."""
        return self.algbw_Bps * bus_factor(self.plan.collective, self.plan.world)

    def as_json(self) -> dict[str, Any]:
        """For machines: seconds and bytes/second."""
        return {
            "plan": self.plan.name,
            "chosen": self.chosen,
            "simulated_s": self.simulation.seconds,
            "predicted_s": self.predicted_s,
            "lower_bound_s": self.bound.seconds,
            "lower_bound_is": self.bound.why,
            "algbw_Bps": self.algbw_Bps,
            "busbw_Bps": self.busbw_Bps,
            "events": self.simulation.times.events,
            "simulated_share": self.simulation.times.simulated,
            "links": {
                str(link): {"bytes": moved, "utilisation": self.simulation.utilisation(link)}
                for link, moved in self.simulation.link_bytes.items()
            },
        }

    @property
    def gap(self) -> str:
        """How far above the bound: "+4.2%"."""
        return gap(self.simulation.seconds, self.bound.seconds)


def compare(
    collective: Collective,
    topology: Topology,
    placement: Placement,
    bytes_per_block: int,
    *,
    root: int = 0,
    algorithms: Sequence[str] = (),
    itemsize: int = 4,
) -> list[Row]:
    """Simulate the plan that would serve and those of ``algorithms`` (all, if none is named); the fastest first.

    Raises:
        PlanError: no such algorithm, or one that does not do the collective.
    """
    model = CostModel(topology, placement)
    groups = placement.groups(topology)
    table = build_table(collective, topology, placement, root=root, declared=True, only_bytes=bytes_per_block)
    served = table.choose(bytes_per_block).plan
    plans = {served.digest: served}
    for name in algorithms or (None,):
        found = candidates(
            collective, model, groups, [bytes_per_block], root=root, forced=name, everything=True, declared=True
        )
        plans |= {candidate.plan.digest: candidate.plan for candidate in found}
    bound = lower_bound(topology, placement, collective, bytes_per_block, root)
    rows = [
        Row(
            plan, model.seconds(plan, bytes_per_block, itemsize),
            simulate(plan, topology, placement, bytes_per_block, itemsize=itemsize),
            plan.digest == served.digest, bound, bytes_per_block,
        )
        for plan in plans.values()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.simulation.seconds)
