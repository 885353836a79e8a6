"""Worlds above the verifier's limit: which templates serve, and what they take, by a formula.

The cost model looks at every step; for a thousand ranks that takes minutes. What rails take is known in closed form:
the bytes of the busiest rail over its narrowest link, or those inside a host, whichever takes longer, plus the latency
of stages that nothing hides. It ranks parameter sets; `hccl-py simulate` says what the chosen one takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.engine_costs import EngineCosts
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.rails_for import RailsCost
from hccl_py.scheduler.template import Template
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_NEAR = 1.03  # of the best


def fastest_rails(
    sets: Sequence[Mapping[str, ParamValue]], model: CostModel, sizes_bytes: Sequence[int]
) -> tuple[Mapping[str, ParamValue], ...]:
    """Of the parameter sets of `rails` the rings and the halvings that are fastest at one of the sizes, by the formula.

    Of each kind, and all that are near, as the formula is not exact: what is chosen of them is simulated first.
    """
    costs = [RailsCost(params, model.topology, model.placement, model.engine) for params in sets]
    kinds = [[i for i, params in enumerate(sets) if ("radices" in params) is halves] for halves in (False, True)]
    best: set[int] = set()
    for kind in filter(None, kinds):
        for size in sizes_bytes:
            took_s = {i: costs[i].seconds(size) for i in kind}
            best |= {i for i, each_s in took_s.items() if each_s <= _NEAR * min(took_s.values())}
    return tuple(sets[number] for number in sorted(best))


def large_plans(
    collective: Collective,
    topology: Topology,
    placement: Placement,
    engine: EngineCosts,
    sizes_bytes: Sequence[int],
    algorithms: Sequence[Algorithm],
    forced: str | None,
    channels: int,
) -> list[tuple[Template, tuple[float, ...]]]:
    """The templates that are fastest at one of the sizes at least, each with its predicted times.

    Raises:
        PlanError: none: says why, and how long a plan without a template would take to verify.
    """
    found: list[tuple[Algorithm, Mapping[str, ParamValue], tuple[float, ...]]] = []
    for algorithm in algorithms:
        if forced not in (None, algorithm.name) or not algorithm.supports(collective):
            continue
        if algorithm.template is None:
            continue
        sets = algorithm.variants(collective, placement.groups(topology))
        if algorithm.synthesize is not None:
            sets = algorithm.synthesize(collective, topology, placement, 0, channels)
        elif forced is None:
            continue  # what rails do is never slower
        else:
            sets = tuple(dict(algorithm.template(placement.size, params).params) for params in sets)
        for params in sets:
            cost = RailsCost(params, topology, placement, engine)
            curve = tuple(map(cost.seconds, sizes_bytes))
            found.append((algorithm, params, curve))
    best = {min(range(len(found)), key=lambda i: found[i][2][at]) for at in range(len(sizes_bytes)) if found}
    plans = []
    for number in sorted(best):
        algorithm, params, curve = found[number]
        assert algorithm.template is not None  # else it was left out above
        if algorithm.synthesize is None:
            params = algorithm.variants(collective, placement.groups(topology))[0]
        plans.append((algorithm.template(placement.size, params), curve))
    if not plans:
        raise PlanError(
            f"no template for {collective.name.lower()} over {placement.size} ranks: there are templates for "
            "all_reduce, over several hosts with equally many ranks; others can be forced, if they have few steps"
        )
    return plans
