"""PlanTable: which plan serves which size, with the reason; and how it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from typing import cast

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.core.units import format_bytes, format_seconds
from hccl_py.scheduler.algorithm import Algorithm, Groups
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.bounds import Bounds, gap
from hccl_py.scheduler.cost import CostModel, EngineCosts
from hccl_py.scheduler.large import fastest_rails, large_plans
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.rehearse import Candidate, simulated
from hccl_py.scheduler.verify import MAX_WORLD
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

MAX_BYTES = 2**63 - 1
_PROBES = tuple(4**power for power in range(1, 16))  # 4 B to 1 GiB a block


@dataclass(frozen=True)
class PlanEntry:
    """Blocks of ``from_bytes`` to ``upto_bytes`` bytes (both included) are served by ``plan``.

    Attributes:
        probe_bytes: the size at which the prediction was made.
        predicted_s: the predicted time there.
        why: why this plan.
        bound_s: what no plan can be faster than there (bounds.py), 0 if nobody asked for it.
    """

    from_bytes: int
    upto_bytes: int
    plan: Plan
    probe_bytes: int
    predicted_s: float
    why: str
    bound_s: float = 0.0


@dataclass(frozen=True)
class PlanTable:
    """Entries that cover 0 .. 2**63 - 1 bytes a block without gap or overlap.

    Raises:
        PlanError: they do not, or a plan is for another collective, world or root.
    """

    entries: tuple[PlanEntry, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise PlanError("a plan table needs a row")
        expected, first = 0, self.entries[0].plan
        for row in self.entries:
            if row.from_bytes != expected or row.upto_bytes < row.from_bytes:
                raise PlanError(f"row {row.from_bytes}..{row.upto_bytes} bytes: a row from {expected} on was expected")
            if (row.plan.collective, row.plan.world, row.plan.root) != (first.collective, first.world, first.root):
                raise PlanError(f"{row.plan.name} is for another collective, world or root than {first.name}")
            expected = row.upto_bytes + 1
        if expected != MAX_BYTES + 1:
            raise PlanError(f"sizes from {expected} bytes on have no plan")

    def choose(self, bytes_per_block: int) -> PlanEntry:
        """The row that serves blocks of this size."""
        return next(row for row in self.entries if bytes_per_block <= row.upto_bytes)

    def __str__(self) -> str:
        """A table for people, one line a row."""
        cells = [("bytes a block", "plan", "order", "predicted", "why")]
        for row in self.entries:
            upto = "any" if row.upto_bytes == MAX_BYTES else f"up to {format_bytes(row.upto_bytes)}"
            predicted = f"{format_seconds(row.predicted_s)} at {format_bytes(row.probe_bytes)}"
            if row.bound_s:
                predicted += f", bound {format_seconds(row.bound_s)} ({gap(row.predicted_s, row.bound_s)})"
            size = f"above {format_bytes(row.from_bytes - 1)}" if row.from_bytes and upto == "any" else upto
            cells.append((size, row.plan.name, row.plan.order.name.lower(), predicted, row.why))
        widths = [max(len(line[i]) for line in cells) for i in range(4)]
        return "\n".join("  ".join([*map(str.ljust, line[:4], widths), line[4]]).rstrip() for line in cells)


def candidates(
    collective: Collective,
    model: CostModel,
    groups: Groups,
    sizes_bytes: Sequence[int],
    *,
    root: int = 0,
    deterministic: bool = False,
    forced: str | None = None,
    uneven: bool = False,
    everything: bool = False,
    declared: bool = False,
    channels: int = 2,
    algorithms: Sequence[Algorithm] | None = None,
) -> list[Candidate]:
    """All plans that may serve, in the order of the algorithms. ``everything``: also where another does the same.
    ``declared`` and ``channels`` as in `build_table`.

    Raises:
        PlanError: there is none: says which condition ruled them out.
    """
    known = tuple(algorithms or builtin_algorithms())
    world = sum(map(len, groups))
    if forced is not None and forced not in [a.name for a in known]:
        raise PlanError(f"there is no algorithm {forced!r}; there are {', '.join(a.name for a in known)}")
    if world > MAX_WORLD and (forced is None or any(a.name == forced and a.template for a in known)):
        plans = large_plans(
            collective, model.topology, model.placement, model.engine, sizes_bytes, known, forced, channels
        )
        if deterministic:
            raise PlanError(f"no canonical plan for {collective.name.lower()} over {world} ranks")
        # a template has all of a plan that is asked of one: programs by rank, name, order, digest
        return [Candidate(cast(Plan, template), curve) for template, curve in plans]
    found, refused = [], []
    for algorithm in known:
        if forced not in (None, algorithm.name):
            continue
        worth = everything or (declared if algorithm.synthesize else algorithm.worth(groups))
        if forced is None and not (algorithm.supports(collective) and worth):
            continue
        whole = algorithm.template if algorithm.synthesize else None  # rails: by classes, in worlds of any size
        if whole and forced is None and not everything and model.on_cpus:
            continue  # the formula for rails leaves out what processors have to do
        sets = algorithm.variants(collective, groups)
        if algorithm.synthesize and algorithm.supports(collective):
            sets = algorithm.synthesize(collective, model.topology, model.placement, root, channels)
            if not sets:
                refused.append(f"{algorithm.name} finds nothing for {world} ranks")
            if whole and not everything:
                sets = fastest_rails(sets, model, sizes_bytes)
        if algorithm.refine and declared and world > 2:
            sets = (*sets, *algorithm.refine(collective, model.topology, model.placement, root, channels))
        for params in sets:
            plan = cast(Plan, whole(world, params)) if whole else algorithm.build(collective, world, root, params)
            if deterministic and plan.order is not Order.CANONICAL:
                refused.append(f"{plan.name} is free, deterministic mode admits canonical plans only")
            elif uneven and not plan.uneven:
                refused.append(f"{plan.name} needs equal blocks")
            else:
                found.append(Candidate(plan, tuple(model.curve(plan, sizes_bytes))))
    if not found:
        raise PlanError(f"no plan for {collective.name.lower()} over {world} ranks: {'; '.join(refused)}")
    return found


def build_table(
    collective: Collective,
    topology: Topology,
    placement: Placement,
    *,
    root: int = 0,
    deterministic: bool = False,
    forced: str | None = None,
    uneven: bool = False,
    declared: bool = False,
    channels: int = 2,
    one_round_limit_bytes: int | None = None,
    engine: EngineCosts | None = None,
    algorithms: Sequence[Algorithm] | None = None,
    only_bytes: int | None = None,
) -> PlanTable:
    """The table of the plans that are predicted to be fastest; equal arguments give equal tables on every rank.

    Args:
        root: of rooted collectives.
        deterministic: admit canonical plans only: the same bits whatever the size.
        forced: name of the only algorithm that may serve; parameters are still chosen by cost.
        uneven: admit only plans that also serve blocks of different sizes.
        declared: somebody wrote or measured the graph, so it is worth making plans for it, and rows have a bound.
        channels: how many channels there are to a peer, for plans that can use several.
        one_round_limit_bytes: up to which size of a rank's INPUT the engine runs one-round plans by shared slots, on
            one host; above, and between hosts, the same plans go by messages. By default what ``engine`` says.
        engine: figures of the engine; by default those of the kind of device.
        algorithms: instead of the built-in ones.
        only_bytes: nobody will ask for another size. In large worlds the table has then one row, with the plan that a
            whole table has for this size, and no template is made in vain.

    Raises:
        PlanError: no plan is admitted; a forced algorithm is never replaced by another.
    """
    costs = engine or EngineCosts.of(topology, placement)
    if one_round_limit_bytes is not None:
        costs = replace(costs, one_round_limit_bytes=one_round_limit_bytes)
    model = CostModel(topology, placement, costs)
    cells = [(MAX_BYTES, 0)]
    if collective is not Collective.BARRIER:
        cells = _cells(costs.one_round_limit_bytes, placement.size)
    if only_bytes is not None and placement.size > MAX_WORLD:
        cells = [(MAX_BYTES, next(probe for upto, probe in cells if only_bytes <= upto))]
    found = candidates(
        collective, model, placement.groups(topology), [probe for _, probe in cells],
        root=root, deterministic=deterministic, forced=forced, uneven=uneven, declared=declared, channels=channels,
        algorithms=algorithms,
    )  # fmt: skip
    if declared and not model.on_cpus and forced is None and placement.size <= MAX_WORLD:
        found = simulated(found, model, [probe for _, probe in cells])
    bounds = Bounds(topology, placement, collective, root) if declared else None
    rows: list[PlanEntry] = []
    begin = 0
    for i, (upto, probe) in enumerate(cells):
        best = min(found, key=lambda candidate: candidate.curve_s[i])
        if rows and rows[-1].plan is best.plan:
            old = rows.pop()
            row = replace(old, upto_bytes=upto)
        else:
            bound_s = bounds.at(probe).seconds if bounds else 0.0
            row = PlanEntry(begin, upto, best.plan, probe, best.curve_s[i], _why(found, best, i, forced), bound_s)
        rows.append(row)
        begin = upto + 1
    return PlanTable(tuple(rows))


def _cells(limit_bytes: int, world: int) -> list[tuple[int, int]]:
    """``(last size, probed size)`` of neighbouring ranges: around the probes, and cut where shared slots end.

    A rank's INPUT has one block or as many as ranks, so the slots end at one of two sizes.
    """
    ends = {isqrt(a * b) for a, b in pairwise(_PROBES)} | {MAX_BYTES}
    ends |= {size for size in (limit_bytes, limit_bytes // world) if size > 0}
    cells, begin = [], 0
    for end in sorted(ends):
        inside = [probe for probe in _PROBES if begin <= probe <= end]
        cells.append((end, inside[0] if inside else isqrt(max(begin, 1) * end)))
        begin = end + 1
    return cells


def _why(found: Sequence[Candidate], best: Candidate, i: int, forced: str | None) -> str:
    others = sorted((c for c in found if c is not best), key=lambda candidate: candidate.curve_s[i])
    reason = f"forced: {forced}" if forced else f"fastest of {len(found)}" if others else "the only one"
    if others:
        reason += f"; next {others[0].plan.name}, {others[0].curve_s[i] / max(best.curve_s[i], 1e-12):.2f}x"
    return reason
