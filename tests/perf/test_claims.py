"""The claims: what is wanted is what was asked for, and a run that misses or forgets one fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from claims import Claims, Wanted, load_wanted

from hccl_py.core.errors import ConfigError

ROOT = Path(__file__).parents[2]

ASKED = {  # section -> id -> what was asked for; a number changes here and in wanted.toml, or not at all
    "cpu": {
        "two_ranks_worst": "<= 1.0",
        "two_ranks_mean": ">= 2.0",
        "registered_mean": ">= 5.0",
        "registered_limit": ">= 0.7",
        "engine_ring": "<= 1.05",
        "engine_exchange": "<= 100.0",
        "call_overhead": "<= 0.6",
        "prepared_overhead": "<= 0.15",
        "call_against_mpi4py": "<= 1.0",
        "torch_latency": "<= 12.0",
        "torch_against_gloo": ">= 15.0",
        "four_ranks_worst": "<= 1.0",
        "four_ranks_mean": ">= 2.0",
        "eight_ranks_worst": "<= 1.0",
        "eight_ranks_mean": ">= 2.0",
        "cliffs": "<= 1.5",
        "idle_rank": "<= 0.05",
        "other_collectives_worst": "<= 1.05",
        "other_collectives_mean": ">= 1.5",
        "tcp_throughput": ">= 2.0",
        "tcp_latency": "<= 1.5",
        "tcp_line_rate": ">= 0.94",
        "hierarchical_2x2_bytes": "<= 1.07",
        "hierarchical_2x2_time": ">= 0.9",
        "hierarchical_2x2_ring": ">= 1.4",
        "hierarchical_4x2_bytes": "<= 1.07",
        "hierarchical_4x2_time": ">= 0.9",
        "hierarchical_4x2_ring": ">= 1.4",
        "half_types_large": "<= 1.3",
        "half_types_kernel": ">= 0.8",
        "half_types_error": "<= 1.0",
    },
    "scheduler": {
        "baseline": "<= 0.03",
        "overhead_sites": "<= 0.18",
        "overhead_even": "<= 0.28",
        "overhead_sharded": "<= 0.12",
        "hidden": ">= 0.75",
        "following": "<= 1.15",
        "repaired": "<= 1.05",
        "switches": "<= 2.0",
        "bit_equal": "<= 0.0",
        "no_harm": "<= 1.02",
        "events": "<= 0.0",
        "simulated": "<= 0.18",
        "memory": ">= 0.85",
        "gradients": "<= 0.0",
    },
    "topology": {
        "config_gap": "<= 0.05",
        "even_configs": "<= 1.03",
        "slow_rail": ">= 1.3",
        "slow_rail_simgrid": ">= 1.3",
        "plan_1024_s": "<= 10.0",
        "plan_128_s": "<= 1.0",
        "simgrid_off": "<= 0.05",
        "lab_off": "<= 0.15",
        "lab_star_gloo": ">= 1.35",
        "lab_star_bound": ">= 0.9",
        "lab_sites_gloo": ">= 2.0",
        "lab_sites_bound": ">= 0.9",
        "random_graphs": "<= 0.0",
        "malformed_files": "<= 0.0",
    },
    "compression": {
        "casts": ">= 0.6",
        "int8": ">= 0.35",
        "topk": ">= 0.1",
        "volume_digits": ">= 0.62",
        "volume_digits_quality": "<= 0.5",
        "volume_lm": ">= 0.62",
        "volume_lm_loss": "<= 0.01",
        "volume_lm_deviation": "<= 2.0",
        "most_digits": ">= 0.9",
        "most_digits_quality": "<= 1.0",
        "most_lm": ">= 0.9",
        "most_lm_loss": "<= 0.02",
        "switching": ">= 0.2",
        "sparse_topk": ">= 3.0",
        "sparse_embedding": ">= 3.0",
        "auto_200": ">= 3.0",
        "auto_1000": ">= 1.5",
        "auto_shm": "<= 1.02",
    },
    "torch": {
        "files": "<= 0.0",
        "osu": ">= 1.0",
        "gloo_rows": "<= 0.0",
        "random_programs": "<= 0.0",
        "random_mismatches": "<= 0.0",
        "contract_shm": "<= 60.0",
        "contract_tcp": "<= 0.01",
    },
}

TOML = """
[demo.fast]
name = "speed"
unit = "x"
wanted = "2x"
sense = ">="
bound = 2

[demo.small]
name = "size"
unit = "B"
wanted = "under 100 B"
sense = "<="
bound = 100
"""


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    path = tmp_path / "wanted.toml"
    path.write_text(TOML)
    return path


def demo(wanted: Path, part: list[str] | None = None) -> Claims:
    return Claims("demo", part, wanted=wanted, out=wanted.parent / "raw")


def record(claims: Claims, id_: str, value: float) -> None:
    claims.record(id_, value, command="make demo", n=3, samples=[value] * 3, baseline="gloo 1")


@pytest.mark.parametrize("section", ASKED)
def test_wanted_values_are_those_asked_for(section: str) -> None:
    found = {id_: f"{claim.sense} {claim.bound}" for id_, claim in load_wanted()[section].items()}
    assert found == ASKED[section]


def spellings(claim: Wanted) -> set[str]:
    """How a sentence may say the bound: 1.05 as 5%, 0.7 as 70%, 2.0 as 2x."""
    percent = claim.bound * 100
    return {f"{claim.bound:g}", f"{claim.bound:.1f}"} | {
        f"{abs(p):g}%" for p in (percent, percent - 100, 100 - percent)
    }


@pytest.mark.parametrize(
    "claim", [pytest.param(claim, id=id_) for claims in load_wanted().values() for id_, claim in claims.items()]
)
def test_wording_holds_its_number(claim: Wanted) -> None:
    said = set(re.findall(r"\d[\d,]*(?:\.\d+)?%?", claim.wanted))
    nothing = claim.bound in (0.0, 1.0) and re.search(r"\bno\b|\bnot\b|\bevery\b|\bequal\b|\bnothing\b", claim.wanted)
    assert nothing or said & spellings(claim), f"{claim.wanted!r} says none of {spellings(claim)}"


def test_all_met_is_0_and_every_key_is_there(wanted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims, out = demo(wanted), tmp_path / "demo.json"
    record(claims, "fast", 2.0)
    record(claims, "small", 7)
    assert claims.finish(out) == 0
    first, second = json.loads(out.read_text())
    assert first == {
        "id": "fast", "name": "speed", "value": 2.0, "unit": "x", "wanted": "2x", "met": True, "command": "make demo",
        "n": 3, "samples": "demo/fast.json", "baseline": "gloo 1",
    }  # fmt: skip
    assert second["id"] == "small" and second["met"]
    assert json.loads((tmp_path / "raw" / "demo" / "fast.json").read_text())["samples"] == [2.0] * 3
    assert "speed" in capsys.readouterr().out


@pytest.mark.parametrize("value", [1.99, float("nan")])
def test_missed_is_1(wanted: Path, tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]) -> None:
    claims = demo(wanted)
    record(claims, "fast", value)
    record(claims, "small", 7)
    assert claims.finish(tmp_path / "demo.json") == 1
    assert [claim["met"] for claim in json.loads((tmp_path / "demo.json").read_text())] == [False, True]
    assert "1 of 2 claims missed or missing: fast" in capsys.readouterr().out


def test_missing_is_1_and_listed(wanted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = demo(wanted)
    record(claims, "small", 7)
    assert claims.finish(tmp_path / "demo.json") == 1
    assert json.loads((tmp_path / "demo.json").read_text())[0]["value"] is None
    assert "missing: fast" in capsys.readouterr().out


def test_a_part_judges_itself_and_keeps_the_rest(wanted: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    first = demo(wanted, ["fast"])
    record(first, "fast", 3)
    assert first.finish(out) == 0
    second = demo(wanted, ["small"])
    record(second, "small", 101)
    assert second.finish(out) == 1
    assert [(claim["value"], claim["met"]) for claim in json.loads(out.read_text())] == [(3, True), (101, False)]


def test_a_kept_claim_is_judged_by_the_present_bound(wanted: Path, tmp_path: Path) -> None:
    first = demo(wanted, ["fast"])
    record(first, "fast", 3)
    first.finish(tmp_path / "demo.json")
    wanted.write_text(TOML.replace("bound = 2", "bound = 4"))
    demo(wanted, ["small"]).finish(tmp_path / "demo.json")
    assert not json.loads((tmp_path / "demo.json").read_text())[0]["met"]


def test_unknown_names_are_refused(wanted: Path) -> None:
    with pytest.raises(ConfigError, match=r"no claim slow; .* fast, small"):
        record(demo(wanted), "slow", 1)
    with pytest.raises(ConfigError, match="no claim slow"):
        demo(wanted, ["slow"])
    with pytest.raises(ConfigError, match="no section cpu"):
        Claims("cpu", wanted=wanted)


@pytest.mark.parametrize(
    ("old", "new"), [('sense = ">="', 'sense = ">"'), ('unit = "x"\n', ""), ('unit = "x"', 'unit = "x"\nextra = 1')]
)
def test_a_malformed_claim_is_refused(wanted: Path, old: str, new: str) -> None:
    wanted.write_text(TOML.replace(old, new, 1))
    with pytest.raises(ConfigError):
        load_wanted(wanted)


def test_committed_results_have_the_wanted_ids_and_numbers() -> None:
    for section, wanted in load_wanted().items():
        path = ROOT / "docs" / "bench" / f"{section}.json"
        claims = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        assert not claims or [claim["id"] for claim in claims] == list(wanted), path
        for claim in claims:
            asked = wanted[claim["id"]]
            assert (claim["name"], claim["unit"], claim["wanted"]) == (asked.name, asked.unit, asked.wanted), path
            assert claim["met"] == (claim["value"] is not None and asked.met_by(claim["value"])), path
