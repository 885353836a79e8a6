"""A few runs of chaos, and that its judge rejects."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from chaos import Outcome, Plan, calls

from hccl_py.bootstrap import SingleBootstrap
from hccl_py.communicator import init
from hccl_py.core.env import child_environ
from hccl_py.launch import run


def test_a_few_runs_end_well(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = str(Path(__file__).with_name("chaos.py"))
    job = run(
        [sys.executable, script, "--runs", "8", "--seed", "1000", "--json", str(out)],
        100.0,
        child_environ(OMP_NUM_THREADS="1"),
    )
    assert out.exists(), job.output
    summary = json.loads(out.read_text())
    assert summary["runs"] == 8 and summary["errors"] >= 8, job.output
    assert summary["hangs"] == summary["wrong"] == summary["leftovers"] == 0, job.output


def test_the_judge_rejects() -> None:
    good = Outcome(Plan.draw(1))
    assert good.good
    assert not replace(good, hangs=[1]).good
    assert not replace(good, wrong=[{"event": "nothing"}]).good
    assert not replace(good, leftovers=["/dev/shm/hccl_py"]).good


def test_a_wrong_result_is_seen() -> None:
    class Liar:
        rank, size = 0, 1

        def __getattr__(self, name: str) -> object:
            return lambda *args, **named: self

    plan = Plan.draw(1)
    with init(SingleBootstrap()) as comm:
        assert all(call() for call, _ in zip(calls(plan, comm), range(20), strict=False))
    lies = [call() for call, _ in zip(calls(plan, Liar()), range(60), strict=False)]  # type: ignore[arg-type]
    assert not np.all(lies)


def test_plans_are_drawn_anew_from_each_seed() -> None:
    plans = [Plan.draw(seed) for seed in range(200)]
    assert plans == [Plan.draw(seed) for seed in range(200)]
    assert {plan.harm for plan in plans} == {"kill", "stop", "slow", "kill two"}
    assert {plan.size for plan in plans} == {2, 3, 4, 5, 6} and {plan.in_start for plan in plans} == {True, False}
