"""The shipped cluster files are read, are what their names say, and their README is right about the schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hccl_py.topology.config import load_cluster, parse_cluster
from hccl_py.topology.graph import LinkKind
from hccl_py.topology.schema import ClusterFile, DeviceEntry, HostBody, LinkEntry, NicEntry, NumaEntry

CONFIGS = Path(__file__).parents[3] / "cluster_configs"
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


def test_readme_names_every_file_and_every_key() -> None:
    text = (CONFIGS / "README.md").read_text()
    for path in FILES.values():
        assert f"`{path.name}`" in text
    for model in (ClusterFile, HostBody, NumaEntry, DeviceEntry, NicEntry, LinkEntry):
        for name, field in model.model_fields.items():
            assert f"`{field.alias or name}`" in text, (model.__name__, name)


def test_readme_examples_are_valid() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (CONFIGS / "README.md").read_text(), re.DOTALL)
    assert examples
    for example in examples:
        assert parse_cluster(example, "README.md").placement.size > 1
