"""The simulator against SimGrid's stored answers; tests/perf/simgrid_answers.py asks for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hccl_py.scheduler.cost import EngineCosts
from hccl_py.scheduler.simulate import simulate

_HERE = Path(__file__)
WITHIN = 0.05


def _script() -> ModuleType:
    """The script that made the answers: it knows the graphs and plans."""
    spec = importlib.util.spec_from_file_location("simgrid_answers", _HERE.parents[2] / "perf" / "simgrid_answers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simgrid_answers"] = module
    spec.loader.exec_module(module)
    return module


def test_within_five_percent_of_simgrid() -> None:
    script = _script()
    answers = json.loads(_HERE.with_name("simgrid_answers.json").read_text("utf-8"))
    pure = EngineCosts(0.0, 0.0, 0.0, 1e18, script.SEGMENT_BYTES, 0)
    known = {(row["graph"], row["digest"], row["bytes_per_block"]): row["seconds"] for row in answers}
    compared = 0
    for graph, collective, plan, size_bytes in script.cases():
        asked = known.get((graph, plan.digest.hex()[:16], size_bytes))
        if asked is None:  # an algorithm writes other plans now: run tests/perf/simgrid_answers.py again
            continue
        topology, placement = script.GRAPHS[graph]()
        found = simulate(plan, topology, placement, size_bytes, engine=pure, channel_bytes=1 << 30)
        assert found.seconds == pytest.approx(asked, rel=WITHIN), (
            f"{graph}: {collective.name} {plan.name}, {size_bytes}"
        )
        compared += 1
    assert compared > 100
