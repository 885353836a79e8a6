"""The record of a run as CSV and as a picture."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from hccl_py.bench import plot, report, table
from hccl_py.bench.run import Cell, Row, Settings
from hccl_py.cli.bench import _environments, _outputs
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp


def record(*sizes: int) -> dict[str, Any]:
    def row(library: str, size: int, time_s: float) -> Row:
        cell = Cell(samples_s=(time_s, time_s), calls=1, wrong=0)
        absent = Cell(absent="no such form")
        return Row(library, "all_reduce", size, size // 4, DType.FLOAT32, ReduceOp.SUM, None, cell, absent)

    rows = [row(library, size, size * each) for size in sizes for library, each in (("hccl_py", 1e-9), ("gloo", 2e-9))]
    settings = Settings(cases=("all_reduce",), sizes_bytes=sizes)
    return report.document(rows, 2, "hccl-py bench", {"hccl_py": "1", "gloo": "1"}, settings)


def test_csv_has_a_line_per_figure_and_the_ratio_on_the_baselines() -> None:
    lines = list(csv.DictReader(io.StringIO(table.to_csv(record(64, 256)))))
    assert [(line["library"], line["size_bytes"], line["form"]) for line in lines] == [
        (library, size, "out of place") for size in ("64", "256") for library in ("hccl_py", "gloo")
    ]
    assert [line["time_ratio"] for line in lines] == ["", "0.5", "", "0.5"]
    assert float(lines[1]["time_s"]) == pytest.approx(128e-9) and lines[1]["samples"] == "2"
    assert lines[0]["type"] == "float32" and lines[0]["ranks"] == "2"


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_picture_is_drawn(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"sweep{suffix}"
    plot.draw(record(64, 256, 1024), path)
    assert path.read_bytes().startswith(magic)


def test_pictures_that_cannot_be_drawn_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf"):
        _outputs(None, None, tmp_path / "sweep.gif")
    with pytest.raises(ConfigError, match="two sizes"):
        plot.draw(record(64), tmp_path / "sweep.png")


def test_only_the_files_asked_for_are_written(tmp_path: Path) -> None:
    assert _outputs(None, tmp_path / "a.csv", None) == {"csv": tmp_path / "a.csv"}


def test_environments_of_baselines() -> None:
    assert _environments(["mpich=/opt/mpich"], ["gloo", "mpich"]) == {"mpich": Path("/opt/mpich")}
    for text, message in (
        ("mpich", "NAME=FOLDER"),
        ("gloo=/opt", "one of openmpi, mpich"),
        ("openmpi=/x", "not in --compare"),
    ):
        with pytest.raises(ConfigError, match=message):
            _environments([text], ["gloo", "mpich"])
