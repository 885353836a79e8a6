"""Which plans a group uses: from what all ranks know of the cluster, so every rank comes to the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.by_size import table_by_size
from hccl_py.scheduler.select import PlanTable, build_table
from hccl_py.topology.config import ClusterConfig, load_cluster
from hccl_py.topology.graph import Topology
from hccl_py.topology.link import LinkKind
from hccl_py.topology.node import did_you_mean
from hccl_py.topology.placement import Placement
from hccl_py.topology.policy import Policy
from hccl_py.topology.world import local_world


class Planner:
    """Plan tables for the ranks of one group.

    Args:
        hosts: by rank, a word for the host that it is on; ranks with equal words share memory.
        env: settings; HCCL_PY_TOPOLOGY, HCCL_PY_ALGORITHM and HCCL_PY_DETERMINISTIC count here.
        slot_bytes: largest payload that may go by shared slots; 0: none.
        cluster: what is in the file named by HCCL_PY_TOPOLOGY; it is read if None.

    Raises:
        ConfigError, TopologyError: the file named by HCCL_PY_TOPOLOGY is wrong or has too few devices.
    """

    def __init__(self, hosts: Sequence[str], env: Env, slot_bytes: int, cluster: ClusterConfig | None = None) -> None:
        self.topology: Topology
        self.placement: Placement
        self.policy = Policy()
        if env.topology is None:
            self.topology, self.placement = local_world(hosts)
        else:
            cluster = cluster if cluster is not None else load_cluster(env.topology)
            check_policy(cluster.policy, env.topology)
            self.topology, self.placement = cluster.topology, cluster.placement.head(len(hosts))
            self.policy = cluster.policy
            _check_hosts(self.placement.groups(self.topology), hosts, env.topology)
        self._env = env
        self._slot_bytes = slot_bytes

    def digest(self) -> str:
        """Equal on ranks that will choose the same plans."""
        env = self._env
        settings = (env.algorithm, env.deterministic, self._slot_bytes)
        parts = (self.topology.digest(), self.placement, *settings, self.policy)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def free(self) -> bool:
        """True if plans follow the figures of the graph: nobody forces an algorithm for all_reduce."""
        return self._env.algorithm_for(Collective.ALL_REDUCE) is None and not self.policy.forced(Collective.ALL_REDUCE)

    @property
    def channels(self) -> int:
        """Connections to a peer that plans may use."""
        return self._env.connections or 2

    def adopt(self, topology: Topology) -> None:
        """Plan for a graph with other figures from now on.

        Raises:
            ConfigError: nodes or links are not those of the graph so far.
        """
        if topology.nodes != self.topology.nodes or _ends(topology) != _ends(self.topology):
            raise ConfigError("only the figures of links may change while a group runs, not its nodes and links")
        self.topology = topology

    def table(
        self,
        collective: Collective,
        root: int = 0,
        uneven: bool = False,
        topology: Topology | None = None,
        channels: int = 0,
    ) -> PlanTable:
        """The plans of one collective by size, for the graph in use or (``topology``) for one with other figures.

        Plans use at most ``channels`` connections to a peer; 0: all that there are.

        Raises:
            PlanError: the algorithm that the user forces cannot serve.
        """
        graph = self.topology if topology is None else topology
        forced = self._env.algorithm_for(collective)
        limits = self.policy.forced(collective) if forced is None else ((None, forced),)

        def table(algorithm: str | None) -> PlanTable:
            return build_table(
                collective,
                graph,
                self.placement,
                root=root,
                deterministic=self._env.deterministic or self.policy.deterministic,
                forced=algorithm,
                one_round_limit_bytes=self._slot_bytes,
                uneven=uneven,
                declared=self._env.topology is not None,
                channels=min(channels or self.channels, self.channels),
            )

        return table_by_size(limits, table)


def _ends(topology: Topology) -> list[tuple[str, str, LinkKind]]:
    return [(link.src, link.dst, link.kind) for link in topology.links]


def check_policy(policy: Policy, path: str) -> None:
    """Raise ConfigError where a policy names an algorithm that there is not."""
    known = [algorithm.name for algorithm in builtin_algorithms()]
    for rule in policy.algorithms:
        if rule.algorithm not in known:
            near = did_you_mean(rule.algorithm, known)
            message = f"there is no algorithm {rule.algorithm!r}{near} (there are {', '.join(known)})"
            raise ConfigError(f"{path}: policy.algorithms: {message}")


def allowed_interfaces(cluster: ClusterConfig, rank: int) -> str | None:
    """The interfaces of the Ethernet NICs that the policy leaves to the rank's host; None: it says nothing of them."""
    if cluster.policy.nics is None or rank >= cluster.placement.size:
        return None
    topology = cluster.topology
    host = cluster.placement.host(rank, topology)
    names = [
        topology.node(nic).interface
        for nic in cluster.policy.nics
        if topology.host_of(nic) == host and any(link.kind is LinkKind.ETHERNET for link in topology.links_from(nic))
    ]
    return ",".join(names) or None


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
