"""Algorithm: a function that writes one rank's program, with what it needs to know beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.plan import ParamValue, Plan
from hccl_py.scheduler.template import Template
from hccl_py.scheduler.verify import MAX_STEPS, MAX_WORLD, STEP_S
from hccl_py.scheduler.writer import Writer
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

Groups = tuple[tuple[int, ...], ...]  # the ranks of each host


# (collective, topology, placement, root, channels to a peer) -> parameter sets
Synthesis = Callable[[Collective, Topology, Placement, int, int], tuple[Mapping[str, ParamValue], ...]]


@dataclass(frozen=True)
class Shape:
    """How a plan cuts its blocks, and what it claims.

    Attributes:
        slots: slots per block.
        channels: parallel channels to one peer.
        one_round: claim (checked by the verifier) that ranks only read each other's INPUT.
        shared_fold: claim (checked by the verifier) that it is an all_reduce in canonical order, so that ranks of one
            host may as well fold a share each, over shared memory.
    """

    slots: int = 1
    channels: int = 1
    one_round: bool = False
    shared_fold: bool = False


@dataclass(frozen=True)
class Algorithm:
    """One way to do some collectives.

    Attributes:
        name: what a user forces it by.
        summary: one line for tables.
        collectives: those it can do, in any world.
        write: writes the program of ``writer.rank``; called once for each rank; worlds of one rank never reach it.
        shape: (collective, world, params) -> Shape.
        variants: (collective, groups) -> parameter sets worth trying for ranks that sit on hosts like this.
        synthesize: where the parameters come from the graph: parameter sets for it, tried when the graph was declared
            or measured; ``variants`` are then examples only.
        refine: further parameter sets from the graph, tried beside ``variants`` when it was declared or measured.
        template: (world, params) -> the plan by classes, for worlds of any size; all_reduce only.
        worth: False where the selector need not try it (a user may still force it).
    """

    name: str
    summary: str
    collectives: frozenset[Collective]
    write: Callable[[Writer], None]
    shape: Callable[[Collective, int, Mapping[str, ParamValue]], Shape]
    variants: Callable[[Collective, Groups], tuple[Mapping[str, ParamValue], ...]]
    worth: Callable[[Groups], bool] = lambda _: True
    synthesize: Synthesis | None = None
    refine: Synthesis | None = None
    template: Callable[[int, Mapping[str, ParamValue]], Template] | None = None

    def supports(self, collective: Collective) -> bool:
        """True if it can do the collective."""
        return collective in self.collectives

    def build(
        self, collective: Collective, world: int, root: int = 0, params: Mapping[str, ParamValue] | None = None
    ) -> Plan:
        """The verified plan.

        Raises:
            PlanError: not supported, no such rank, or (a fault of the algorithm) a plan that is wrong.
        """
        if not self.supports(collective):
            able = ", ".join(sorted(c.name.lower() for c in self.collectives))
            raise PlanError(f"algorithm {self.name!r} does not do {collective.name.lower()}; it does {able}")
        if world < 1 or not 0 <= root < world:
            raise PlanError(f"root {root} in a world of {world} ranks: there is no such rank")
        known = dict(params or {})
        shape = self.shape(collective, world, known) if world > 1 else Shape()
        self._check_size(collective, world, known)
        programs = []
        for rank in range(world):
            writer = Writer(
                collective,
                world,
                root,
                rank,
                shape.slots,
                known,
                channels=shape.channels,
                one_round=shape.one_round,
                shared_fold=shape.shared_fold,
            )
            if world > 1:
                self.write(writer)
            else:
                writer.copy(writer.input(), writer.output())
            programs.append(writer.program())
        return Plan(self.name, tuple(known.items()), tuple(programs))

    def without_template(self, collective: Collective, world: int, params: Mapping[str, ParamValue]) -> str:
        """That there is no template, and how long a plan of all ranks would take; told by the steps of rank 0."""
        shape = self.shape(collective, world, params)
        writer = Writer(collective, world, 0, 0, shape.slots, dict(params), channels=shape.channels)
        self.write(writer)
        written = writer.program().steps
        steps = world * len(written)
        work = max(steps, world * sum(len(step.sources) + len(step.targets) for step in written) // 3)  # wide steps
        takes = f"about {work * STEP_S:.0f} s to verify" if work > MAX_STEPS else ""
        return f"{self.name} has no template: {steps:,} steps for {world} ranks" + (takes and f", {takes}")

    def _check_size(self, collective: Collective, world: int, params: Mapping[str, ParamValue]) -> None:
        """Raise PlanError where writing and verifying all ranks would take minutes."""
        if world > MAX_WORLD:
            what = self.without_template(collective, world, params)
            if what.endswith("verify"):
                raise PlanError(f"{what}; above {MAX_WORLD} ranks, up to {MAX_STEPS:,} steps are written out")
