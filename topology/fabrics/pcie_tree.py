"""PCIe tree: switches below root complexes (a NUMA node, or the host), devices and NICs at the switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Fabric, Grown, Resolve
from hccl_py.topology.fields import Figures, ShortFigures


class PcieTree(Fabric):
    """``roots``: names above the switches, in order; ``switches_per_root``: how many (``NAME0``, ``NAME1``, ...).

    An end belongs to the root that is its NUMA node; ends without one are dealt to the roots in equal runs. The ends
    of each pattern are then dealt to a root's switches in equal runs, so GPUs and NICs of equal number come together.
    ``link``: end to switch; ``uplink``: what differs from it between switch and root.
    """

    kind: Literal["pcie_tree"]
    roots: list[str] = Field(min_length=1, max_length=64)
    switches_per_root: int = Field(1, ge=1, le=256)
    link: ShortFigures
    uplink: ShortFigures = Figures()

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        uplink = resolve(self.uplink, link, "uplink")
        if len(set(self.roots)) < len(self.roots):
            raise ConfigError(f"roots: {', '.join(self.roots)}: a root is named twice")
        switches: dict[str, list[str]] = {}
        for root in self.roots:
            first = len(grown.switches)
            switches[root] = [grown.switch(f"{name}{first + i}") for i in range(self.switches_per_root)]
            for switch in switches[root]:
                grown.wire(switch, root, uplink)
        for group in ends:
            root_of = {end.name: end.numa for end in group if end.numa in switches}
            dealt = _deal([end for end in group if end.name not in root_of], len(switches))
            root_of |= {end.name: root for root, ends_ in zip(switches, dealt, strict=True) for end in ends_}
            of_root = {root: [end for end in group if root_of[end.name] == root] for root in switches}
            for root, members in of_root.items():
                for switch, few in zip(switches[root], _deal(members, len(switches[root])), strict=True):
                    for end in few:
                        grown.wire(end.name, switch, link)
        return grown


def _deal(items: Sequence[End], parts: int) -> list[Sequence[End]]:
    """``items`` in ``parts`` runs whose lengths differ by one at most."""
    return [items[len(items) * i // parts : len(items) * (i + 1) // parts] for i in range(parts)]
