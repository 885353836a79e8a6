"""Which plans a group uses: from what all ranks know of the cluster, so every rank comes to the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.scheduler.select import PlanTable, build_table
from hccl_py.topology.config import load_cluster
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement
from hccl_py.topology.world import local_world


class Planner:
    """Plan tables for the ranks of one group.

    Args:
        hosts: by rank, a word for the host that it is on; ranks with equal words share memory.
        env: settings; HCCL_PY_TOPOLOGY, HCCL_PY_ALGORITHM and HCCL_PY_DETERMINISTIC count here.
        slot_bytes: largest payload that may go by shared slots; 0: none.

    Raises:
        ConfigError, TopologyError: the file named by HCCL_PY_TOPOLOGY is wrong or has too few devices.
    """

    def __init__(self, hosts: Sequence[str], env: Env, slot_bytes: int) -> None:
        self.topology: Topology
        self.placement: Placement
        if env.topology is None:
            self.topology, self.placement = local_world(hosts)
        else:
            cluster = load_cluster(env.topology)
            self.topology, self.placement = cluster.topology, cluster.placement.head(len(hosts))
            _check_hosts(self.placement.groups(self.topology), hosts, env.topology)
        self._env = env
        self._slot_bytes = slot_bytes

    def digest(self) -> str:
        """Equal on ranks that will choose the same plans."""
        env = self._env
        parts = (self.topology.digest(), self.placement, env.algorithm, env.deterministic, self._slot_bytes)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def table(self, collective: Collective, root: int = 0, uneven: bool = False) -> PlanTable:
        """The plans of one collective by size.

        Raises:
            PlanError: the algorithm that the user forces cannot serve.
        """
        return build_table(
            collective,
            self.topology,
            self.placement,
            root=root,
            deterministic=self._env.deterministic,
            forced=self._env.algorithm_for(collective),
            one_round_limit_bytes=self._slot_bytes,
            uneven=uneven,
        )


def _check_hosts(groups: Sequence[Sequence[int]], hosts: Sequence[str], path: str) -> None:
    """Raise unless the file puts the same ranks together as the machines do."""
    for group in groups:
        for rank in group:
            if hosts[rank] != hosts[group[0]] or hosts.count(hosts[rank]) != len(group):
                found = [r for r, host in enumerate(hosts) if host == hosts[rank]]
                raise ConfigError(
                    f"{path} puts ranks {list(group)} on one host, but rank {rank} shares its host with {found}; "
                    "mend `placement` there, or start the ranks in that order"
                )
