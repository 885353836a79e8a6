"""``hccl-py topo``: what it prints, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hccl_py.cli.topo import app
from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import load_cluster
from hccl_py.topology.discovery import builtin_probes, discover

CONFIGS = Path(__file__).parents[3] / "cluster_configs"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_the_tree_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    text = run("show", str(CONFIGS / "two_hosts_ethernet.yaml"), "--picture", str(picture))
    assert text.startswith("two hosts, 10 Gbit/s Ethernet  2 hosts, 8 devices")
    assert "node[0-1]/eth0 <-> switch  ethernet  1.25GB/s  10us  x 2" in text
    assert f"picture: {picture}" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_show_without_picture_draws_none(tmp_path: Path) -> None:
    assert "picture" not in run("show", str(CONFIGS / "single_host_4cpu.yaml"))


def test_show_takes_the_file_name_where_there_is_no_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("version: 1\nhosts:\n  h:\n    devices: {d: {kind: cpu}}\n")
    assert run("show", str(file)).startswith("mine.yaml  1 host, 1 device")


def test_discover_writes_a_file_that_validates(tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    text = run("discover", "-o", str(file))
    assert f"written: {file}" in text and "note: " in text
    assert load_cluster(file).topology == discover(builtin_probes())
    assert run("validate", str(file)).startswith(f"{file}: valid: ")


def test_discover_prints_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    run("discover", "--output", str(file))
    assert run("discover") == file.read_text()


def test_validate_counts() -> None:
    text = run("validate", str(CONFIGS / "two_nodes_8gpu_ib.yaml"))
    assert "valid: 16 ranks; 2 hosts, 16 devices, 16 NICs, 19 switches, 164 directed links; digest" in text


@pytest.mark.parametrize("command", ["show", "validate"])
def test_mistakes_come_out_as_config_errors(tmp_path: Path, command: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("version: 1\nhots:\n")
    with pytest.raises(ConfigError, match=r"bad.yaml:2: hots: unknown key; did you mean 'hosts'\?"):
        run(command, str(file))


def test_discover_refuses_a_file_that_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write: No such file or directory"):
        run("discover", "-o", str(tmp_path / "nowhere" / "x.yaml"))
