"""hwloc's XML (``lstopo --of xml``): one host as a tree of packages, NUMA nodes, bridges and PCI devices."""

from __future__ import annotations

from hccl_py.topology.graph import DeviceKind, LinkKind, NodeKind, Topology
from hccl_py.topology.importers.importer import PCIE_NOTE, Sketch, local_word
from hccl_py.topology.importers.xml import Element, parse_xml

_NETWORK, _OPENFABRICS = ("2", "Network"), ("3", "OpenFabrics")
_DISPLAY, _3D, _ACCELERATOR = "0300", "0302", "1200"
_GPU_VENDORS = ("10de", "1002", "8086")


def read_hwloc(text: str, file: str, host: str) -> tuple[Topology, list[str]]:
    """The host, and notes on what was assumed.

    Raises:
        ConfigError: not such a file; says file:line.
    """
    root = parse_xml(text, file)
    sketch = Sketch(file)
    machines = [child for child in root.children if child.get("type") == "Machine"]
    if root.tag != "topology" or not machines:
        raise sketch.error(root.line, "a hwloc topology is <topology> with an object of type Machine")
    infos = {info.get("name"): info.get("value") for info in machines[0].named("info")}
    reader = _Reader(sketch, sketch.host(host or infos.get("HostName", "") or "localhost", root.line))
    reader.collect(machines[0], "")
    reader.finish()
    return sketch.topology(), sketch.notes


class _Reader:
    def __init__(self, sketch: Sketch, host: str) -> None:
        self._sketch = sketch
        self._host = host
        self._numas: list[str] = []
        self._cpus: list[tuple[str, str, int]] = []  # local name, NUMA node, line
        self._accelerators = 0
        self._switches = 0

    def collect(self, element: Element, numa: str) -> None:
        """Everything below ``element``, which is near ``numa`` ("": the first that is found)."""
        for child in element.children:
            if child.tag == "object" and child.get("type") == "NUMANode":
                numa = f"{self._host}/numa{child.get('os_index') or len(self._numas)}"
                self._sketch.node(numa, NodeKind.NUMA, child.line)
                for other in self._numas:
                    self._sketch.wire(numa, other, LinkKind.SOCKET, child.line)
                self._numas.append(numa)
        for child in element.named("object"):
            kind = child.get("type")
            if kind == "PU":
                self._cpus.append((f"cpu{child.get('os_index') or len(self._cpus)}", numa, child.line))
            elif kind == "Bridge":
                self._bridge(child, numa or self._hub(), numa)
            elif kind == "PCIDev":
                self._pci(child, numa or self._hub(), numa)
            elif kind != "NUMANode":
                self.collect(child, numa)

    def _hub(self) -> str:
        return self._numas[0] if self._numas else self._host

    def _bridge(self, bridge: Element, at: str, numa: str) -> None:
        inside = [child for child in bridge.named("object") if child.get("type") in ("Bridge", "PCIDev")]
        if bridge.get("bridge_type") == "1-1" and len(inside) > 1:  # PCI to PCI with several below: a switch
            switch = f"{self._host}/pcie{self._switches}"
            self._switches += 1
            self._sketch.node(switch, NodeKind.SWITCH, bridge.line)
            self._sketch.wire(switch, at, LinkKind.PCIE, bridge.line, _pci_Bps(bridge))
            at = switch
        for child in inside:
            (self._bridge if child.get("type") == "Bridge" else self._pci)(child, at, numa)

    def _pci(self, pci: Element, at: str, numa: str) -> None:
        address = pci.get("pci_busid")
        pci_class, _, vendor = pci.get("pci_type").partition(" ")
        devices = [child for child in pci.named("object") if child.get("type") == "OSDev"]
        vendor = vendor.strip("[]").partition(":")[0]
        line, width_Bps = pci.line, _pci_Bps(pci)
        if pci_class in (_3D, _ACCELERATOR) or (pci_class == _DISPLAY and vendor in _GPU_VENDORS[:2]):
            kind = DeviceKind.GPU if vendor in _GPU_VENDORS else DeviceKind.NPU
            name = f"{self._host}/{kind.value}{self._accelerators}"
            self._accelerators += 1
            self._sketch.node(name, NodeKind.DEVICE, line, kind, numa=numa, pci=address)
            self._sketch.wire(name, at, LinkKind.PCIE, line, width_Bps)
            return
        fabrics = [d for d in devices if d.get("osdev_type") in _OPENFABRICS]
        for device in fabrics or [d for d in devices if d.get("osdev_type") in _NETWORK]:
            interface = device.get("name")
            nic = f"{self._host}/{local_word(interface)}"
            self._sketch.node(nic, NodeKind.NIC, device.line, numa=numa, interface=interface, pci=address)
            self._sketch.wire(nic, at, LinkKind.PCIE, line, width_Bps)
            link = LinkKind.INFINIBAND if fabrics else LinkKind.ETHERNET
            network = self._sketch.node(link.name.lower(), NodeKind.SWITCH, line)
            self._sketch.wire(nic, network, link, line)
            self._sketch.note("NICs: hwloc gives no speed, priors were taken, and one switch for each kind of network")
        if width_Bps is None and devices:
            self._sketch.note(PCIE_NOTE)

    def finish(self) -> None:
        """CPUs are places for ranks only where there is no accelerator."""
        for local, numa, line in [] if self._accelerators else self._cpus:
            name = self._sketch.node(f"{self._host}/{local}", NodeKind.DEVICE, line, DeviceKind.CPU, numa=numa)
            self._sketch.wire(name, numa or self._hub(), LinkKind.MEMORY, line)
            self._sketch.note("memory: no bandwidth is given, the prior was taken")


def _pci_Bps(element: Element) -> float | None:
    """hwloc gives the speed of a link in GB/s."""
    try:
        speed = float(element.get("pci_link_speed"))
    except ValueError:
        return None
    return speed * 1e9 if 0 < speed < 1e4 else None
