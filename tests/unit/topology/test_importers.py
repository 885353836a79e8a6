"""Importers: what each format becomes, what is assumed is said, malformed files are one error with file and line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import parse_cluster
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import DeviceKind, LinkKind, Topology
from hccl_py.topology.importers.formats import FORMATS, convert, guess
from hccl_py.topology.placement import Placement

NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:19:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:08:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:1a:00.0" class="0x020700" vendor="0x15b3" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" latency="0.000000" speed="400000" port="1" guid="0x5000" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="00000000,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:9a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:07:00.0" count="10" tclass="0x068000"/>
        <nvlink target="0000:08:00.0" count="8" tclass="0x068000"/>
      </gpu>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="10000" port="0"/>
    </nic>
  </cpu>
</system>
"""
SMI = (
    "\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV2\tSYS\tSYS\tPXB\t0-15\t0\t\tN/A\n"
    "GPU1\tNV2\t X \tSYS\tSYS\tPXB\t0-15\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNV2\tSYS\t16-31\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNV2\t X \tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_3\n"
)
IB = """\
#
# Topology file: generated on Mon Jan  1 00:00:00 2024
#
vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8599f0300a1b200
switchguid=0xb8599f0300a1b200(b8599f0300a1b200)
Switch\t41 "S-b8599f0300a1b200"\t\t# "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-0c42a10300000001"[1](c42a10300000001) \t\t# "node01 mlx5_0" lid 11 4xHDR
[2]\t"H-0c42a10300000002"[1](c42a10300000002) \t\t# "node02 mlx5_0" lid 12 4xEDR
[21]\t"S-b8599f0300a1b300"[1]\t\t# "MF0;spine1:MQM8700/U1" lid 2 4xHDR
[22]\t"S-b8599f0300a1b300"[2]\t\t# "MF0;spine1:MQM8700/U1" lid 2 4xHDR
[41]\t"H-b8599f0300a1b208"[1](b8599f0300a1b208) \t\t# "Mellanox Technologies Aggregation Node" lid 9 4xHDR

switchguid=0xb8599f0300a1b300(b8599f0300a1b300)
Switch\t41 "S-b8599f0300a1b300"\t\t# "MF0;spine1:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"S-b8599f0300a1b200"[21]\t\t# "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
[2]\t"S-b8599f0300a1b200"[22]\t\t# "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

caguid=0xb8599f0300a1b208
Ca\t1 "H-b8599f0300a1b208"\t\t# "Mellanox Technologies Aggregation Node"
[1](b8599f0300a1b208) \t"S-b8599f0300a1b200"[41]\t\t# lid 9 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

caguid=0xc42a10300000001
Ca\t1 "H-0c42a10300000001"\t\t# "node01 mlx5_0"
[1](c42a10300000001) \t"S-b8599f0300a1b200"[1]\t\t# lid 11 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

caguid=0xc42a10300000002
Ca\t1 "H-0c42a10300000002"\t\t# "node02 mlx5_0"
[1](c42a10300000002) \t"S-b8599f0300a1b200"[2]\t\t# lid 12 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xEDR
"""
SLURM = """\
# the cluster's switches
SwitchName=s0 Nodes=tux[0-1],lux7   # a leaf
SwitchName=s1 nodes=tux[2-5] LinkSpeed=100
switchname=top Switches=s[0-1]
"""
HWLOC = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" gp_index="1">
    <info name="HostName" value="box"/>
    <object type="Package" os_index="0">
      <object type="NUMANode" os_index="0" local_memory="67430883328"/>
      <object type="Core" os_index="0">
        <object type="PU" os_index="0"/><object type="PU" os_index="1"/>
      </object>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-17]">
        <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[01-05]" pci_link_speed="31.507692">
          <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0302 [10de:20b0]" pci_link_speed="31.5">
            <object type="OSDev" name="cuda0" osdev_type="5"/>
          </object>
          <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0207 [15b3:101b]" pci_link_speed="15.75">
            <object type="OSDev" name="ib0" osdev_type="2"/>
            <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1">
      <object type="NUMANode" os_index="1" local_memory="67430883328"/>
      <object type="PU" os_index="2"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[80-81]">
        <object type="PCIDev" pci_busid="0000:81:00.0" pci_type="0200 [8086:1572]" pci_link_speed="7.876923">
          <object type="OSDev" name="eno1" osdev_type="Network"/>
        </object>
      </object>
    </object>
  </object>
</topology>
"""
SAMPLES = {"nccl": NCCL, "nvidia-smi": SMI, "ibnetdiscover": IB, "slurm": SLURM, "hwloc": HWLOC}


def read(form: str, old: str = "", new: str = "") -> Topology:
    text = SAMPLES[form]
    assert old in text
    return convert(text.replace(old, new, 1).encode(), "in.txt", form)[0]


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_recognised_and_becomes_a_valid_cluster_file(form: str) -> None:
    assert guess(SAMPLES[form]) == form
    topology, notes = convert(SAMPLES[form].encode(), "in.txt")
    assert notes
    placement = Placement.by_host(topology)
    config = parse_cluster(dump_topology(topology, placement))
    assert (config.topology, config.placement) == (topology, placement)


def test_nccl() -> None:
    topology = read("nccl")
    assert topology.devices() == ("localhost/gpu0", "localhost/gpu1")
    gpu = topology.node("localhost/gpu0")
    assert (gpu.device, gpu.numa, gpu.pci) == (DeviceKind.GPU, "localhost/numa0", "0000:19:00.0")
    assert topology.link("localhost/gpu0", "localhost/nvswitch").bandwidth_Bps == 450e9
    assert topology.link("localhost/gpu0", "localhost/pcie0").bandwidth_Bps == pytest.approx(63.015e9, rel=1e-3)
    assert topology.link("localhost/mlx5_0", "network").bandwidth_Bps == 50e9
    assert topology.link("localhost/mlx5_0", "network").kind is LinkKind.INFINIBAND
    assert topology.link("localhost/eth0", "network").kind is LinkKind.ETHERNET
    assert [e.dst for e in topology.links_from("localhost/pcie0")] == [
        "localhost/gpu0", "localhost/mlx5_0", "localhost/numa0",
    ]  # fmt: skip
    assert {e.dst for e in topology.path("localhost/gpu0", "localhost/gpu1")} == {
        "localhost/nvswitch",
        "localhost/gpu1",
    }
    direct = 'target="0000:9A:00.0" count="4" tclass="0x030200"'
    meshed = read("nccl", 'target="0000:07:00.0" count="10" tclass="0x068000"', direct)
    assert meshed.link("localhost/gpu1", "localhost/gpu0").bandwidth_Bps == 100e9


def test_nvidia_smi() -> None:
    topology = read("nvidia-smi")
    assert len(topology.devices()) == 4
    assert topology.node("localhost/gpu2").numa == "localhost/numa1"
    assert topology.node("localhost/mlx5_3").interface == "mlx5_3"
    assert topology.node("localhost/mlx5_3").numa == "localhost/numa0"
    assert topology.link("localhost/gpu0", "localhost/gpu1").bandwidth_Bps == 50e9
    assert {e.dst for e in topology.links_from("localhost/pcie0")} == {
        "localhost/gpu0", "localhost/gpu1", "localhost/mlx5_3", "localhost/numa0",
    }  # fmt: skip
    assert [e.dst for e in topology.links_from("localhost/gpu2")] == ["localhost/gpu3", "localhost/numa1"]


def test_nvidia_smi_with_nvswitch() -> None:
    names = [f"GPU{i}" for i in range(4)]
    rows = [f"{a}\t" + "\t".join("X" if a == b else "NV18" for b in names) + "\t0-9\t0" for a in names]
    text = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\n" + "\n".join(rows)
    topology, _ = convert(text.encode(), "smi.txt", host="dgx")
    assert topology.link("dgx/gpu3", "dgx/nvswitch").bandwidth_Bps == 450e9


def test_ibnetdiscover() -> None:
    topology = read("ibnetdiscover")
    assert topology.hosts() == ("node01", "node02")
    assert topology.link("node01/mlx5_0", "leaf1").bandwidth_Bps == 25e9
    assert topology.link("leaf1", "node02/mlx5_0").bandwidth_Bps == 12.5e9
    assert topology.link("leaf1", "spine1").bandwidth_Bps == 50e9  # two parallel wires
    _, notes = convert(IB.encode(), "ib.txt")
    assert any("Aggregation Node" in note for note in notes)


def test_slurm() -> None:
    topology = read("slurm")
    assert topology.hosts() == ("lux7", "tux0", "tux1", "tux2", "tux3", "tux4", "tux5")
    assert {e.dst for e in topology.links_from("s0")} == {"lux7/nic0", "tux0/nic0", "tux1/nic0", "top"}
    assert [e.dst for e in topology.path("tux0/cpu0", "tux5/cpu0")][2:5] == ["s0", "top", "s1"]


def test_hwloc() -> None:
    topology = read("hwloc")
    assert topology.devices() == ("box/gpu0",)
    assert topology.node("box/gpu0").numa == "box/numa0"
    assert topology.link("box/gpu0", "box/pcie0").bandwidth_Bps == 31.5e9
    assert topology.link("box/mlx5_0", "box/pcie0").bandwidth_Bps == 15.75e9
    assert topology.nics() == ("box/eno1", "box/mlx5_0")
    assert topology.link("box/eno1", "ethernet").kind is LinkKind.ETHERNET
    without = read("hwloc", "0302 [10de", "0108 [144d")
    assert without.devices() == ("box/cpu0", "box/cpu1", "box/cpu2")
    assert without.node("box/cpu2").numa == "box/numa1"


BAD = [
    ("nccl", "<system", "<sistem", r"in.txt:28: not XML: mismatched tag"),
    ("nccl", 'count="10"', 'count="x"', r"in.txt:6: count='x'"),
    (
        "hwloc",
        "<!DOCTYPE topology SYSTEM",
        '<!DOCTYPE topology [<!ENTITY a "b">]><!--',
        r"in.txt:2: entities are not read",
    ),
    ("hwloc", 'type="Machine"', 'type="Machina"', r"in.txt:3: a hwloc topology is"),
    ("nvidia-smi", "NV2", "NW2", r"in.txt:2: GPU0: 5 of X, SYS"),
    ("nvidia-smi", "GPU3\tSYS", "GPX3\tSYS", r"in.txt:1: GPU3 has a column, but no row"),
    ("ibnetdiscover", "4xHDR", "4xHDX", r"in.txt:9: 'HDX' is no speed of InfiniBand"),
    ("ibnetdiscover", '[2]\t"H', "[2]\tH", r"in.txt:10: not a port"),
    ("slurm", "Nodes=", "Node=", r"in.txt:2: 'Node=tux\[0-1\],lux7'; did you mean 'Nodes'\?"),
    ("slurm", "SwitchName=s1", "SwitchName=s0", r"in.txt:3: switch 's0' is there twice"),
    ("slurm", "s[0-1]", "s[0-2]", r"in.txt:4: there is no switch 's2'"),
    ("slurm", "tux[0-1]", "tux[1-0]", r"in.txt:2: .*runs backward"),
    ("slurm", "SwitchName=s0", "BlockName=b0", r"in.txt:2: BlockName: topology/block is not read"),
    ("slurm", "tux[0-1]", "tux[0-65000],x[0-65000]", r"in.txt:2: more than 65536 names"),
]


@pytest.mark.parametrize(("form", "old", "new", "says"), BAD, ids=[says for *_, says in BAD])
def test_malformed_files_are_one_error_with_file_and_line(form: str, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(form, old, new)


def test_what_is_nothing_of_all_that() -> None:
    with pytest.raises(ConfigError, match=r"x:1: looks like none of nccl, .*: say which with --from"):
        convert(b"hello", "x")
    with pytest.raises(ConfigError, match=r"x:2: not UTF-8 \(byte 0xff\)"):
        convert(b"a\n\xff", "x")
    with pytest.raises(ConfigError, match="x:1: no line names the columns GPU0"):
        convert(b"hello", "x", "nvidia-smi")
    with pytest.raises(ConfigError, match="'xml' is none of nccl"):
        convert(b"a", "x", "xml")
    with pytest.raises(ConfigError, match="more than 200 deep"):
        convert(b"<system>" + b"<pci>" * 300, "x")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMATS), st.integers(0, 5000), st.integers(0, 60), st.text("<>/=\"'[]#x0 \n\tSH-", max_size=6))
def test_a_damaged_file_is_a_graph_or_one_error(form: str, at: int, length: int, new: str) -> None:
    text = SAMPLES[form]
    at %= len(text)
    try:
        convert((text[:at] + new + text[at + length :]).encode(), "f", form)
    except ConfigError as error:
        assert str(error).startswith("f:")
