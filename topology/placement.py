"""Placement: which device each rank sits on. Rank order is not host order: mpirun --map-by node interleaves hosts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.graph import DeviceKind, Link, NodeKind, Topology


@dataclass(frozen=True)
class Placement:
    """``devices[rank]`` is the full name of the rank's device.

    Raises:
        TopologyError: no rank, or two ranks on one device (give a host as many devices as it has ranks).
    """

    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if not self.devices:
            raise TopologyError("a placement needs at least one rank")
        seen: dict[str, int] = {}
        for rank, device in enumerate(self.devices):
            if device in seen:
                raise TopologyError(f"ranks {seen[device]} and {rank} are both placed on {device!r}")
            seen[device] = rank

    @classmethod
    def by_host(cls, topology: Topology) -> Placement:
        """Ranks fill one host after the other, in natural order: all accelerators if there are any, else all CPUs."""
        return cls(_candidates(topology))

    @classmethod
    def round_robin(cls, topology: Topology) -> Placement:
        """As `by_host`, but neighbouring ranks are on different hosts (mpirun --map-by node)."""
        devices = _candidates(topology)
        per_host = [[device for device in devices if topology.host_of(device) == host] for host in topology.hosts()]
        rounds = zip_longest(*per_host)
        return cls(tuple(device for turn in rounds for device in turn if device is not None))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    def head(self, size: int) -> Placement:
        """The placement of the first ``size`` ranks."""
        if not 1 <= size <= self.size:
            raise TopologyError(f"{size} ranks wanted, but the placement has 1 to {self.size}")
        return Placement(self.devices[:size])

    def device(self, rank: int) -> str:
        """The rank's device."""
        if not 0 <= rank < self.size:
            raise TopologyError(f"there is no rank {rank}: ranks are 0 to {self.size - 1}")
        return self.devices[rank]

    def rank_of(self, device: str) -> int:
        """The rank on that device; TopologyError if there is none."""
        if device not in self.devices:
            raise TopologyError(f"no rank is placed on {device!r}")
        return self.devices.index(device)

    def host(self, rank: int, topology: Topology) -> str:
        """Name of the rank's host."""
        return topology.host_of(self.device(rank))

    def groups(self, topology: Topology) -> tuple[tuple[int, ...], ...]:
        """Ranks of each host, ascending; hosts in order of their lowest rank, hosts without ranks left out."""
        groups: dict[str, list[int]] = {}
        for rank, device in enumerate(self.devices):
            groups.setdefault(topology.host_of(device), []).append(rank)
        return tuple(tuple(ranks) for ranks in groups.values())

    def path(self, src: int, dst: int, topology: Topology) -> tuple[Link, ...]:
        """The links from rank ``src`` to rank ``dst`` (see `Topology.path`)."""
        return topology.path(self.device(src), self.device(dst))

    def check(self, topology: Topology) -> None:
        """Check that every rank sits on a device of ``topology`` and that all reach each other.

        Raises:
            TopologyError: says which rank, or between which two devices there is no path.
        """
        for rank, device in enumerate(self.devices):
            if topology.node(device).kind is not NodeKind.DEVICE:
                raise TopologyError(f"rank {rank}: {device!r} is a {topology.node(device).kind.value}, not a device")
        topology.check_connected(self.devices)


def _candidates(topology: Topology) -> tuple[str, ...]:
    devices = topology.devices()
    accelerators = tuple(name for name in devices if topology.node(name).device is not DeviceKind.CPU)
    if not devices:
        raise TopologyError("the topology has no device to place a rank on")
    return accelerators or devices
