"""The bucket partition: every element once, and never later than any other partition (all of them are tried)."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.scheduler.buckets import Bucket, BucketPlan, Span
from hccl_py.scheduler.partition import LinkCost, finish_s, partition
from hccl_py.scheduler.timeline import Timeline

F32 = DType.FLOAT32
times = st.integers(0, 50).map(lambda n: n / 1000)
costs = st.builds(LinkCost.affine, st.sampled_from((0.0, 1e-4, 5e-3)), st.sampled_from((1e4, 1e6, 1e9)))


def timelines(most: int, dtypes: tuple[DType, ...] = (F32,)) -> st.SearchStrategy[Timeline]:
    entry = st.tuples(times, st.integers(1, 300), st.sampled_from(dtypes))
    return st.lists(entry, min_size=1, max_size=most).map(lambda rows: Timeline(*zip(*rows, strict=True)))


@settings(max_examples=100, deadline=None)
@given(timelines(8), costs)
def test_no_partition_ends_earlier(timeline: Timeline, cost: LinkCost) -> None:
    found = finish_s(partition(timeline, cost), timeline, cost)[-1]
    order = timeline.order()
    for cuts in (c for k in range(len(order)) for c in combinations(range(1, len(order)), k)):
        ends = (0, *cuts, len(order))
        groups = [order[a:b] for a, b in pairwise(ends)]
        plan = BucketPlan(tuple(Bucket(F32, tuple(Span(i, 0, timeline.numel[i]) for i in g)) for g in groups))
        assert found <= finish_s(plan, timeline, cost)[-1] * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(timelines(30, (F32, DType.BFLOAT16, DType.FLOAT64)), costs, st.integers(8, 2000))
def test_every_element_once_and_no_bucket_too_large(timeline: Timeline, cost: LinkCost, most_bytes: int) -> None:
    plan = partition(timeline, cost, most_bytes=most_bytes)
    assert plan.covers(timeline.numel, timeline.dtype)
    assert max(bucket.num_bytes for bucket in plan.buckets) <= most_bytes
    ready = [max(timeline.ready_s[span.parameter] for span in bucket.spans) for bucket in plan.buckets]
    assert ready == sorted(ready)


def test_free_latency_splits_and_dear_latency_joins() -> None:
    timeline = Timeline((0.001, 0.002, 0.003, 0.004), (1000,) * 4, (F32,) * 4)
    assert len(partition(timeline, LinkCost.affine(0.0, 4e6))) == 4
    assert len(partition(timeline, LinkCost.affine(1.0, 4e6))) == 1


def test_thousands_of_tiny_parameters_are_joined_before_they_are_cut() -> None:
    count = 5000
    timeline = Timeline(tuple(i * 1e-5 for i in range(count)), (64,) * count, (F32,) * count)
    cost = LinkCost.affine(1e-4, 1e8)
    plan = partition(timeline, cost)
    assert plan.covers(timeline.numel, timeline.dtype)
    lower_s = timeline.backward_s + float(cost.of(256))
    assert finish_s(plan, timeline, cost)[-1] <= 1.02 * lower_s


def test_plans_are_compared_by_their_bytes() -> None:
    one = BucketPlan((Bucket(F32, (Span(0, 0, 4),)), Bucket(F32, (Span(1, 0, 4),))))
    other = BucketPlan((Bucket(F32, (Span(1, 0, 4),)), Bucket(F32, (Span(0, 0, 4),))))
    assert one.digest != other.digest
    assert one.digest == BucketPlan(one.buckets).digest


@pytest.mark.parametrize(
    "spans", [(Span(0, 1, 3),), (Span(0, 0, 2), Span(0, 3, 1)), (Span(0, 0, 2), Span(0, 1, 2)), (Span(1, 0, 1),)]
)
def test_a_plan_with_a_gap_or_an_overlap_is_refused(spans: tuple[Span, ...]) -> None:
    with pytest.raises(ConfigError, match="parameter"):
        BucketPlan((Bucket(F32, spans),))


def test_fixed_buckets() -> None:
    plan = BucketPlan.fixed((10, 3, 30), (F32, DType.BFLOAT16, F32), 64, (2, 1, 0))
    assert plan.covers((10, 3, 30), (F32, DType.BFLOAT16, F32))
    assert [bucket.num_bytes for bucket in plan.buckets] == [64, 56, 40, 6]
    assert not plan.covers((10, 3, 31), (F32, DType.BFLOAT16, F32))


def test_the_timeline_of_all_ranks_is_the_latest() -> None:
    a, b = (Timeline(ready, (1, 2), (F32, F32), backward) for ready, backward in (((1.0, 5.0), 6.0), ((3.0, 2.0), 4.0)))
    both = Timeline.of_ranks([a, b])
    assert (both.ready_s, both.backward_s, both.order()) == ((3.0, 5.0), 6.0, (0, 1))
    with pytest.raises(ConfigError, match="ranks 0 and 1"):
        Timeline.of_ranks([a, Timeline((1.0,), (1,), (F32,))])


@pytest.mark.parametrize(("ready", "numel"), [((), ()), ((1.0,), (0,)), ((-1.0,), (1,)), ((float("nan"),), (1,))])
def test_a_bad_timeline_is_refused(ready: tuple[float, ...], numel: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="timeline"):
        Timeline(ready, numel, (F32,) * len(ready))
