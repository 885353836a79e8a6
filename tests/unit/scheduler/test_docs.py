"""docs/PLAN_FORMAT.md says the truth about algorithms and tests."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler_matrix import plans

from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.algorithms import builtin_algorithms

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/PLAN_FORMAT.md").read_text(encoding="utf-8")


def test_the_table_of_algorithms_is_right() -> None:
    section = TEXT.split("## Which algorithm does what")[1].split("##")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    header, _, *body = rows
    algorithms = {a.name: a for a in builtin_algorithms()}
    assert header[1:] == list(algorithms)
    seen = set()
    for names, *cells in body:
        for name in names.split(", "):
            collective = Collective[name.upper()]
            seen.add(collective)
            for algorithm, cell in zip(algorithms.values(), cells, strict=True):
                assert algorithm.supports(collective) == bool(cell), (name, algorithm.name)
                if not cell or collective is Collective.BARRIER:
                    continue
                words = re.split(r"[ ,]+", cell)
                made = [plan for world in (5, 8) for plan in plans(algorithm, collective, world)]
                assert ("c" in words) == all(plan.order is Order.CANONICAL for plan in made), (name, algorithm.name)
                assert ("u" in words) == all(plan.uneven for plan in made), (name, algorithm.name)
    assert seen == set(Collective)


def test_the_named_tests_exist() -> None:
    tests = (ROOT / "tests/unit/scheduler/test_verify.py").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)", TEXT)
    assert len(named) > 10
    assert [name for name in named if f"def {name}" not in tests and not name.startswith("test_verify")] == []


def test_the_named_files_exist() -> None:
    named = set(re.findall(r"`((?:scheduler|native|tests|hccl_py)/[\w/.]+)`", TEXT))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
