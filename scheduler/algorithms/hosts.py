"""Hosts: which ranks sit on which host, and which rank of a host takes which share of the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.algorithm import Groups


class Hosts(NamedTuple):
    """The groups as seen by one rank."""

    groups: Groups
    rank: int

    @property
    def mine(self) -> int:
        return self.host_of(self.rank)

    @property
    def neighbours(self) -> list[int]:
        """The other ranks of this host, the next one first."""
        group = self.groups[self.mine]
        at = group.index(self.rank)
        return [*group[at + 1 :], *group[:at]]

    @property
    def elsewhere(self) -> list[int]:
        """The other hosts, the next one first."""
        return [(self.mine + d) % len(self.groups) for d in range(1, len(self.groups))]

    def host_of(self, rank: int) -> int:
        return next(host for host, group in enumerate(self.groups) if rank in group)

    def share_of(self, rank: int) -> int:
        return self.groups[self.host_of(rank)].index(rank)

    def owner(self, host: int, share: int) -> int:
        group = self.groups[host]
        return group[share % len(group)]

    def single(self, host: int) -> bool:
        return len(self.groups[host]) == 1


def groups_of(params: Mapping[str, object], world: int) -> Groups:
    groups = cast(Groups, params.get("groups", (tuple(range(world)),)))
    if sorted(rank for group in groups for rank in group) != list(range(world)) or not all(groups):
        raise PlanError(f"groups {groups} do not hold each of the ranks 0 to {world - 1} once")
    return groups
