"""Decisions and measurements as values: digests tell them apart, the exchanged form gives them back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import Bucket, BucketPlan, Span
from hccl_py.scheduler.decision import Decision, Kind, LinkFigures, PlanChoice, Tuning
from hccl_py.scheduler.measurement import BucketRun, ChannelUse, Measurement, late_ranks

BUCKETS = BucketPlan((Bucket(DType.FLOAT32, (Span(0, 0, 4),)),))
SWITCH = Decision(Kind.SWITCH, 7, "x", BUCKETS, (PlanChoice("ring"),), (LinkFigures("a", "b", 1e8, 1e-5),), 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 8},
        {"choices": (PlanChoice("ring", 2),)},
        {"choices": (PlanChoice("ring", 1, "bf16"),)},
        {"links": ()},
        {"predicted_gain_s": 0.2},
        {"buckets": None, "choices": ()},
        {"tuning": Tuning(chunk_bytes=1)},
        {"tuning": Tuning(channels=1)},
    ],
)
def test_the_digest_tells_decisions_apart(change: dict[str, object]) -> None:
    assert replace(SWITCH, **change).digest != SWITCH.digest  # type: ignore[arg-type]


def test_words_are_not_part_of_a_decision() -> None:
    assert replace(SWITCH, why="y").digest == SWITCH.digest
    assert SWITCH.switches and not Decision.keep(7, "x").switches


def test_a_decision_without_a_choice_for_each_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="choices"):
        replace(SWITCH, choices=())
    with pytest.raises(ConfigError, match="codec"):
        PlanChoice("ring", 1, "zip")


seconds = st.floats(0, 1e3)
channels = st.builds(ChannelUse, st.integers(0, 9), st.integers(0, 3), st.integers(0, 2**40), seconds, seconds)
runs = st.builds(BucketRun, st.integers(0, 2**40), seconds, seconds)
measurements = st.builds(
    Measurement, st.integers(0, 2**40), st.integers(0, 999), seconds, seconds, seconds, seconds, seconds,
    st.lists(channels, max_size=4).map(tuple), st.lists(runs, max_size=4).map(tuple),
)  # fmt: skip


@given(measurements, st.binary(max_size=9))
def test_what_is_exchanged_comes_back(measurement: Measurement, padding: bytes) -> None:
    assert Measurement.from_bytes(measurement.to_bytes() + padding) == measurement


def test_what_is_cut_off_or_foreign_is_refused() -> None:
    data = Measurement(1, 2, 0.5, channels=(ChannelUse(0, 0, 1, 0.1),)).to_bytes()
    with pytest.raises(ConfigError, match="cut off"):
        Measurement.from_bytes(data[:-1])
    with pytest.raises(ConfigError, match="version"):
        Measurement.from_bytes(b"zzzz" + data[4:])


def test_a_rank_whose_backward_takes_longer_is_late() -> None:
    steps = [Measurement(1, rank, 1.0, backward) for rank, backward in enumerate((0.5, 0.9, 0.51, 0.5))]
    assert late_ranks(steps, 0.2) == (1,)
    assert late_ranks(steps, 0.5) == ()
    assert late_ranks(steps[:1], 0.0) == ()
