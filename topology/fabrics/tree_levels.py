"""The switches above the leaves of a tree: spines, and cores above pods of them, with oversubscription."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import Fabric, Grown, Resolve, Wire
from hccl_py.topology.fields import Figures, Ratio, ShortFigures


class TreeLevels(Fabric):
    """What fat trees and rail-optimised networks have in common.

    ``link``: end to leaf. ``spines``: how many switches stand above the leaves. ``oversubscription``: what may enter a
    leaf from below against what may leave it upward. ``uplink``: what differs from ``link`` between leaf and spine; a
    bandwidth there is that of one leaf and one spine, and then there is nothing left for the ratio to say. ``as_one``:
    one vertex stands for all spines, as wide as they are together, because packets are spread over them (adaptive
    routing, ECMP with many flows); without it each spine is a vertex of its own.
    """

    link: ShortFigures
    spines: int = Field(1, ge=0, le=4096)
    oversubscription: Ratio | None = None
    uplink: ShortFigures = Figures()
    as_one: bool = True

    def add_spines(
        self, grown: Grown, name: str, leaves: Sequence[str], down_Bps: float, base: Wire, resolve: Resolve
    ) -> float:
        """Wire ``leaves``, each with ``down_Bps`` below, to new spines ``name``; returns what leaves each upward."""
        wire = resolve(self.uplink, base.wide(0.0), "uplink")  # 0: neither the uplink nor its type says it
        stated_Bps = wire.bandwidth_Bps * self.spines
        if stated_Bps and self.oversubscription is not None:
            raise ConfigError("say 'oversubscription' or a bandwidth of 'uplink': each follows from the other")
        up_Bps = stated_Bps or down_Bps / (self.oversubscription or 1.0)
        spines = grown.planes(name, self.spines, self.as_one)
        for leaf in leaves:
            for spine in spines:
                grown.wire(leaf, spine, wire.wide(up_Bps / len(spines)))
        return up_Bps
