"""NCCL's topology dump (NCCL_TOPO_DUMP_FILE): one host as a tree of cpu, pci, gpu, nic and net elements."""

from __future__ import annotations

from hccl_py.topology.graph import DeviceKind, LinkKind, NodeKind, Topology
from hccl_py.topology.importers.importer import NVLINK_BPS, Sketch, local_word
from hccl_py.topology.importers.xml import Element, parse_xml
from hccl_py.topology.probes.sysfs import pcie_lanes_Bps

_NVSWITCH_CLASS = "0x0680"
_GENERATION = ((60, 1), (70, 2), (80, 3), (90, 4), (100, 5))  # lowest compute capability x 10 with that NVLink


def read_nccl_xml(text: str, file: str, host: str) -> tuple[Topology, list[str]]:
    """The host, and notes on what was assumed.

    Raises:
        ConfigError: not such a file; says file:line.
    """
    root = parse_xml(text, file)
    sketch = Sketch(file)
    if root.tag != "system":
        raise sketch.error(root.line, f"a NCCL topology begins with <system>, found <{root.tag}>")
    reader = _Reader(sketch, sketch.host(host, root.line))
    for cpu in root.named("cpu"):
        reader.cpu(cpu)
    reader.nvlinks()
    return sketch.topology(), sketch.notes


class _Reader:
    def __init__(self, sketch: Sketch, host: str) -> None:
        self._sketch = sketch
        self._host = host
        self._numas: list[str] = []
        self._gpus: dict[str, tuple[str, Element]] = {}  # PCI address -> name, element
        self._switches = 0

    def cpu(self, cpu: Element) -> None:
        number = cpu.get("numaid", "0")
        numa = f"{self._host}/numa{number if number.isdigit() else len(self._numas)}"
        self._sketch.node(numa, NodeKind.NUMA, cpu.line)
        for other in self._numas:
            self._sketch.wire(numa, other, LinkKind.SOCKET, cpu.line)
        self._numas.append(numa)
        self._children(cpu, numa, numa, None)

    def _children(self, parent: Element, at: str, numa: str, pci: Element | None) -> None:
        for child in parent.children:
            if child.tag == "pci":
                self._pci(child, at, numa)
            elif child.tag == "nic":
                for net in child.named("net"):
                    self._net(net, at, numa, pci)

    def _pci(self, pci: Element, at: str, numa: str) -> None:
        width_Bps = _pci_Bps(pci)
        if width_Bps is None:
            self._sketch.note("PCIe: where no speed is given, the prior of PCIe 4.0 x16 was taken")
        gpus = list(pci.named("gpu"))
        for gpu in gpus:
            name = f"{self._host}/gpu{gpu.get('dev') or len(self._gpus)}"
            values = {"numa": numa, "pci": pci.get("busid")}
            self._sketch.node(name, NodeKind.DEVICE, gpu.line, DeviceKind.GPU, **values)
            self._sketch.wire(name, at, LinkKind.PCIE, pci.line, width_Bps)
            self._gpus[pci.get("busid").lower()] = (name, gpu)
        if any(child.tag == "pci" for child in pci.children):  # a bridge: a switch with devices below it
            switch = f"{self._host}/pcie{self._switches}"
            self._switches += 1
            self._sketch.node(switch, NodeKind.SWITCH, pci.line)
            self._sketch.wire(switch, at, LinkKind.PCIE, pci.line, width_Bps)
            at = switch
        self._children(pci, at, numa, pci)

    def _net(self, net: Element, at: str, numa: str, pci: Element | None) -> None:
        interface = net.get("name", f"net{net.get('dev')}")
        nic = f"{self._host}/{local_word(interface)}"
        address = pci.get("busid") if pci is not None else ""
        self._sketch.node(nic, NodeKind.NIC, net.line, numa=numa, interface=interface, pci=address)
        self._sketch.wire(nic, at, LinkKind.PCIE, net.line, _pci_Bps(pci) if pci is not None else None)
        kind = LinkKind.INFINIBAND if interface.startswith(("mlx", "ib", "hfi")) else LinkKind.ETHERNET
        network = self._sketch.node("network", NodeKind.SWITCH, net.line)
        speed = net.get("speed")
        self._sketch.wire(nic, network, kind, net.line, float(speed) * 1e6 / 8 if _positive(speed) else None)
        self._sketch.note(
            "the network was drawn as one switch, InfiniBand behind mlx, ib and hfi devices, else Ethernet"
        )

    def nvlinks(self) -> None:
        done: set[frozenset[str]] = set()
        for address, (name, gpu) in self._gpus.items():
            for link in gpu.named("nvlink"):
                count, sm = link.get("count", "1"), gpu.get("sm", "80")
                if not (count.isdigit() and sm.isdigit() and int(count) > 0):
                    raise self._sketch.error(link.line, f"count={count!r} sm={sm!r}: numbers were expected")
                width_Bps = int(count) * NVLINK_BPS[max(n for low, n in _GENERATION if int(sm) >= low or n == 1)]
                target = link.get("target").lower()
                if link.get("tclass").startswith(_NVSWITCH_CLASS):
                    switch = self._sketch.node(f"{self._host}/nvswitch", NodeKind.SWITCH, link.line)
                    self._sketch.wire(name, switch, LinkKind.NVLINK, link.line, width_Bps)
                elif target in self._gpus:
                    pair = frozenset((address, target))
                    if pair not in done:  # each end names the same wires
                        self._sketch.wire(name, self._gpus[target][0], LinkKind.NVLINK, link.line, width_Bps)
                    done.add(pair)
                else:
                    self._sketch.note(f"{name}: an NVLink to {target or 'an unnamed target'} was left out")


def _pci_Bps(pci: Element) -> float | None:
    speed, width = pci.get("link_speed").split(" ")[0], pci.get("link_width")
    return pcie_lanes_Bps(float(speed), int(width)) if _positive(speed) and width.isdigit() else None


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < 1e9
    except ValueError:
        return False
