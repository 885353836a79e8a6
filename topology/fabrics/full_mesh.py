"""Full mesh: every end is wired to every other one, without a switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Fabric, Grown, Resolve, flat
from hccl_py.topology.fields import ShortFigures


class FullMesh(Fabric):
    """``link``: each wire."""

    kind: Literal["full_mesh"]
    link: ShortFigures

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        every = flat(ends)
        if len(every) < 2:
            raise ConfigError("a mesh needs two ends or more")
        for i, a in enumerate(every):
            for b in every[i + 1 :]:
                grown.wire(a.name, b.name, link)
        return grown
