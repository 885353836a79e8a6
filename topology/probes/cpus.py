"""CPUs and NUMA nodes from sysfs: one device for each CPU that this process may use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hccl_py.core.cpus import affinity_cpus, cpu_quota
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind
from hccl_py.topology.priors import both_ways
from hccl_py.topology.probes.probe import Found
from hccl_py.topology.probes.sysfs import cpu_list, names, read_text

PRIORS_NOTE = "CPUs and memory: figures are priors, nothing was measured"


class CpuProbe:
    """Adds NUMA nodes (``numa0``) with sockets' links between them, and devices ``cpu0``, ... for the usable CPUs.

    Args:
        root: where ``sys`` and ``proc`` are.
        affinity: numbers of the CPUs that may be used; asked of the system if None.
    """

    def __init__(self, root: str | Path = "/", affinity: Iterable[int] | None = None) -> None:
        self._root = Path(root)
        self._affinity = affinity_cpus() if affinity is None else frozenset(affinity)

    def probe(self, host: str, so_far: Found) -> Found:
        """See `Probe.probe`."""
        numa_of, numas = self._numas(host)
        nodes: list[Node] = list(numas)
        links: list[Link] = []
        for index, a in enumerate(numas):
            for b in numas[index + 1 :]:
                links += both_ways(a.name, b.name, LinkKind.SOCKET)
        for cpu in sorted(self._affinity):
            numa = numa_of.get(cpu, "")
            device = Node(f"{host}/cpu{cpu}", NodeKind.DEVICE, device=DeviceKind.CPU, numa=numa)
            nodes.append(device)
            links += both_ways(device.name, numa or (numas[0].name if numas else host), LinkKind.MEMORY)
        notes = [PRIORS_NOTE]
        quota = cpu_quota(self._root)
        if quota is not None and quota < len(self._affinity):
            notes.append(f"the cgroup's quota is {quota:g} CPUs, fewer than the {len(self._affinity)} that may be used")
        return Found(tuple(nodes), tuple(links), tuple(notes))

    def _numas(self, host: str) -> tuple[dict[int, str], list[Node]]:
        """NUMA node's name of each CPU, and the NUMA nodes that have CPUs."""
        folder = self._root / "sys/devices/system/node"
        numa_of: dict[int, str] = {}
        numas: list[Node] = []
        found = [name for name in names(folder) if name.startswith("node") and name[4:].isdigit()]
        for name in sorted(found, key=lambda name: int(name[4:])):
            cpus = cpu_list(read_text(folder / name / "cpulist"))
            if not cpus:  # memory only: no rank sits there
                continue
            numas.append(Node(f"{host}/numa{name[4:]}", NodeKind.NUMA, cpus=len(cpus)))
            numa_of.update(dict.fromkeys(cpus, numas[-1].name))
        return numa_of, numas
