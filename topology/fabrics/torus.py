"""Torus: ends on a grid of any number of dimensions, each wired to its neighbours; without wrap it is a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Literal

from pydantic import Field

from hccl_py.core.errors import ConfigError
from hccl_py.topology.fabrics.fabric import End, Fabric, Grown, Resolve, flat
from hccl_py.topology.fields import ShortFigures


class Torus(Fabric):
    """``dims``: size of each dimension; ends fill the grid with the last dimension running fastest.

    ``wrap``: the last of a row is a neighbour of the first. No switches: ends are wired to each other by ``link``.
    """

    kind: Literal["torus"]
    dims: list[Annotated[int, Field(ge=1, le=65536)]] = Field(min_length=1, max_length=8)
    wrap: bool = True
    link: ShortFigures

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        every = flat(ends)
        if math.prod(self.dims) != len(every):
            size = " x ".join(map(str, self.dims))
            raise ConfigError(f"a grid of {size} has {math.prod(self.dims)} places, but there are {len(every)} ends")
        at = dict(zip(product(*map(range, self.dims)), every, strict=True))
        for place, end in at.items():
            for axis, length in enumerate(self.dims):
                last = place[axis] + 1 == length
                if length == 1 or (last and (not self.wrap or length == 2)):  # of two, both ways are the same wire
                    continue
                neighbour = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
                grown.wire(end.name, at[neighbour].name, link)
        return grown
