"""The demonstration, in its quick form: the same parts, fewer steps and sizes."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from hccl_py.launch import run

HCCL_PY = str(Path(sysconfig.get_path("scripts")) / "hccl-py")


@pytest.mark.timeout(400)
def test_demo_trains_measures_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = run([HCCL_PY, "demo", "--quick", "--ranks", "2", "--out", str(tmp_path)], 380)
    assert job.status == 0, job.output
    for word in ("gloo", "hccl_py", "openmpi", "digits: accuracy", "bytes: step time", "waiting", "busbw"):
        assert word in job.output
    record = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    first, second = (result["tasks"] for result in record["training"])
    for name in ("digits", "bytes"):
        assert first[name]["losses"] == pytest.approx(second[name]["losses"], rel=1e-3), "the same curve over both"
        assert first[name]["losses"][-1] < first[name]["losses"][0]
        assert set(record["steps"][name]["backends"]) == {"gloo", "hccl_py"}
    for picture in ("losses.png", "steps.png", "busbw.png"):
        data = (tmp_path / picture).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 20_000


def test_demo_says_why_a_part_failed(tmp_path: Path) -> None:
    job = run([HCCL_PY, "demo", "--quick", "--ranks", "2", "--out", str(tmp_path), "--backends", "glue"], 110)
    assert job.status == 2
    said, _, why = job.output.partition("DDP (train) over glue ended with status 1")
    assert said != job.output and "Traceback" in why and "glue" in why
