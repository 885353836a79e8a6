"""`hccl-py watch`: it shows what the status file says, and refuses what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hccl_py.cli.main import main
from hccl_py.core.units import format_bytes

LINK = {"link": "a/n -> s", "Bps": 25e6, "nominal_Bps": 125e6, "sigma": 0.1, "since_steps": 4}
STEP = {
    "kind": "step", "time_s": 100.0, "step": 8, "step_s": 0.5, "backward_s": 0.3, "exposed_s": 0.1, "hidden": 0.75,
    "late": [3], "links": [LINK], "buckets": [{"bytes": 4096, "start_s": 0.1, "end_s": 0.2}],
    "flows": [{"src": 0, "dst": 1, "channel": 0, "bytes": 4096, "busy_s": 0.05}],
    "outcomes": [{"step": 6, "achieved_gain_s": 0.02}],
}  # fmt: skip
SWITCH = {"kind": "switch", "time_s": 99.0, "step": 6, "why": "a link is slow", "predicted_gain_s": 0.03}
LINES: list[dict[str, Any]] = [{"kind": "job", "time_s": 1.0, "ranks": 4}, SWITCH, STEP, {"kind": "end", "time_s": 2.0}]


def status_file(folder: Path, name: str = "job-1.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def test_the_picture_shows_links_buckets_and_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status_file(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["watch", str(tmp_path), "--once"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    shown = ("4 ranks", "75% of communication hidden", "late: rank 3", "200", "1000", format_bytes(4096))
    for words in (*shown, "a link is slow", "30.0 ms", "20.0 ms", "(ended)"):
        assert words in out, words


def test_lines_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["watch", str(status_file(tmp_path)), "--json"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == LINES


def test_the_trace_has_a_lane_for_compute_each_bucket_and_each_flow(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["watch", str(status_file(tmp_path)), "--trace", str(tmp_path / "trace.json")])
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"compute", "bucket 0", "rank 0 to 1, channel 0", "decisions"} <= lanes
    spans = [event for event in events if event["name"] == format_bytes(4096)]
    (bucket,) = [event for event in spans if event["dur"] == pytest.approx(1e5)]
    assert bucket["ts"] == pytest.approx(99.6e6)


def test_the_newest_job_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = status_file(tmp_path, "job-2.jsonl"), status_file(tmp_path, "job-3.jsonl")
    os.utime(old, (1, 1))
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path), "--once"])
    assert new.name in capsys.readouterr().out


def test_what_is_no_status_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text("hello\n")
    for where, words in ((tmp_path / "empty", "HCCL_PY_STATUS"), (tmp_path / "x.jsonl", "not a status file")):
        with pytest.raises(SystemExit) as end:
            main(["watch", str(where), "--once"])
        assert end.value.code == 2 and words in capsys.readouterr().err
