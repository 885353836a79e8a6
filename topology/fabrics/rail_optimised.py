"""Rail-optimised: NIC r of every host goes to the leaves of rail r; spines connect the rails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Grown, Resolve, chunks, flat
from hccl_py.topology.fabrics.tree_levels import TreeLevels

RAIL = "rail"


class RailOptimised(TreeLevels):
    """The pattern of ``ends`` says by ``<rail>`` which number is the rail: ``node*/nic<rail>``.

    ``hosts_per_leaf``: how many ends of a rail share a leaf, by default all; then switches are ``NAME-rail0``, ...,
    else ``NAME-rail0-leaf0``, .... ``spines: 0`` leaves the rails unconnected, unless by the hosts.
    """

    kind: Literal["rail_optimised"]
    hosts_per_leaf: int | None = Field(None, ge=1, le=4096)

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        rails: dict[str, list[End]] = {}
        for end in flat(ends):
            if RAIL not in end.binding:
                raise ConfigError(f"which rail is {end.name!r} on? write <{RAIL}> in 'ends', as in node*/nic<{RAIL}>")
            rails.setdefault(end.binding[RAIL], []).append(end)
        per_leaf = self.hosts_per_leaf or max(map(len, rails.values()))
        leaves: list[str] = []
        several = any(len(members) > per_leaf for members in rails.values())
        for rail, members in sorted(rails.items(), key=lambda item: int(item[0])):
            for number, group in enumerate(chunks(members, per_leaf)):
                leaves.append(grown.switch(f"{name}-rail{rail}" + (f"-leaf{number}" if several else "")))
                for end in group:
                    grown.wire(end.name, leaves[-1], link)
        if self.spines:
            self.add_spines(grown, f"{name}-spine", leaves, link.bandwidth_Bps * per_leaf, link, resolve)
        return grown
