"""NICs from sysfs: Ethernet interfaces that are up, and RDMA devices with an active port."""

from __future__ import annotations

import re
from pathlib import Path

from hccl_py.topology.graph import Link, LinkKind, Node, NodeKind
from hccl_py.topology.node import natural_key
from hccl_py.topology.priors import PCIE, Prior, both_ways, prior
from hccl_py.topology.probes.probe import Found
from hccl_py.topology.probes.sysfs import names, pci_folder, pcie_Bps, read_int, read_text
from hccl_py.topology.world import host_word

# All NICs of a kind are taken to reach one network of that name; a cluster file says it better.
NETWORKS = {LinkKind.ETHERNET: "ethernet", LinkKind.ROCE: "ethernet", LinkKind.INFINIBAND: "infiniband"}
_ARPHRD_ETHER = 1
_IFF_LOOPBACK = 0x8
_RATE = re.compile(r"([0-9.]+) Gb/sec")


class NicProbe:
    """Adds a NIC for each usable port, linked to its NUMA node by PCIe and to the network of its kind.

    Left out, with a note: interfaces that are down, bridges and their ports (containers' veth pairs lead nowhere else),
    and the IP interface of an RDMA device, which is the same wire again.

    Args:
        root: where ``sys`` is.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self._net = Path(root) / "sys/class/net"
        self._rdma = Path(root) / "sys/class/infiniband"

    def probe(self, host: str, so_far: Found) -> Found:
        """See `Probe.probe`."""
        found = Found()
        of_rdma: dict[str, str] = {}
        for name in sorted(names(self._rdma), key=natural_key):
            for interface in names(self._rdma / name / "device/net"):
                of_rdma[interface] = name
            found += self._rdma_device(host, name, so_far)
        for name in sorted(names(self._net), key=natural_key):
            folder = self._net / name
            if not folder.is_dir() or read_int(folder / "flags", 0) & _IFF_LOOPBACK:
                continue  # bonding_masters is a plain file; nobody misses the loopback
            reason = f"it is the IP interface of {of_rdma[name]}" if name in of_rdma else self._unfit(folder)
            if reason:
                found += Found(notes=(f"{name} left out: {reason}",))
            else:
                found += self._interface(host, name, so_far)
        switches = dict.fromkeys(link.dst for link in found.links if link.dst in NETWORKS.values())
        return found + Found(nodes=tuple(Node(name, NodeKind.SWITCH) for name in switches))

    @staticmethod
    def _unfit(folder: Path) -> str:
        """Why the interface cannot carry traffic between hosts, or ""."""
        if read_int(folder / "type", _ARPHRD_ETHER) != _ARPHRD_ETHER:
            return "it is not Ethernet"
        if (folder / "bridge").exists():
            return "it is a bridge"
        if (folder / "master").exists():
            return f"it is a port of {(folder / 'master').resolve().name}"
        state = read_text(folder / "operstate")
        # tun and some virtual interfaces say "unknown" while they work
        return "" if state in ("up", "unknown") else f"its operstate is {state or 'unreadable'}"

    def _interface(self, host: str, name: str, so_far: Found) -> Found:
        folder = self._net / name
        speed_Mbit = read_int(folder / "speed", -1)
        bandwidth, latency = prior(LinkKind.ETHERNET)
        notes: tuple[str, ...] = ()
        if speed_Mbit > 0:
            bandwidth = speed_Mbit * 1e6 / 8
        else:
            notes = (f"{name}: its speed is unknown, took {bandwidth * 8 / 1e9:g} Gbit/s",)
        return self._nic(host, name, folder / "device", LinkKind.ETHERNET, Prior(bandwidth, latency), so_far, notes)

    def _rdma_device(self, host: str, name: str, so_far: Found) -> Found:
        for port in sorted(names(self._rdma / name / "ports"), key=natural_key):
            folder = self._rdma / name / "ports" / port
            if "ACTIVE" not in read_text(folder / "state"):
                continue
            kind = LinkKind.ROCE if read_text(folder / "link_layer") == "Ethernet" else LinkKind.INFINIBAND
            bandwidth, latency = prior(kind)
            rate = _RATE.match(read_text(folder / "rate"))
            notes: tuple[str, ...] = ()
            if rate is not None and float(rate[1]) > 0:
                bandwidth = float(rate[1]) * 1e9 / 8
            else:
                notes = (f"{name}: its rate is unknown, took {bandwidth * 8 / 1e9:g} Gbit/s",)
            # one port: a second one of the same device shares its PCIe slot, and few machines wire it
            return self._nic(host, name, self._rdma / name / "device", kind, Prior(bandwidth, latency), so_far, notes)
        return Found(notes=(f"{name} left out: no active port",))

    def _nic(
        self, host: str, name: str, device: Path, kind: LinkKind, wire: Prior, so_far: Found, notes: tuple[str, ...]
    ) -> Found:
        slot_folder = pci_folder(device)
        hub = so_far.hub(host, read_int(slot_folder / "numa_node", -1) if slot_folder else -1)
        pci = slot_folder.name if slot_folder else ""
        numa = hub.name if hub.kind is NodeKind.NUMA else ""
        nic = Node(f"{host}/{host_word(name)}", NodeKind.NIC, numa=numa, interface=name, pci=pci)
        slot_Bps = pcie_Bps(slot_folder) if slot_folder else None
        # a virtual NIC has no slot: what it can do is the speed it states, so its way to memory must not be narrower
        inner = Prior(slot_Bps or max(PCIE.bandwidth_Bps, wire.bandwidth_Bps), PCIE.latency_s)
        links: tuple[Link, ...] = both_ways(hub.name, nic.name, LinkKind.PCIE, inner)
        links += both_ways(nic.name, NETWORKS[kind], kind, wire)
        return Found((nic,), links, notes)
