"""The kinds of fabric that a cluster file may name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hccl_py.topology.fabrics.dragonfly import Dragonfly
from hccl_py.topology.fabrics.fat_tree import FatTree
from hccl_py.topology.fabrics.full_mesh import FullMesh
from hccl_py.topology.fabrics.pcie_tree import PcieTree
from hccl_py.topology.fabrics.rail_optimised import RailOptimised
from hccl_py.topology.fabrics.star import Ethernet, NvSwitch
from hccl_py.topology.fabrics.torus import Torus

KINDS = (FatTree, RailOptimised, Dragonfly, Torus, FullMesh, NvSwitch, PcieTree, Ethernet)
AnyFabric = Annotated[
    FatTree | RailOptimised | Dragonfly | Torus | FullMesh | NvSwitch | PcieTree | Ethernet,
    Field(discriminator="kind"),
]
