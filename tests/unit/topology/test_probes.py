"""Discovery from fixtures of sysfs: what is found, what is left out and why. No real hardware is looked at but once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hccl_py.core.errors import TopologyError
from hccl_py.topology.config import parse_cluster
from hccl_py.topology.discovery import builtin_probes, discover, survey
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import DeviceKind, LinkKind, Node, NodeKind
from hccl_py.topology.priors import ETHERNET, PCIE
from hccl_py.topology.probes.accelerators import AcceleratorProbe
from hccl_py.topology.probes.cpus import CpuProbe
from hccl_py.topology.probes.nics import NicProbe
from hccl_py.topology.probes.nvml import NvmlProbe
from hccl_py.topology.probes.probe import Found
from hccl_py.topology.probes.sysfs import cpu_list


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def numa(root: Path, number: int, cpus: str) -> None:
    put(root, f"sys/devices/system/node/node{number}/cpulist", cpus)


def pci(root: Path, address: str, **files: str) -> Path:
    """A PCI device behind a port of 16 GT/s x 16, with its entry in the bus's list."""
    port = "sys/devices/pci0000:00/0000:00:01.0"
    put(root, f"{port}/max_link_speed", "16.0 GT/s PCIe")
    put(root, f"{port}/max_link_width", "16")
    for name, text in files.items():
        put(root, f"{port}/{address}/{name}", text)
    folder = root / port / address
    folder.mkdir(parents=True, exist_ok=True)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(folder)
    return folder


def nic(root: Path, name: str, device: Path | None = None, **files: str) -> Path:
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    for file, text in {"type": "1", "flags": "0x1003", "operstate": "up", "speed": "10000", **files}.items():
        (folder / file).write_text(text + "\n")
    if device is not None:
        (folder / "device").symlink_to(device)
    return folder


def test_cpu_probe_makes_a_device_of_each_usable_cpu(tmp_path: Path) -> None:
    numa(tmp_path, 0, "0-3")
    numa(tmp_path, 1, "4-7")
    numa(tmp_path, 2, "")  # memory only
    topology = discover([CpuProbe(tmp_path, affinity={1, 2, 5})], "box")
    assert topology.devices() == ("box/cpu1", "box/cpu2", "box/cpu5")
    assert topology.node("box/cpu5").numa == "box/numa1"
    assert topology.node("box/numa0").cpus == 4
    assert topology.link("box/numa0", "box/numa1").kind is LinkKind.SOCKET
    assert topology.link("box/cpu2", "box/numa0").kind is LinkKind.MEMORY
    assert "box/numa2" not in {node.name for node in topology.nodes}
    topology.check_connected(topology.devices())


def test_cpu_probe_without_numa_hangs_cpus_on_the_host(tmp_path: Path) -> None:
    topology = discover([CpuProbe(tmp_path, affinity={0, 1})], "box")
    assert [link.dst for link in topology.path("box/cpu0", "box/cpu1")] == ["box", "box/cpu1"]


def test_cpu_probe_notes_a_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000")
    probe = CpuProbe(tmp_path, affinity={0, 1, 2, 3})
    assert "the cgroup's quota is 1.5 CPUs, fewer than the 4 that may be used" in survey([probe], "box").notes
    assert not any("quota" in note for note in survey([CpuProbe(tmp_path / "none", affinity={0})], "box").notes)


def test_nic_probe_finds_speed_slot_and_numa(tmp_path: Path) -> None:
    numa(tmp_path, 0, "0")
    numa(tmp_path, 1, "1")
    card = pci(tmp_path, "0000:01:00.0", numa_node="1", max_link_speed="8.0 GT/s PCIe", max_link_width="8")
    nic(tmp_path, "ens1", card, speed="25000")
    topology = discover([CpuProbe(tmp_path, {0, 1}), NicProbe(tmp_path)], "box")
    assert topology.node("box/ens1") == Node(
        "box/ens1", NodeKind.NIC, numa="box/numa1", interface="ens1", pci="0000:01:00.0"
    )
    assert topology.link("box/ens1", "ethernet").bandwidth_Bps == 25e9 / 8
    slot = topology.link("box/ens1", "box/numa1")
    assert slot.kind is LinkKind.PCIE
    assert slot.bandwidth_Bps == pytest.approx(8e9 * 8 / 8 * 128 / 130)  # of the card, not of its better port


def test_nic_probe_finds_the_slot_of_a_virtio_nic(tmp_path: Path) -> None:
    numa(tmp_path, 0, "0")
    virtio = pci(tmp_path, "0000:00:03.0", numa_node="0") / "virtio2"
    virtio.mkdir()
    nic(tmp_path, "eth0", virtio, speed="-1")
    found = survey([CpuProbe(tmp_path, {0}), NicProbe(tmp_path)], "box")
    assert found.nodes[-2].pci == "0000:00:03.0"
    assert "eth0: its speed is unknown, took 10 Gbit/s" in found.notes
    assert ETHERNET.bandwidth_Bps in [link.bandwidth_Bps for link in found.links]


def test_nic_probe_leaves_out_what_leads_nowhere(tmp_path: Path) -> None:
    nic(tmp_path, "lo", type="772", flags="0x9", operstate="unknown")
    nic(tmp_path, "eth0")
    nic(tmp_path, "eth1", operstate="down")
    nic(tmp_path, "eth2", operstate="")
    (nic(tmp_path, "docker0") / "bridge").mkdir()
    (nic(tmp_path, "veth1") / "master").symlink_to(tmp_path / "sys/class/net/docker0")
    nic(tmp_path, "wg0", type="65534", operstate="unknown")
    nic(tmp_path, "tap0", operstate="unknown")
    put(tmp_path, "sys/class/net/bonding_masters", "bond0")
    found = survey([NicProbe(tmp_path)], "box")
    assert [node.interface for node in found.nodes if node.kind is NodeKind.NIC] == ["eth0", "tap0"]
    assert found.notes == (
        "docker0 left out: it is a bridge",
        "eth1 left out: its operstate is down",
        "eth2 left out: its operstate is unreadable",
        "veth1 left out: it is a port of docker0",
        "wg0 left out: it is not Ethernet",
    )


def test_a_virtual_nic_is_not_held_back_by_a_slot_that_it_has_not(tmp_path: Path) -> None:
    nic(tmp_path, "eth0", speed="800000")
    topology = discover([NicProbe(tmp_path)], "box")
    assert topology.link("box", "box/eth0").bandwidth_Bps == 100e9


def test_nic_probe_takes_rdma_devices_and_not_their_interface_again(tmp_path: Path) -> None:
    for index, (layer, state) in enumerate(
        [("InfiniBand", "4: ACTIVE"), ("Ethernet", "4: ACTIVE"), ("Ethernet", "1: DOWN")]
    ):
        card = pci(tmp_path, f"0000:0{index + 1}:00.0", numa_node="-1")
        put(card, f"net/ib{index}/x", "")
        rdma = f"sys/class/infiniband/mlx5_{index}"
        put(tmp_path, f"{rdma}/ports/1/state", state)
        put(tmp_path, f"{rdma}/ports/1/rate", "400 Gb/sec (4X NDR)" if index == 0 else "rubbish")
        put(tmp_path, f"{rdma}/ports/1/link_layer", layer)
        (tmp_path / rdma / "device").symlink_to(card)
        nic(tmp_path, f"ib{index}", card)
    found = survey([NicProbe(tmp_path)], "box")
    topology = discover([NicProbe(tmp_path)], "box")
    assert topology.nics() == ("box/mlx5_0", "box/mlx5_1")
    wire = topology.link("box/mlx5_0", "infiniband")
    assert (wire.kind, wire.bandwidth_Bps) == (LinkKind.INFINIBAND, 50e9)
    assert topology.link("box/mlx5_1", "ethernet").kind is LinkKind.ROCE
    assert "ib0 left out: it is the IP interface of mlx5_0" in found.notes
    assert "mlx5_1: its rate is unknown, took 100 Gbit/s" in found.notes
    assert "mlx5_2 left out: no active port" in found.notes


def test_accelerator_probe(tmp_path: Path) -> None:
    numa(tmp_path, 0, "0")
    fast = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "numa_node": "0"}
    pci(tmp_path, "0000:01:00.0", vendor="0x10de", **{"class": "0x030200"}, **fast)
    pci(tmp_path, "0000:02:00.0", vendor="0x19e5", **{"class": "0x120000"}, **fast)
    pci(tmp_path, "0000:03:00.0", vendor="0x1002", **{"class": "0x030000"})
    pci(tmp_path, "0000:04:00.0", vendor="0x1a03", **{"class": "0x030000"})  # a management chip's screen
    pci(tmp_path, "0000:05:00.0", vendor="0x10de", **{"class": "0x040300"})  # a GPU's sound
    found = survey([CpuProbe(tmp_path, {0}), AcceleratorProbe(tmp_path)], "box")
    topology = discover([CpuProbe(tmp_path, {0}), AcceleratorProbe(tmp_path)], "box")
    devices = {name: topology.node(name).device for name in topology.devices() if "cpu" not in name}
    assert devices == {"box/gpu0": DeviceKind.GPU, "box/gpu1": DeviceKind.GPU, "box/npu0": DeviceKind.NPU}
    assert topology.node("box/gpu0").pci == "0000:01:00.0"
    assert topology.link("box/gpu0", "box/numa0").bandwidth_Bps == pytest.approx(31.5e9, rel=0.01)  # the port's 16 GT/s
    assert any("NVLink" in note for note in found.notes)


def test_unknown_slots_take_the_prior_and_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    put(folder, "class", "0x030200")
    put(folder, "vendor", "0x10de")
    found = survey([AcceleratorProbe(tmp_path)], "box")
    assert {link.bandwidth_Bps for link in found.links} == {PCIE.bandwidth_Bps}
    assert "box/gpu0: the speed of its slot is unknown, took 31.5 GB/s" in found.notes


def test_an_empty_machine_is_a_host(tmp_path: Path) -> None:
    topology = discover([CpuProbe(tmp_path, ()), AcceleratorProbe(tmp_path), NicProbe(tmp_path)], "strange name!")
    assert [node.name for node in topology.nodes] == ["strange-name-"]


def test_a_host_called_like_a_network_is_renamed(tmp_path: Path) -> None:
    nic(tmp_path, "eth0")
    assert discover([NicProbe(tmp_path)], "ethernet").hosts() == ("ethernet-host",)


def test_contradicting_probes_are_refused() -> None:
    class Twice:
        def probe(self, host: str, so_far: Found) -> Found:
            return Found((Node(f"{host}/s", NodeKind.SWITCH),))

    assert discover([Twice()], "box").node("box/s")
    with pytest.raises(TopologyError, match="contradict each other: node 'box/s' is there twice"):
        discover([Twice(), Twice()], "box")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,5", {0, 1, 2, 5}), ("7", {7}), ("", set()), ("x,1-", {1}), ("3-1", set()), ("0-1\n", {0, 1})],
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


def test_this_machine_can_be_described_and_read_back() -> None:
    topology = discover(builtin_probes())
    assert len(topology.hosts()) == 1
    assert topology.devices()
    assert parse_cluster(dump_topology(topology)).topology == topology


class FakeNvml:
    """Two GPUs with two links to each other, the first with two more to an NVSwitch."""

    def __init__(self, fails: bool = False) -> None:
        self.open = 0
        self._fails = fails

    def nvmlInit(self) -> None:
        if self._fails:
            raise OSError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0".encode())

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link > 3:
            raise RuntimeError("Not Supported")
        return int(link < 2 or handle == 0)

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return 5 if handle == 0 and link > 1 else 3

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 0 if link < 2 else 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:0{2 - handle}:00.0")


def test_nvlinks_come_from_nvml() -> None:
    gpus = [Node(f"h/gpu{i}", NodeKind.DEVICE, device=DeviceKind.GPU, pci=f"0000:0{i + 1}:00.0") for i in range(2)]
    before = Found(nodes=(Node("h", NodeKind.HOST), *gpus))
    nvml = FakeNvml()
    found = NvmlProbe(nvml).probe("h", before)
    assert nvml.open == 0
    widths = {(link.src, link.dst): link.bandwidth_Bps for link in found.links}
    assert widths == {
        ("h/gpu0", "h/gpu1"): 50e9, ("h/gpu1", "h/gpu0"): 50e9,
        ("h/gpu0", "h/nvswitch"): 100e9, ("h/nvswitch", "h/gpu0"): 100e9,
    }  # fmt: skip
    assert [node.name for node in found.nodes] == ["h/nvswitch"]
    assert NvmlProbe(FakeNvml(fails=True)).probe("h", before).notes == (
        "NVLinks were not asked for: OSError from NVML",
    )
    assert NvmlProbe(nvml).probe("h", Found(nodes=(Node("h", NodeKind.HOST),))) == Found()
