"""``hccl-py topo``: what it prints, and how it refuses."""

from __future__ import annotations

import json
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


def test_schema_is_printed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    text = run("schema")
    assert json.loads(text)["properties"]["version"] == {"const": 1}
    assert run("schema", "-o", str(file)) == f"written: {file}\n"
    assert file.read_text() == text


def test_convert_prints_or_writes_a_cluster_file(tmp_path: Path) -> None:
    source, file = tmp_path / "topology.conf", tmp_path / "c.yaml"
    source.write_text("SwitchName=s Nodes=n[0-3]\n")
    text = run("convert", str(source))
    assert text.startswith(
        "# Converted from topology.conf.\n# links: no speed is given, 100 Gbit/s InfiniBand was assumed"
    )
    assert "written" in run("convert", str(source), "--from", "slurm", "-o", str(file))
    assert file.read_text() == text
    assert load_cluster(file).placement.size == 4
    source.write_text("GPU0\nGPU0 X\n".replace(" ", "\t"))
    assert "  box:" in run("convert", str(source), "--host", "box")
    with pytest.raises(ConfigError, match="cannot read"):
        run("convert", str(tmp_path / "nothing"))


def test_diff_warns_beyond_a_factor_and_updates(tmp_path: Path) -> None:
    star = (CONFIGS / "lab_star.yaml").read_text()
    declared, measured, new = tmp_path / "d.yaml", tmp_path / "m.yaml", tmp_path / "n.yaml"
    declared.write_text(star)
    measured.write_text(star + "overrides: [{between: [h1/eth0, '*'], share: 40%}]\n")
    result = CliRunner().invoke(app, ["diff", str(declared), str(measured), "--update", str(new)])
    assert result.exit_code == 1
    assert "warning: link h1/eth0 -> " in result.output and "50MB/s measured: 2.5x apart" in result.output
    assert load_cluster(new).topology == load_cluster(measured).topology
    assert "0 more than 3x apart" in run("diff", str(declared), str(measured), "--factor", "3")
    assert "0 more than 2x apart" in run("diff", str(new), str(measured))


def test_discover_by_hwloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="lstopo is not installed: install hwloc"):
            run("discover", "--hwloc")
        program = tmp_path / "lstopo"
        machine = '<object type="Machine"><object type="PU" os_index="0"/></object>'
        program.write_text(f"#!/bin/sh\necho '<topology version=\"2.0\">{machine}</topology>'\n")
        program.chmod(0o755)
        assert "  localhost:\n    devices:\n      cpu0: {kind: cpu}" in run("discover", "--hwloc")
        program.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
        with pytest.raises(ConfigError, match="failed: broken"):
            run("discover", "--hwloc")
