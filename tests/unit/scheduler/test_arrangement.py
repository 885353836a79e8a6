"""Arrangements: what is encoded, what is tried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scheduler_network import DECLARED, TIMELINE, pricing

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.arrangement import CAPS_BYTES, CHUNKS_BYTES, Arrangement, Arranger
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import Tuning
from hccl_py.scheduler.timeline import Timeline

BUCKETS = BucketPlan.fixed(TIMELINE.numel, TIMELINE.dtype, 8 << 20, TIMELINE.order())
CURRENT = Arrangement(BUCKETS, DECLARED)


def arranger(**words: object) -> Arranger:
    settings = {"free_plans": True, "free_buckets": False, "most_bucket_bytes": 32 << 20, **words}
    return Arranger(pricing(), **settings)  # type: ignore[arg-type]


def test_only_what_is_waited_for_is_encoded() -> None:
    narrows = arranger(codecs=("exact", "bf16"))
    slow = replace(TIMELINE, ready_s=(0.0,) * 9 + (5.0,))  # all but the last gradient have time enough
    (*hidden, last) = narrows.best(CURRENT, DECLARED, slow).codecs
    assert set(hidden) == {"exact"} and last == "bf16"
    at_once = narrows.best(CURRENT, DECLARED, replace(TIMELINE, ready_s=(0.0,) * 10))
    assert at_once.codecs.count("bf16") > 1
    assert not arranger().best(CURRENT, DECLARED, slow).codecs


def test_only_float32_is_encoded() -> None:
    kinds = (DType.FLOAT64,) * 10
    wide = Timeline(TIMELINE.ready_s, TIMELINE.numel, kinds)
    current = Arrangement(BucketPlan.fixed(wide.numel, kinds, 8 << 20, wide.order()), DECLARED)
    assert not arranger(codecs=("exact", "bf16")).best(current, DECLARED, wide).codecs


def test_what_is_encoded_is_cheaper_by_nearly_half() -> None:
    narrow = replace(CURRENT, codecs=("bf16",) * len(BUCKETS))
    share = arranger().seconds(narrow, DECLARED) / arranger().seconds(CURRENT, DECLARED)
    assert np.all((share > 0.4) & (share < 0.75))
    assert {choice.codec for choice in arranger().choices(narrow)} == {"bf16"}


def test_arms_differ_in_one_thing_each() -> None:
    arms = dict(arranger(free_buckets=True, most_channels=2).arms(CURRENT, TIMELINE))
    assert len(arms) == len(CAPS_BYTES) + len(CHUNKS_BYTES) + 1
    for one in arms.values():
        changed = [one.buckets != BUCKETS, one.tuning.chunk_bytes != 0, one.tuning.channels != 0]
        assert sum(changed) == 1 and one.topology == DECLARED
    fewer = dict(arranger(free_plans=False).arms(CURRENT, TIMELINE))
    assert len(fewer) == len(CHUNKS_BYTES)  # whoever forces plans and buckets keeps them
    back = dict(arranger(most_channels=2).arms(replace(CURRENT, tuning=Tuning(1 << 20, 1)), TIMELINE))
    assert Tuning(0, 1) in [one.tuning for one in back.values()] and Tuning(1 << 20, 0) in [
        one.tuning for one in back.values()
    ]


def test_a_tuning_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="below 0"):
        Tuning(chunk_bytes=-1)
    with pytest.raises(ConfigError, match="below 0"):
        Tuning(channels=-1)
