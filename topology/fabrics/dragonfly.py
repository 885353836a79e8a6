"""Dragonfly: routers in groups, a full mesh in each group, and one link between every two groups (Kim et al. 2008)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Fabric, Grown, Resolve, chunks, flat
from hccl_py.topology.fields import ShortFigures


class Dragonfly(Fabric):
    """``ends_per_router`` ends at each router, ``routers_per_group`` routers (``NAME-g0-r0``, ...) in each group.

    ``link``: end to router; ``local``: between routers of a group; ``global``: the one link between two groups. The
    global links of a group are dealt to its routers in runs, those to the next group first.
    """

    kind: Literal["dragonfly"]
    ends_per_router: int = Field(ge=1, le=4096)
    routers_per_group: int = Field(ge=1, le=4096)
    link: ShortFigures
    local: ShortFigures
    global_: ShortFigures = Field(alias="global")

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        local, between = resolve(self.local, None, "local"), resolve(self.global_, None, "global")
        every = flat(ends)
        size = self.ends_per_router * self.routers_per_group
        if len(every) % size:
            raise ConfigError(f"{len(every)} ends do not fill groups of {self.routers_per_group} routers with "
                              f"{self.ends_per_router} ends each")  # fmt: skip
        groups: list[list[str]] = []
        for number, members in enumerate(chunks(every, size)):
            routers = [grown.switch(f"{name}-g{number}-r{r}") for r in range(self.routers_per_group)]
            for router, few in zip(routers, chunks(members, self.ends_per_router), strict=True):
                for end in few:
                    grown.wire(end.name, router, link)
            for i, a in enumerate(routers):
                for b in routers[i + 1 :]:
                    grown.wire(a, b, local)
            groups.append(routers)
        per_router = -(-(len(groups) - 1) // self.routers_per_group)
        for i, ours in enumerate(groups):
            for j in range(i + 1, len(groups)):
                there, back = j - i - 1, len(groups) - 1 - (j - i)  # which of its global links each group uses
                grown.wire(ours[there // per_router], groups[j][back // per_router], between)
        return grown
