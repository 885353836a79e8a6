"""The policy: pure functions, so a table of cases; and the errors it expects are those that codecs make."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.compression.codec import Codec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import Draw
from hccl_py.compression.policy import (
    CodecSpeed,
    Guard,
    Layer,
    Link,
    Ramp,
    Switching,
    choose,
    choose_per_layer,
    compressed_s,
    compressible,
    exact_s,
    expected_error,
)
from hccl_py.core.errors import ConfigError

MIB = 1 << 20
SPEED = CodecSpeed(4e9, 4e9)
INT8, INT4, BF16, SIGN = (parse_codec(text) for text in ("int8", "int4", "bf16", "sign"))
SPEEDS = {codec: SPEED for codec in (INT8, INT4, BF16)}


def test_slow_links_compress_and_fast_ones_do_not() -> None:
    slow = choose(16 * MIB, 2, Link(25e6), SPEEDS, most_error=0.02)
    assert slow.codec == INT8 and slow.compressed_s * 3 < slow.exact_s
    assert "int8" in slow.why and "25 MB/s" in slow.why and "16.0 MiB" in slow.why
    fast = choose(16 * MIB, 2, Link(10e9), SPEEDS, most_error=0.02)
    assert fast.codec is None and "does not pay" in fast.why


def test_the_budget_decides_which_codecs_are_taken() -> None:
    link = Link(25e6)
    assert choose(MIB, 2, link, SPEEDS, most_error=0.2).codec == INT4
    assert choose(MIB, 2, link, SPEEDS, most_error=0.002).codec == BF16
    none = choose(MIB, 2, link, SPEEDS, most_error=0.0)
    assert none.codec is None and "no codec has an error" in none.why


def test_a_gain_that_is_too_small_is_left_alone() -> None:
    link = Link(1e9)
    gain = exact_s(MIB, 4, link) / compressed_s(INT8, MIB, 4, link, SPEED)
    assert gain > 1
    assert choose(MIB, 4, link, {INT8: SPEED}, 1.0, least_gain=gain * 0.99).codec == INT8
    assert choose(MIB, 4, link, {INT8: SPEED}, 1.0, least_gain=gain * 1.01).codec is None


LOSSLESS = parse_codec("lossless")


def test_without_an_error_budget_the_lossless_codec_is_taken_where_it_is_faster() -> None:
    speeds = {codec: SPEED for codec in (INT8, LOSSLESS)}
    slow = choose(16 * MIB, 2, Link(118e6), speeds, most_error=0.0)
    assert slow.codec == LOSSLESS and 1.03 < slow.exact_s / slow.compressed_s < 1.17
    assert choose(16 * MIB, 2, Link(2e9), speeds, most_error=0.0).codec is None
    assert choose(16 * MIB, 2, Link(118e6), speeds, most_error=0.02).codec == INT8
    layers = choose_per_layer(LAYERS, [INT8, LOSSLESS], 0.0)
    assert layers == {0: LOSSLESS, 1: LOSSLESS, 2: None, 3: None}


def test_latency_and_ranks_count() -> None:
    assert exact_s(MIB, 1, Link(1e9)) == 0 < compressed_s(INT8, MIB, 1, Link(1e9), SPEED)
    assert exact_s(0, 4, Link(1e9, 1e-3)) == pytest.approx(2e-3)
    topk = parse_codec("topk:0.01")
    few, many = (compressed_s(topk, MIB, n, Link(1e9, 1e-3), SPEED) for n in (2, 9))
    assert many - few == pytest.approx(7 * 0.02 * MIB / 1e9, rel=1e-6)


@pytest.mark.parametrize(
    "text", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "sign", "topk:0.01", "lossless"]
)
def test_expected_errors_are_those_of_normal_gradients(text: str) -> None:
    codec = parse_codec(text)
    values = np.random.default_rng(0).standard_normal(1 << 14).astype(np.float32)
    lost = codec.decode(codec.encode(values, Draw()), len(values)) - values
    measured = float(np.sqrt(np.mean(lost.astype(np.float64) ** 2)))
    assert measured == pytest.approx(expected_error(codec), rel=0.15)


LAYERS = [Layer(0, 1 << 20, 2, 1.0), Layer(1, 1 << 20, 2, 0.01), Layer(2, 512, 1, 1.0), Layer(3, 900, 2, 1.0)]


def test_vectors_and_small_parameters_stay_exact() -> None:
    chosen = choose_per_layer(LAYERS, [INT8, SIGN], 100.0)
    assert chosen == {0: SIGN, 1: SIGN, 2: None, 3: None}
    assert not compressible(1 << 20, 1) and not compressible(1000, 2) and compressible(1024, 2)


def test_the_budget_goes_where_it_saves_most() -> None:
    chosen = choose_per_layer(LAYERS, [INT8, SIGN], 0.008)
    assert chosen[0] == INT8 or chosen[0] is None
    assert chosen[1] == SIGN
    assert choose_per_layer(LAYERS, [INT8, SIGN], 0.0) == dict.fromkeys(range(4))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 1 << 22), min_size=1, max_size=6),
    norms=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=6),
    budget=st.floats(0, 1),
)
def test_the_budget_is_kept(counts: list[int], norms: list[float], budget: float) -> None:
    layers = [Layer(k, count, 2, norms[k]) for k, count in enumerate(counts)]
    chosen = choose_per_layer(layers, [BF16, INT8, INT4, SIGN], budget)
    wrong = math.sqrt(sum((expected_error(chosen[layer.parameter]) * layer.norm) ** 2 for layer in layers))
    assert wrong <= budget * math.sqrt(sum(layer.norm**2 for layer in layers)) * (1 + 1e-9)


def test_ramp_is_exact_then_gentle_then_as_wanted() -> None:
    ramp = Ramp(2, 3, INT8)
    assert [ramp.codec(SIGN, step) for step in range(7)] == [None, None, INT8, INT8, INT8, SIGN, SIGN]
    assert Ramp().codec(SIGN, 0) == SIGN


def regimes(norms: list[float], **options: float) -> list[Codec]:
    switching = Switching(INT8, INT4, **options)  # type: ignore[arg-type]
    return [switching.observe(norm) for norm in norms]


def test_precision_follows_the_gradient() -> None:
    norms = [8.0] * 2 + [4.0] * 2 + [4.1] * 2 + [4.0] * 2 + [9.0] * 2 + [9.0] * 2
    found = regimes(norms, window=2, change=0.2)
    assert found[1::2] == [INT8, INT8, INT4, INT4, INT8, INT4]
    assert found[0::2] == [INT8, INT8, INT8, INT4, INT4, INT8]  # nothing changes within a window
    assert regimes(norms, window=2, change=0.01)[1::2][2] == INT8
    assert regimes([1.0, math.nan, 1.0, 1.0], window=1) == [INT8, INT8, INT8, INT4]


def test_the_guard_sees_what_is_not_finite_and_lets_go() -> None:
    guard = Guard(2.0, hold_steps=3, memory=0.0)
    assert guard.look(1.0, 3.9, 0) == ""
    for bad in (math.nan, math.inf):
        assert "not finite" in guard.look(bad, 0.0, 1)
    assert guard.look(1.0, 0.0, 1) == ""
    assert "errors are 3 times" in guard.look(1.0, 9.0, 2)
    held = [bool(guard.look(1.0, 0.0, step, what)) for step in (2, 3, 4, 5, 6) for what in ("one", "another")]
    assert held == [True] * 6 + [False] * 4
    assert guard.look(0.0, 5.0, 7) == ""
    assert guard.look(1.0, math.nan, 8)


def test_regimes_and_the_guard_are_saved() -> None:
    norms = [8.0, 8.1, 8.0, 4.0, 4.0, 4.1, 9.0]
    for cut in range(len(norms)):
        first, second = Switching(INT8, INT4, window=2), Switching(INT8, INT4, window=2)
        whole = [first.observe(norm) for norm in norms[:cut]]
        second.load_state_dict(first.state_dict())
        assert second.codec == first.codec
        assert [second.observe(norm) for norm in norms[cut:]] == [first.observe(norm) for norm in norms[cut:]], whole
    guard, resumed = Guard(2.0, 3), Guard(2.0, 3)
    assert guard.look(1.0, 9.0, 2, "a")
    resumed.load_state_dict(guard.state_dict())
    for step in (3, 4, 5):
        assert resumed.look(0.2, 1.0, step, "a") == guard.look(0.2, 1.0, step, "a")


def test_the_guard_compares_with_what_a_gradient_usually_is() -> None:
    steady, nervous = Guard(2.0, memory=0.9), Guard(2.0, memory=0.0)
    for guard in (steady, nervous):
        assert guard.look(1.0, 1.0, 0, "a") == ""
    assert steady.look(0.01, 1.0, 1, "a") == "" and nervous.look(0.01, 1.0, 1, "a")
    reasons = [steady.look(0.01, 1.0, step, "a") for step in range(2, 32)]
    assert not reasons[0] and reasons[-1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Link(0.0), lambda: Link(math.nan), lambda: Ramp(-1), lambda: Ramp(0, 1), lambda: Guard(0.0),
        lambda: Guard(1.0, 0), lambda: Guard(memory=1.0),
        lambda: Switching(INT8, INT4, 0), lambda: Switching(INT8, INT4, 5, 0.0),
        lambda: choose_per_layer(LAYERS, [INT8], math.nan),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        make()
