"""hccl-py simulate, and plan with the same arguments: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hccl_py.cli.main import main

STAR = """
version: 1
name: star
host_types:
  one:
    devices: {cpu0: {kind: cpu}}
    nics: {eth0: }
    links:
      - {between: [cpu0, eth0], kind: pcie, bandwidth: 10GB/s, latency: 0us}
hosts:
  h[0-3]: {type: one}
switches: {switch: }
links:
  - {between: ["h[0-2]/eth0", switch], kind: ethernet, bandwidth: 1Gbit/s, latency: 10us}
  - {between: [h3/eth0, switch], kind: ethernet, bandwidth: 200Mbit/s, latency: 10us}
"""


@pytest.fixture
def star(tmp_path: Path) -> str:
    file = tmp_path / "star.yaml"
    file.write_text(STAR, encoding="utf-8")
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Standard output of a run that succeeds."""
    try:
        main(words)
    except SystemExit as end:
        assert end.code in (0, None), capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Standard error of a run that is refused."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_table(capsys: pytest.CaptureFixture[str], star: str) -> None:
    text = run(capsys, "simulate", star, "--size", "16M", "--compare", "ring,tree")
    lines = text.splitlines()
    assert lines[0] == "all_reduce, 4 ranks on 4 host(s), blocks of 16MiB"
    ring = next(line for line in lines if " ring " in line)
    # 6 rounds of 4 MiB through 25 MB/s, each way at once
    assert "1.007s" in ring and "h3/eth0" in ring and "100%" in ring
    assert any(" tree " in line for line in lines) and not any(" direct " in line for line in lines)
    assert lines[-1].startswith("lower bound of the graph: 670.9ms")
    assert sum(line.startswith("->") for line in lines) == 1


def test_all_algorithms_by_default(capsys: pytest.CaptureFixture[str], star: str) -> None:
    text = run(capsys, "simulate", star, "--size", "64K")
    assert {"ring", "tree", "direct", "halving_doubling"} <= set(text.split())


def test_json(capsys: pytest.CaptureFixture[str], star: str) -> None:
    found = json.loads(run(capsys, "simulate", star, "--compare", "ring", "--size", "4M", "--json"))
    assert (found["collective"], found["ranks"], found["bytes_per_block"]) == ("all_reduce", 4, 4 * 1024 * 1024)
    ring = next(plan for plan in found["plans"] if plan["plan"] == "ring")
    assert ring["lower_bound_s"] < ring["simulated_s"]
    assert ring["busbw_Bps"] == pytest.approx(1.5 * ring["algbw_Bps"])
    assert ring["links"]["h3/eth0 -> switch"]["utilisation"] == pytest.approx(1.0, abs=0.01)
    assert sum(plan["chosen"] for plan in found["plans"]) == 1


def test_options_change_what_is_simulated(capsys: pytest.CaptureFixture[str], star: str) -> None:
    def only(*words: str) -> float:
        found = json.loads(run(capsys, "simulate", star, "--json", "--compare", "direct", *words))
        return float(next(p["simulated_s"] for p in found["plans"] if p["plan"].startswith("direct")))

    base = only("--collective", "broadcast", "--size", "4M")
    assert only("--collective", "broadcast", "--size", "8M") == pytest.approx(2 * base, rel=0.01)
    assert only("--collective", "broadcast", "--size", "4M", "--ranks", "3") < 0.5 * base  # without the slow host
    assert only("--collective", "broadcast", "--size", "4M", "--root", "3") > 1.2 * base


def test_pictures_and_traces(capsys: pytest.CaptureFixture[str], star: str, tmp_path: Path) -> None:
    for plot in ("star.png", "star.svg"):
        run(capsys, "simulate", star, "--compare", "ring", "--plot", str(tmp_path / plot), "--size", "1M")
    assert (tmp_path / "star.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "star.svg").read_text("utf-8")
    assert "<svg" in svg and "ring" in svg
    run(capsys, "simulate", star, "--compare", "ring", "--trace", str(tmp_path / "t.json"), "--size", "1M")
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    ring = [e["pid"] for e in events if e["ph"] == "M" and str(e["args"]["name"]).startswith("ring, rank")]
    bars = [e for e in events if e["ph"] == "X" and e["pid"] in ring]
    assert len(bars) == 4 * 6  # messages of the ring
    assert {e["args"]["bytes"] for e in bars} == {256 * 1024}
    assert all(e["dur"] > 0 and e["args"]["arrived_us"] > e["ts"] + e["dur"] for e in bars)


def test_plan_takes_the_same_arguments(capsys: pytest.CaptureFixture[str], star: str, tmp_path: Path) -> None:
    text = run(capsys, "plan", star, "--size", "1M", "--compare", "ring", "--plot", str(tmp_path / "p.png"))
    assert "chosen by size" in text and "simulated" in text and "busiest link" in text
    assert (tmp_path / "p.png").exists()
    alone = json.loads(run(capsys, "plan", star, "--size", "1M", "--compare", "ring", "--json"))
    assert alone == json.loads(run(capsys, "simulate", star, "--size", "1M", "--compare", "ring", "--json"))


def test_what_is_refused(capsys: pytest.CaptureFixture[str], star: str, tmp_path: Path) -> None:
    assert "did you mean 'all_reduce'" in refused(capsys, "simulate", star, "--collective", "all_reduc")
    assert "there is no algorithm 'rings'" in refused(capsys, "simulate", star, "--compare", "rings")
    assert "--root 4: the cluster has ranks 0 to 3" in refused(capsys, "simulate", star, "--root", "4")
    assert "a picture ends in one of .png" in refused(capsys, "simulate", star, "--plot", "x.jpeg")
    missing = str(tmp_path / "none" / "x.json")
    assert "No such file" in refused(capsys, "simulate", star, "--compare", "ring", "--trace", missing)
    missing = str(tmp_path / "none" / "x.png")
    assert "No such file" in refused(capsys, "simulate", star, "--compare", "ring", "--plot", missing)
