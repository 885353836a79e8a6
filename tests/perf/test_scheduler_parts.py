"""Parts of make bench-scheduler that are kept: claims come once all are there, and are of the worst."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scheduler_harm
import scheduler_tables
import scheduler_training
from claims import Claims
from pages import END
from scheduler_bench import PARTS


def step(took_s: float) -> dict[str, Any]:
    return {"took_s": took_s, "idle": 0.1, "cpu_s": 1.0, "buckets": [[0.0, 0.2], [0.1, 0.6]], "backward_s": 0.5}


def launched(name: str, waits: float) -> dict[str, Any]:
    part = scheduler_training.PARTS[name]
    timed = [wrapper for wrapper in part.wrappers if wrapper not in part.silent]
    steps = {"none": [step(1.0)] * 3} | {wrapper: [step(1 / (1 - waits))] * 3 for wrapper in timed}
    memory = {"ours:off": [90, 100]} if "ours:off" in part.wrappers else {}
    return {"batch": 8, "steps": steps, "memory": memory, "switches": [], "settled_s": []}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scheduler_training, "STORE", tmp_path / "training.json")
    monkeypatch.setattr(scheduler_harm, "STORE", tmp_path / "harm.json")
    return tmp_path


def claimed(record: Any, out: Path) -> dict[str, Any]:
    claims = Claims("scheduler", out=out)
    record(claims, "make bench-scheduler")
    claims.finish(out / "scheduler.json")
    return {one["id"]: one for one in json.loads((out / "scheduler.json").read_text("utf-8"))}


def test_training_is_claimed_once_all_models_are_there(stores: Path) -> None:
    found = {name: launched(name, 0.1) for name in scheduler_training.PARTS}
    found["sites-12M"] = launched("sites-12M", 0.17)
    found["sites-30M-sharded"] = launched("sites-30M-sharded", 0.13)
    for lacks in (None, "sites-12M", "even-30M"):
        (stores / "training.json").write_text(json.dumps({k: v for k, v in found.items() if k != lacks}))
        claims = claimed(scheduler_training.record, stores / str(lacks))
        sites, sharded = claims["overhead_sites"], claims["overhead_sharded"]
        assert (sites["value"] is None) == (lacks == "sites-12M") and sharded["value"] == pytest.approx(0.13)
        assert not sharded["met"] and (claims["overhead_even"]["value"] is None) == (lacks == "even-30M")
        if lacks is None:
            assert sites["value"] == pytest.approx(0.17) and sites["met"]
            assert claims["memory"]["value"] == pytest.approx(0.9) and claims["hidden"]["value"] == pytest.approx(0.8)
            assert claims["baseline"]["value"] == pytest.approx(0.25)


def model(name: str, ours_s: float) -> dict[str, Any]:
    times = {"ours": [ours_s] * 3, "off": [1.01] * 3, "1 MiB": [1.0] * 3, "5 MiB": [1.2] * 3}
    switches = [[3, "tries", 0.0, -0.1, True]]
    return {"model": name, "times_s": times, "first_s": [1.0], "switches": switches, "buckets": 1, "settled": True}


def test_no_harm_is_claimed_once_all_models_are_there(stores: Path) -> None:
    found = {name: model(name, 1.0 + 0.001 * number) for number, name in enumerate(scheduler_harm.MODELS)}
    (stores / "harm.json").write_text(json.dumps(found))
    claim = claimed(scheduler_harm.record, stores)["no_harm"]
    assert claim["value"] == pytest.approx(1.009) and claim["met"] and "1.010" in claim["baseline"]
    del found["words"]
    (stores / "harm.json").write_text(json.dumps(found))
    assert claimed(scheduler_harm.record, stores / "x")["no_harm"]["value"] is None


def test_every_model_and_every_launch_is_a_part() -> None:
    assert sorted(name for names in scheduler_harm.PARTS.values() for name in names) == sorted(scheduler_harm.MODELS)
    assert {*scheduler_harm.PARTS, *scheduler_training.PARTS} <= set(PARTS)


def test_tables_are_of_what_was_found(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stores / "training.json").write_text(json.dumps({"sites-4M": launched("sites-4M", 0.1)}))
    (stores / "harm.json").write_text(json.dumps({"words": model("words", 1.03)}))
    (stores / "scheduler.json").write_text(
        json.dumps([{"name": "a claim", "wanted": "much", "value": 0.5, "unit": "share", "n": 3, "met": False}])
    )
    monkeypatch.setattr(scheduler_tables, "OUT", stores)
    page, kept = stores / "page.md", stores / "kept.json"
    marks = [scheduler_tables._CLAIMS, scheduler_tables._TRAINING, scheduler_tables._HARM]
    page.write_text("\n".join(f"{mark}\nold\n{END}" for mark in marks))
    scheduler_tables.write(page, kept)
    text = page.read_text("utf-8")
    assert "| a claim | much | 0.5 share | 3 | **no** |" in text and kept.exists() and "old" not in text
    assert "| sites 4M | 8 | ours:off | 1.11 s | 10.0% | 10% | 80% | 3 |" in text
    assert "| words | 1.030 | 1.010 | 1 MiB | 1030.0 ms | 2 | 3 |" in text
