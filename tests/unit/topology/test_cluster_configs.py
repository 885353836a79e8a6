"""The shipped cluster files are read, are what their names say, and their README is right about the schema."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from hccl_py.topology.config import load_cluster, parse_cluster
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.fabrics.kinds import KINDS
from hccl_py.topology.graph import LinkKind
from hccl_py.topology.policy import AlgorithmEntry, PolicyEntry
from hccl_py.topology.schema import (
    ClusterFile,
    DeviceEntry,
    HostBody,
    LinkEntry,
    NicEntry,
    NumaEntry,
    OverrideEntry,
)

CONFIGS = Path(__file__).parents[3] / "cluster_configs"
PAGE = CONFIGS.parent / "docs" / "TOPOLOGY.md"
FILES = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_read_and_states_its_sources(name: str) -> None:
    config = load_cluster(FILES[name])
    assert config.name
    config.placement.check(config.topology)
    assert re.search(r"^# Figures", FILES[name].read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("single_host_4cpu", ((0, 1, 2, 3),)),
        ("two_hosts_ethernet", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("one_node_8gpu_nvswitch", (tuple(range(8)),)),
        ("two_nodes_8gpu_ib", (tuple(range(8)), tuple(range(8, 16)))),
        ("four_hosts_uneven", ((0, 4), (1, 5), (2,), (3,))),
    ],
)
def test_ranks_are_where_the_name_says(name: str, groups: tuple[tuple[int, ...], ...]) -> None:
    config = load_cluster(FILES[name])
    assert config.placement.groups(config.topology) == groups


def test_gpus_talk_by_nvlink_inside_and_by_their_own_nic_outside() -> None:
    config = load_cluster(FILES["two_nodes_8gpu_ib"])
    topology, placement = config.topology, config.placement
    assert {link.kind for link in placement.path(0, 7, topology)} == {LinkKind.NVLINK}
    outside = placement.path(3, 12, topology)
    assert [link.dst for link in outside] == [
        "node0/pcie3", "node0/nic3", "quantum", "node1/nic4", "node1/pcie4", "node1/gpu4",
    ]  # fmt: skip
    assert topology.node("node0/nic3").interface == "mlx5_5"
    assert topology.bottleneck_Bps(outside) == 50e9


def test_readme_names_every_file_and_the_page_every_key() -> None:
    text = (CONFIGS / "README.md").read_text()
    for path in FILES.values():
        assert f"`{path.name}`" in text
    page = PAGE.read_text()
    models = (
        ClusterFile,
        HostBody,
        NumaEntry,
        DeviceEntry,
        NicEntry,
        LinkEntry,
        OverrideEntry,
        PolicyEntry,
        AlgorithmEntry,
    )
    for model in (*models, *KINDS):
        for name, field in model.model_fields.items():
            assert re.search(rf"`{field.alias or name}[`:]", page), (model.__name__, name)


def test_examples_of_the_page_are_valid() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert parse_cluster(example, "TOPOLOGY.md").placement.size > 1


def test_figures_of_the_shipped_files() -> None:
    def width_Bps(name: str, src: int, dst: int) -> float:
        config = load_cluster(FILES[name])
        return config.topology.bottleneck_Bps(config.placement.path(src, dst, config.topology))

    assert width_Bps("gpu1024_rail_optimised", 0, 1023) == 50e9
    assert width_Bps("gpu1024_fat_tree_2to1_slow_rail", 3, 1019) == 25e9
    assert width_Bps("npu16_full_mesh_roce", 0, 7) == 28e9
    assert width_Bps("pcie_two_sockets", 0, 4) == 12.5e9
    assert width_Bps("two_desktops", 0, 1) == 1.25e9
    assert width_Bps("wan_three_sites", 0, 23) == 1.25e9
    topology = load_cluster(FILES["gpu1024_fat_tree_2to1"]).topology
    assert topology.link("ib-leaf31", "ib-spine").bandwidth_Bps == 800e9
    full = load_cluster(FILES["gpu1024_rail_optimised"]).topology
    assert full.link("ib-rail7-leaf3", "ib-spine").bandwidth_Bps == 1600e9


def test_a_thousand_devices_are_read_and_written_fast() -> None:
    """2 s is wanted; ten times the usual 0.2 s, so that a loaded machine does not matter."""
    before = time.process_time()
    config = load_cluster(FILES["gpu1024_rail_optimised"])
    text = dump_topology(config.topology, config.placement)
    again = parse_cluster(text)
    assert time.process_time() - before < 4.0
    assert (again.topology, again.placement) == (config.topology, config.placement)
    assert len(text.splitlines()) < 400
