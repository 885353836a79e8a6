"""Fat tree: ends fill leaf after leaf, every leaf reaches every spine; with pods there are cores above the spines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Grown, Resolve, chunks, flat
from hccl_py.topology.fabrics.tree_levels import TreeLevels
from hccl_py.topology.fields import Ratio


class FatTree(TreeLevels):
    """``ends_per_leaf``: how many ends a leaf has; switches are ``NAME-leaf0``, ..., ``NAME-spine``.

    With ``leaves_per_pod`` each run of so many leaves has spines of its own (``NAME-pod0-spine``), and ``cores``
    switches (``NAME-core``) connect the pods; ``core_oversubscription`` is the ratio there.
    """

    kind: Literal["fat_tree"]
    ends_per_leaf: int = Field(ge=1, le=4096)
    leaves_per_pod: int | None = Field(None, ge=1, le=4096)
    cores: int = Field(1, ge=1, le=4096)
    core_oversubscription: Ratio = 1.0

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        leaves: list[str] = []
        for group in chunks(flat(ends), self.ends_per_leaf):
            leaves.append(grown.switch(f"{name}-leaf{len(leaves)}"))
            for end in group:
                grown.wire(end.name, leaves[-1], link)
        if len(leaves) == 1:
            return grown
        if self.spines == 0:
            raise ConfigError(f"{len(leaves)} leaves and no spine: the leaves would not be connected")
        down_Bps = link.bandwidth_Bps * self.ends_per_leaf
        per_pod = self.leaves_per_pod or len(leaves)
        pods = [leaves[at : at + per_pod] for at in range(0, len(leaves), per_pod)]
        if len(pods) == 1:
            self.add_spines(grown, f"{name}-spine", leaves, down_Bps, link, resolve)
            return grown
        pod_Bps, spines = 0.0, []
        for number, pod in enumerate(pods):
            first = len(grown.switches)
            up_Bps = self.add_spines(grown, f"{name}-pod{number}-spine", pod, down_Bps, link, resolve)
            spines.append(grown.switches[first:])
            pod_Bps = max(
                pod_Bps, up_Bps * len(pod)
            )  # the last pod may be shorter, but its uplinks are like the others'
        wire = resolve(self.uplink, link, "uplink")
        cores = grown.planes(f"{name}-core", self.cores, self.as_one)
        for row in spines:
            for spine in row:
                for core in cores:
                    up_Bps = pod_Bps / self.core_oversubscription / len(row) / len(cores)
                    grown.wire(spine, core, wire.wide(up_Bps))
        return grown
