"""The arithmetic between the samples of a run and its claims; and that each claim has a part that measures it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cpu_bench
import cpu_tables
import pages
import pytest
from claims import Claims, load_wanted
from cpu_bench import PARTS, Bench, against_best, mean_speedup, samples_of, worst, worst_steepness

MACHINE = {"cores_usable": 2, "processor": "none", "system": "Linux 1"}
VERSIONS = {"hccl_py": "1", "openmpi": "Open MPI v5.0.11", "mpich": "MPICH Version: 5.0.2", "gloo": "torch 2.13.0+cpu"}


def record(times_us: dict[str, dict[int, float]], case: str = "all_reduce") -> dict[str, Any]:
    def cell(library: str, size: int) -> dict[str, Any]:
        time_s = times_us[library][size] * 1e-6
        return {"samples_s": [time_s] * 8, "time_s": time_s, "low_s": time_s, "high_s": time_s}

    rows = [
        {
            "library": library, "collective": case, "dtype": "float32", "redop": "sum", "root": None,
            "size_bytes": size, "in_place": cell(library, size), "out_of_place": {"absent": "no such form"},
        }
        for library in times_us
        for size in times_us[library]
    ]  # fmt: skip
    return {
        "rows": rows,
        "versions": VERSIONS,
        "ranks": 2,
        "date": "2026-01-01T00:00",
        "machine": MACHINE,
        "samples": 8,
    }


THREE = {
    "hccl_py": {8: 1.0, 65536: 10.0, 1 << 20: 100.0},
    "openmpi": {8: 2.0, 65536: 8.0, 1 << 20: 400.0},
    "mpich": {8: 4.0, 65536: 20.0, 1 << 20: 300.0},
    "limit": {8: 0.1, 65536: 1.0, 1 << 20: 10.0},
}


def test_each_size_is_compared_with_its_best_baseline() -> None:
    ratios = against_best(samples_of(record(THREE)), "hccl_py")
    assert {key[1]: ratio.median for key, ratio in ratios.items()} == pytest.approx(
        {8: 0.5, 65536: 1.25, 1 << 20: 1 / 3}
    )
    assert worst(ratios) == pytest.approx(1.25)
    assert mean_speedup(ratios) == pytest.approx((2 * 0.8 * 3) ** (1 / 3))


def test_nothing_measured_meets_no_claim() -> None:
    assert not load_wanted()["cpu"]["two_ranks_worst"].met_by(worst({}))
    assert not load_wanted()["cpu"]["two_ranks_mean"].met_by(mean_speedup({}))
    assert not load_wanted()["cpu"]["cliffs"].met_by(worst_steepness({}, "hccl_py"))


def test_steepest_size_of_ours() -> None:
    times = {"hccl_py": {8: 1.0, 16: 4.0, 24: 1.0}, "gloo": {8: 1.0, 16: 99.0, 24: 1.0}}
    assert worst_steepness(samples_of(record(times)), "hccl_py") == pytest.approx(4.0)


def test_each_claim_has_exactly_one_part() -> None:
    ids = [id_ for part in PARTS.values() for id_ in part.ids]
    assert sorted(ids) == sorted(load_wanted()["cpu"])


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_bench, "RECORDS", tmp_path)
    measured: list[str] = []

    def measure(self: Bench, ranks: int, command: list[str], out: Path) -> dict[str, Any]:
        measured.append(command[0])
        if command[0] == "cut off":
            raise OSError("cut off")
        out.write_text(json.dumps(record({"hccl_py": {int(command[0]): 1.0}})))
        return {}

    monkeypatch.setattr(Bench, "_ranks", measure)
    with pytest.raises(OSError, match="cut off"):
        Bench(Claims("cpu"), 8)._pieces(2, "name", {"a": ["8"], "b": ["cut off"]})
    rest = {"a": ["8"], "b": ["64"]}
    whole = Bench(Claims("cpu"), 8, resume=True)._pieces(2, "name", rest)
    assert measured == ["8", "cut off", "64"]
    assert [row["size_bytes"] for row in whole["rows"]] == [8, 64]
    assert json.loads((tmp_path / "name.json").read_text()) == whole
    Bench(Claims("cpu"), 8)._pieces(2, "name", rest)  # without resume all is measured anew
    assert measured[3:] == ["8", "64"]


def test_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="no part tow; known: two, "):
        list(cpu_bench._chosen("two,tow"))


def test_pages_get_the_tables_with_losses_in_bold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tables, "ROOT", tmp_path)
    for name in ("README", "BENCHMARKS"):
        page = tmp_path / f"{name}.md"
        page.write_text(f"before\n{cpu_tables.BEGIN}\nold\n{pages.END}\nafter\n")
        monkeypatch.setattr(cpu_tables, name, page)
    records = tmp_path / "out" / "cpu" / "records"
    records.mkdir(parents=True)
    (records / "two2.json").write_text(json.dumps(record(THREE)))
    (records / "others2.json").write_text(json.dumps(record(THREE, "reduce")))
    cpu_tables.write(tmp_path / "out")
    page = (tmp_path / "BENCHMARKS.md").read_text()
    assert page.startswith("before") and page.endswith("after\n") and "\nold\n" not in page
    assert "| 64 KiB | 10.0 us | 8.0 us | 20.0 us | 1.0 us | **1.25 (1.25 to 1.25)** |" in page
    assert "| 8 B | 1.0 us | 2.0 us | 4.0 us | 0.1 us | 0.50 (0.50 to 0.50) |" in page
    assert "| reduce | 2 | 1.69x | 64 KiB in place (1.25) |" in page
    assert "Open MPI 5.0.11, MPICH 5.0.2" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "docs" / "bench" / "all_reduce_2.png").exists()


def test_a_page_without_a_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(SystemExit, match="no place"):
        pages.replace_between(tmp_path / "page.md", cpu_tables.BEGIN, "text")
