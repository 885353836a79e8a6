"""GradientReducer: what stays exact, what auto decides, and what the guard does; the same on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import ConfigError
from hccl_py.communicator import Communicator
from hccl_py.compression.codec import Array, Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.policy import CodecSpeed, Guard, Link, Ramp, Switching
from hccl_py.compression.span import Span
from hccl_py.core.types import ReduceOp
from hccl_py.gradient_choice import LOOK_STEPS, measure
from hccl_py.gradients import GradientReducer

SPANS = [Span(0, 64), Span(1, 4096, rows=64), Span(2, 100, rows=10), Span(3, 2048, rows=2)]
COUNT = sum(span.count for span in SPANS)
LARGE = np.r_[64:4160, 4260:COUNT]  # of matrices that are large enough
SMALL = np.setdiff1d(np.arange(COUNT), LARGE)
INT8, INT4, SIGN = (parse_codec(text) for text in ("int8", "int4", "sign"))


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks("loopback", 2) as group:
        yield group


def gradient(comm: Communicator, step: int = 0) -> Array:
    return np.random.default_rng([comm.rank, step]).standard_normal(COUNT).astype(np.float32)


def mean(step: int = 0) -> Array:
    both = [np.random.default_rng([rank, step]).standard_normal(COUNT).astype(np.float32) for rank in (0, 1)]
    return (both[0] * np.float32(0.5) + both[1] * np.float32(0.5)).astype(np.float32)


def used(results: list[tuple[list[Codec | None], list[Array]]]) -> list[Codec | None]:
    """What the steps were compressed with, alike on both ranks, as the results are."""
    assert results[0][0] == results[1][0]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(results[0][1], results[1][1], strict=True))
    return results[0][0]


def run(comm: Communicator, reducer: GradientReducer, gradients: list[Array]) -> tuple[list[Codec | None], list[Array]]:
    return [reducer.reduce(bucket, SPANS, step) for step, bucket in enumerate(gradients)], gradients


def test_vectors_and_small_matrices_are_exact_and_large_ones_are_not(two: Ranks) -> None:
    results = two.run(lambda comm: run(comm, GradientReducer(comm, "int8"), [gradient(comm)]))
    assert used(results) == [INT8]
    got = results[0][1][0]
    assert np.array_equal(got[SMALL], mean()[SMALL])
    wrong = np.abs(got - mean())[LARGE]
    assert 0 < wrong.max() < 0.1


def test_ramp_and_switching_say_what_is_used_when(two: Ranks) -> None:
    def ramped(comm: Communicator) -> tuple[list[Codec | None], list[Array]]:
        reducer = GradientReducer(comm, "sign", ramp=Ramp(1, 2, INT8))
        return run(comm, reducer, [gradient(comm, step) for step in range(5)])

    results = two.run(ramped)
    assert used(results) == [None, INT8, INT8, SIGN, SIGN]
    assert np.array_equal(results[0][1][0], mean(0))

    def switched(comm: Communicator) -> tuple[list[Codec | None], list[Array]]:
        reducer = GradientReducer(comm, Switching(INT8, INT4, window=1, change=0.1))
        scales = [8, 4, 4, 4, 1, 1]
        return run(comm, reducer, [gradient(comm) * np.float32(scale) for scale in scales])

    assert used(two.run(switched)) == [INT8, INT8, INT8, INT4, INT4, INT8]


def test_what_is_not_finite_travels_exactly_and_spoils_no_error(two: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    def task(comm: Communicator) -> tuple[list[Codec | None], list[Array]]:
        gradients = [gradient(comm, step) for step in range(3)]
        if comm.rank == 1:
            gradients[1][100] = np.inf
        return run(comm, GradientReducer(comm, "sign"), gradients)

    with caplog.at_level(logging.WARNING, "hccl_py"):
        results = two.run(task)
    assert used(results) == [SIGN, None, SIGN]
    got = results[0][1]
    assert np.isinf(got[1][100]) and np.isfinite(np.delete(got[1], 100)).all()
    assert np.array_equal(np.delete(got[1], 100), np.delete(mean(1), 100))
    assert np.isfinite(got[2]).all()
    assert "step 1: the gradient is not finite" in caplog.text


def test_the_guard_falls_back_to_exact_and_sends_the_errors(two: Ranks) -> None:
    def task(comm: Communicator) -> tuple[list[Codec | None], list[Array]]:
        gradients = [gradient(comm, step) for step in range(4)]
        gradients[1] *= np.float32(1e-3)  # small against the errors that are kept
        reducer = GradientReducer(comm, "sign", guard=Guard(5.0, hold_steps=2, memory=0.0))
        out = run(comm, reducer, gradients)
        return out[0], [*out[1], reducer.feedback.total("send", 1, 4096), reducer.feedback.total("owner", 1, 4096)]

    # The errors differ between ranks by design; what is compared are the results.
    results = two.run(task)
    assert [used_ for used_, _ in results] == [[SIGN, None, None, SIGN]] * 2
    total = sum(results[0][1][:4]).astype(np.float64)[64:4160]
    errors = sum(result[1][4] / 2 + result[1][5] for result in results)
    wanted = mean(0) + mean(1) * 1e-3 + mean(2) + mean(3)
    assert np.abs(total + errors - wanted[64:4160]).max() < 1e-4


@pytest.mark.parametrize(("bandwidth_Bps", "expected"), [(1e6, "int4"), (1e12, None)])
def test_auto_follows_what_is_measured(
    two: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    bandwidth_Bps: float,
    expected: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Speeds are put in place of measured ones: load must not decide."""

    def measured(comm: Communicator, codecs: list[Codec]) -> tuple[Link, dict[Codec, CodecSpeed]]:
        return Link(bandwidth_Bps), dict.fromkeys(codecs, CodecSpeed(4e9, 4e9))

    monkeypatch.setattr("hccl_py.gradient_choice.measure", measured)
    with caplog.at_level(logging.INFO, "hccl_py"):
        results = two.run(lambda comm: run(comm, GradientReducer(comm, "auto"), [gradient(comm)]))
    assert used(results) == [None if expected is None else parse_codec(expected)]
    assert ("exact: " if expected is None else "int4: ") in caplog.text
    if expected is None:
        assert np.array_equal(results[0][1][0], mean())
    strict = two.run(lambda comm: run(comm, GradientReducer(comm, "auto", most_error=0.0), [gradient(comm)]))
    assert used(strict) == [None if expected is None else parse_codec("lossless")]
    assert np.array_equal(strict[0][1][0], mean())


@pytest.mark.parametrize(
    ("said", "expected"), [("compression: 20%", "int4"), ("compression: 1%", "int8"), ("", "lossless")]
)
def test_auto_keeps_to_the_policy_of_the_cluster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: str | None
) -> None:
    file = tmp_path / "cluster.yaml"
    text = (Path(__file__).parents[2] / "cluster_configs" / "single_host_4cpu.yaml").read_text(encoding="utf-8")
    file.write_text(text + (f"\npolicy: {{{said}}}\n" if said else ""), encoding="utf-8")
    put_measured(monkeypatch)
    with Ranks("loopback", 2, {"topology": str(file)}) as group:
        results = group.run(lambda comm: run(comm, GradientReducer(comm, "auto"), [gradient(comm)]))
    assert used(results) == [None if expected is None else parse_codec(expected)]


def test_measured_values_are_agreed(two: Ranks) -> None:
    first, second = two.run(lambda comm: measure(comm, [INT8, parse_codec("topk:0.01")]))
    assert first == second
    assert first[0].bandwidth_Bps > 1e6 and all(speed.encode_Bps > 1e6 for speed in first[1].values())


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_element_types_are_averaged(two: Ranks, dtype: type) -> None:
    def task(comm: Communicator) -> tuple[Array, Array]:
        bucket, single = gradient(comm).astype(dtype), gradient(comm).astype(dtype).astype(np.float32)
        GradientReducer(comm, "int8").reduce(bucket, SPANS, 0)
        GradientReducer(comm, "int8").reduce(single, SPANS, 0)
        return bucket, single

    for bucket, single in two.run(task):
        assert bucket.dtype == dtype and np.array_equal(bucket, single.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_lossless_is_exact_and_for_float32_only(two: Ranks, dtype: type) -> None:
    """What is no float32 would be widened, and larger."""

    def task(comm: Communicator) -> tuple[list[Codec | None], list[Array]]:
        reducer = GradientReducer(comm, "lossless")
        bucket, exact = gradient(comm).astype(dtype), gradient(comm).astype(dtype)
        found = [reducer.reduce(bucket, SPANS, 0)]
        comm.all_reduce(exact, op=ReduceOp.AVG)
        assert reducer.state_dict()["errors"] == {}
        return found, [bucket, exact]

    results = two.run(task)
    assert used(results) == [parse_codec("lossless") if dtype is np.float32 else None]
    assert np.array_equal(*results[0][1])


def test_a_wrong_bucket_is_refused(two: Ranks) -> None:
    reducer = GradientReducer(two.comms[0], "int8")
    with pytest.raises(ConfigError, match="the spans have"):
        reducer.reduce(np.zeros(3, np.float32), SPANS, 0)
    with pytest.raises(ConfigError, match="codecs take"):
        reducer.reduce(np.zeros(COUNT, np.int32), SPANS, 0)
    with pytest.raises(ConfigError, match='do you mean "int8"'):
        GradientReducer(two.comms[0], "int9")
    with pytest.raises(ConfigError, match="give a codec"):
        GradientReducer(two.comms[0], 8)  # type: ignore[arg-type]


def lopsided(comm: Communicator, step: int) -> Array:
    """Of the large parameters, number 1 has almost all of the gradient."""
    values = gradient(comm, step)
    values[4260:] *= np.float32(0.02)
    return values


def put_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(comm: Communicator, codecs: list[Codec]) -> tuple[Link, dict[Codec, CodecSpeed]]:
        return Link(1e6), dict.fromkeys(codecs, CodecSpeed(4e9, 4e9))

    monkeypatch.setattr("hccl_py.gradient_choice.measure", measured)


def test_auto_gives_parameters_codecs_of_their_own_within_one_budget(
    two: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_measured(monkeypatch)

    def task(comm: Communicator, most_error: float) -> tuple[dict[int, Codec | None], list[Array]]:
        reducer = GradientReducer(comm, "auto", most_error=most_error)
        gradients = [lopsided(comm, step) for step in range(LOOK_STEPS + 2)]
        run(comm, reducer, gradients)
        return dict(reducer.auto.layers), gradients

    with caplog.at_level(logging.INFO, "hccl_py"):
        (chosen, got), (others, also) = two.run(lambda comm: task(comm, 0.2))
    assert chosen == others == {1: INT4, 3: SIGN} and "by parameter: " in caplog.text
    assert all(np.array_equal(a, b) for a, b in zip(got, also, strict=True))
    last = len(got) - 1
    wrong = np.abs(got[last] - sum(lopsided(two.comms[rank], last) for rank in (0, 1)) / 2)[4260:]
    assert len(np.unique(np.abs(got[last][4260:]))) < 20 and wrong.max() > 0  # signs and a scale for each block
    assert two.run(lambda comm: task(comm, 0.17))[0][0] in ({}, {1: INT4, 3: SIGN})
    assert two.run(lambda comm: task(comm, 0.0))[0][0] == {}


@pytest.mark.parametrize("compression", ["auto", "sign", "switching"])
@pytest.mark.parametrize("cut", [1, 5, LOOK_STEPS, LOOK_STEPS + 3])
def test_saved_and_resumed_is_the_same_bit_for_bit(
    two: Ranks, monkeypatch: pytest.MonkeyPatch, compression: str, cut: int
) -> None:
    put_measured(monkeypatch)
    steps = LOOK_STEPS + 6

    def make(comm: Communicator) -> GradientReducer:
        what = Switching(INT8, INT4, window=2, change=0.5) if compression == "switching" else compression
        return GradientReducer(comm, what, guard=Guard(1.2, hold_steps=2))

    def task(comm: Communicator) -> tuple[list[Array], list[Array]]:
        gradients = [lopsided(comm, step) * np.float32(0.05 if step in (4, 12) else 1) for step in range(steps)]
        whole, parts = [each.copy() for each in gradients], gradients
        reducer, first, second = make(comm), make(comm), make(comm)
        for step, bucket in enumerate(whole):
            reducer.reduce(bucket, SPANS, step)
        for step in range(cut):
            first.reduce(parts[step], SPANS, step)
        second.load_state_dict(first.state_dict())
        for step in range(cut, steps):
            second.reduce(parts[step], SPANS, step)
        return whole, parts

    for whole, parts in two.run(task):
        assert all(np.array_equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_states_of_another_kind_are_refused_and_a_world_may_change(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    put_measured(monkeypatch)

    def task(comm: Communicator) -> dict[str, object]:
        reducer = GradientReducer(comm, "auto")
        run(comm, reducer, [gradient(comm, step) for step in range(3)])
        return reducer.state_dict()

    states = two.run(task)
    with pytest.raises(ConfigError, match="auto is not in use"):
        GradientReducer(two.comms[0], "int8").load_state_dict(states[0])
    with pytest.raises(ConfigError, match="lacks"):
        GradientReducer(two.comms[0], "int8").load_states([{"errors": {}}])
    with Ranks("loopback", 3) as three:

        def go_on(comm: Communicator) -> Array:
            reducer = GradientReducer(comm, "auto")
            reducer.load_states(states)
            bucket = np.zeros(COUNT, np.float32)
            reducer.reduce(bucket, SPANS, 3)
            left = reducer.feedback.total("send", 1, 4096) / 3 + reducer.feedback.total("owner", 1, 4096)
            return np.concatenate([bucket[64:4160], left])

        found = three.run(go_on)
    got = found[0][:4096] + sum(each[4096:] for each in found)
    errors = [state["errors"] for state in states]
    wanted = sum(each["send/1/0"] for each in errors) / 2  # type: ignore[index]
    for each in errors:
        for key, values in each.items():  # type: ignore[attr-defined]
            stage, parameter, offset = key.split("/")
            if (stage, parameter) == ("owner", "1"):
                wanted[int(offset) : int(offset) + len(values)] += values
    assert np.abs(got - wanted).max() < 1e-5 and np.abs(wanted).max() > 0.1
