"""What several algorithms need: the order of sources, the order of ranks along a ring or tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.algorithm import Groups
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import Operand


def by_rank(sources: Iterable[tuple[int, Operand]]) -> list[Operand]:
    """Sources in rank order: the order in which a canonical fold adds."""
    return [operand for _, operand in sorted(sources, key=lambda pair: pair[0])]


def rank_order(params: Mapping[str, object], world: int) -> tuple[int, ...]:
    """The parameter ``order``, a permutation of the ranks; rank order if it is not given.

    Raises:
        PlanError: not a permutation.
    """
    order = cast("tuple[int, ...]", params.get("order", tuple(range(world))))
    if sorted(order) != list(range(world)):
        raise PlanError(f"order {order} is not a permutation of ranks 0 to {world - 1}")
    return order


def host_order(groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    """One parameter set: ranks of a host next to each other. Empty where that is rank order anyway."""
    order = tuple(rank for group in groups for rank in group)
    return ({"order": order},) if order != tuple(range(len(order))) else ({},)
