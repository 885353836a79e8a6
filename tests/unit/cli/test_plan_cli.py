"""``hccl-py plan``: what it prints, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from hccl_py.cli.main import main

CONFIGS = Path(__file__).parents[3] / "cluster_configs"
TWO_HOSTS = str(CONFIGS / "two_hosts_ethernet.yaml")
ONE_HOST = str(CONFIGS / "single_host_4cpu.yaml")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as stop:
        main(["plan", *words])
    streams = capsys.readouterr()
    return int(stop.value.code or 0), streams.out, streams.err


def test_the_command_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, TWO_HOSTS, "--collective", "all_reduce", "--size", "64M", "--explain")
    assert status == 0
    assert out.startswith("all_reduce, 8 ranks on 2 host(s), blocks of 64MiB\n")
    assert "-> forest channels=2 roots=0 shares=1 " in out
    assert "chosen by size" in out and "chosen here: forest channels=2 roots=0 shares=1; fastest of 7" in out
    assert "predicted 53.81ms; lower bound of the graph 53.69ms (cut around ranks 0..3 (4)), gap +0.2%" in out
    assert "order     free" in out and "rounds " in out and "busiest first" in out
    assert "node0/eth0 -> switch: 64MiB, busy for " in out
    assert "determinism" not in out
    for name in ("direct rounds=1", "direct rounds=2", "ring", "tree", "halving_doubling", "hierarchical groups=4+4"):
        assert f"   {name} " in out


def test_without_explain_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, ONE_HOST, "-s", "1K")
    assert "chosen here: direct rounds=1" in out and "digest" not in out


def test_the_price_of_determinism(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, TWO_HOSTS, "-s", "64M", "--deterministic")
    assert "-> direct rounds=2" in out
    assert "determinism costs " in out and "(forest channels=2 roots=0 shares=1, free)" in out
    _, out, _ = run(capsys, ONE_HOST, "-s", "1K", "--deterministic")
    assert "determinism costs nothing here" in out


def test_a_forced_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, TWO_HOSTS, "-s", "64M", "--algorithm", "ring")
    assert "-> ring" in out and "chosen here: ring; forced: ring" in out
    status, _, err = run(capsys, TWO_HOSTS, "-c", "gather", "-a", "ring")
    assert status == 2 and "PlanError: algorithm 'ring' does not do gather" in err
    status, _, err = run(capsys, TWO_HOSTS, "-a", "ring", "--deterministic")
    assert status == 2 and "admits canonical plans only" in err


def test_root_and_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, ONE_HOST, "-c", "broadcast", "--root", "2", "--ranks", "3", "--explain")
    assert out.startswith("broadcast, 3 ranks on 1 host(s)") and "over 3 ranks, root 2" in out
    status, _, err = run(capsys, ONE_HOST, "-c", "broadcast", "--root", "4")
    assert status == 2 and "--root 4: the cluster has ranks 0 to 3" in err
    status, _, err = run(capsys, ONE_HOST, "--ranks", "9")
    assert status == 2 and "9 ranks wanted" in err


def test_shared_slots_load_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, ONE_HOST, "-s", "1K", "--explain")
    assert "links     none: at this size ranks read each other's INPUT" in out
    _, out, _ = run(capsys, ONE_HOST, "-s", "1K", "--ranks", "1", "--explain")
    assert "links     none" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-c", "gatter"), "did you mean 'gather'?"),
        (("-s", "64X"), "64X"),
        (("--ranks", "0"), "0 ranks wanted"),
    ],
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str) -> None:
    status, _, err = run(capsys, ONE_HOST, *words)
    assert status == 2 and why in err


def test_names_with_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, ONE_HOST, "-c", "All-Gather")
    assert status == 0 and out.startswith("all_gather, 4 ranks")


def test_the_policy_of_the_file_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    rules = "policy: {algorithms: [{algorithm: direct, upto: 1MiB}, {algorithm: ring}]}\n"
    file.write_text((CONFIGS / "single_host_4cpu.yaml").read_text() + rules)
    assert "chosen here: direct" in run(capsys, str(file), "--size", "1M")[1]
    assert "chosen here: ring" in run(capsys, str(file), "--size", "2M")[1]
    assert "chosen here: tree" in run(capsys, str(file), "--size", "2M", "--algorithm", "tree")[1]
    file.write_text((CONFIGS / "single_host_4cpu.yaml").read_text() + "policy: {deterministic: true}\n")
    assert "determinism costs" in run(capsys, str(file), "--size", "2M")[1]
