"""Stars: all ends at one switch. Plain Ethernet between hosts, NVSwitch between the GPUs of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hccl_py.topology.fabrics.fabric import End, Fabric, Grown, Resolve, flat
from hccl_py.topology.fields import ShortFigures


class Ethernet(Fabric):
    """One switch, called as the fabric. ``link``: from each end to it."""

    kind: Literal["ethernet"]
    link: ShortFigures

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        switch = grown.switch(name)
        for end in flat(ends):
            grown.wire(end.name, switch, link)
        return grown


class NvSwitch(Fabric):
    """``chips`` switches, every end linked to each. ``link``: all links of one end together.

    ``as_one``: one vertex, called as the fabric, stands for all chips, for traffic is spread over them; without it
    there is a vertex for each (``NAME0``, ``NAME1``, ...), and an end's bandwidth is divided among them.
    """

    kind: Literal["nvswitch"]
    chips: int = Field(1, ge=1, le=64)
    as_one: bool = True
    link: ShortFigures

    def grow(self, name: str, ends: Sequence[Sequence[End]], resolve: Resolve) -> Grown:
        """See `Fabric.grow`."""
        grown = Grown()
        link = resolve(self.link, None, "link")
        chips = grown.planes(name, self.chips, self.as_one)
        for end in flat(ends):
            for chip in chips:
                grown.wire(end.name, chip, link.wide(link.bandwidth_Bps / len(chips)))
        return grown
