"""The built-in algorithms: one file each, listed here and nowhere else."""

from __future__ import annotations

from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.forest import FOREST
from hccl_py.scheduler.algorithms.halving_doubling import HALVING_DOUBLING
from hccl_py.scheduler.algorithms.hierarchical import HIERARCHICAL
from hccl_py.scheduler.algorithms.rails import RAILS
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE


def builtin_algorithms() -> tuple[Algorithm, ...]:
    """All of them, in the order in which ties are broken."""
    return (DIRECT, RING, TREE, HALVING_DOUBLING, HIERARCHICAL, FOREST, RAILS)
