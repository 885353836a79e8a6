"""Accelerators from the PCI part of sysfs. NVLink and the like are not to be seen there: that is a driver's affair."""

from __future__ import annotations

from pathlib import Path

from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind
from hccl_py.topology.priors import PCIE, Prior, both_ways
from hccl_py.topology.probes.probe import Found
from hccl_py.topology.probes.sysfs import names, pcie_Bps, read_int

_3D_CONTROLLER, _ACCELERATOR, _VGA = 0x0302, 0x1200, 0x0300
_NVIDIA, _AMD, _INTEL = 0x10DE, 0x1002, 0x8086


class AcceleratorProbe:
    """Adds devices ``gpu0``, ... and ``npu0``, ... in order of their PCI addresses, linked to their NUMA node by PCIe.

    Args:
        root: where ``sys`` is.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self._pci = Path(root) / "sys/bus/pci/devices"

    def probe(self, host: str, so_far: Found) -> Found:
        """See `Probe.probe`."""
        nodes: list[Node] = []
        links: list[Link] = []
        notes: list[str] = []
        count = dict.fromkeys(DeviceKind, 0)
        for address in names(self._pci):
            kind = self._kind(self._pci / address)
            if kind is None:
                continue
            hub = so_far.hub(host, read_int(self._pci / address / "numa_node", -1))
            name = f"{host}/{kind.value}{count[kind]}"
            count[kind] += 1
            numa = hub.name if hub.kind is NodeKind.NUMA else ""
            nodes.append(Node(name, NodeKind.DEVICE, device=kind, numa=numa, pci=address))
            slot = pcie_Bps(self._pci / address)
            links += both_ways(name, hub.name, LinkKind.PCIE, Prior(slot or PCIE.bandwidth_Bps, PCIE.latency_s))
            if slot is None:
                notes.append(f"{name}: the speed of its slot is unknown, took {PCIE.bandwidth_Bps / 1e9:g} GB/s")
        if len(nodes) > 1:
            notes.append("links between accelerators (NVLink, HCCS, xGMI) are not in sysfs: add them by hand")
        return Found(tuple(nodes), tuple(links), tuple(notes))

    @staticmethod
    def _kind(device: Path) -> DeviceKind | None:
        vendor, pci_class = read_int(device / "vendor", 0), read_int(device / "class", 0) >> 8
        if pci_class in (_3D_CONTROLLER, _ACCELERATOR):
            return DeviceKind.GPU if vendor in (_NVIDIA, _AMD, _INTEL) else DeviceKind.NPU
        # a graphics card of a desktop; the screen adapter of a server's management chip is VGA too
        return DeviceKind.GPU if pci_class == _VGA and vendor in (_NVIDIA, _AMD) else None
