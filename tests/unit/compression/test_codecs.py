"""Every codec against its NumPy reference, bit for bit, and the reference against what it promises."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py import _native
from hccl_py.buffers import describe
from hccl_py.codecs import decode, decode_lossless, encode, encode_values, native_sums, whole
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, Codec, CodecId
from hccl_py.compression.codecs import builtin_codecs, codec_of, parse_codec
from hccl_py.compression.counter import Draw, bits, units
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.frame import check_sums
from hccl_py.compression.powersgd import orthonormal
from hccl_py.core.errors import ConfigError, TransportError
from hccl_py.core.types import DType

TEXTS = [
    "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "sign", "topk:0.05", "topk:1", "randomk:0.05",
    "threshold:0.7", "blocksparse:0.3", "powersgd:2", "lossless",
]  # fmt: skip
BLOCK_TEXTS = TEXTS[:7]
ISAS = ["portable", "avx2", "avx512"]
DTYPES = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]
DRAW = Draw(seed=3, parameter=5, step=7, rank=2)


def isas() -> list[str]:
    return ISAS[: ISAS.index(_native.isa()) + 1]


def special() -> dict[str, Array]:
    """Arrays that codecs trip over, float32, of odd sizes."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(777).astype(np.float32)
    odd = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}
    found = {"normal": normal, "huge": normal * np.float32(5e37), "denormal": normal * np.float32(1e-41)}
    found |= {"mixed": normal * np.logspace(-44, 38, 777).astype(np.float32), "negative": -np.abs(normal)}
    found |= {"zero": np.zeros(300, np.float32), "-zero": -np.zeros(300, np.float32)}
    found |= {"equal": np.full(515, 0.7, np.float32), "most": np.full(300, np.finfo(np.float32).max)}
    found |= {"ties": np.repeat(np.float32([1, -1, 0.5]), 200), "tiny": np.full(9, 2.0**-100, np.float32)}
    for name, value in odd.items():
        array = normal.copy()
        array[[0, 300]] = value
        found[name] = array
    found |= {f"size {n}": normal[:n].copy() for n in (0, 1, 2, 7, 255, 256, 257, 511, 512)}
    return {name: array.astype(np.float32) for name, array in found.items()}


SPECIAL = special()
floats = st.lists(
    st.one_of(
        st.floats(width=32), st.floats(-1, 1, width=32), st.sampled_from([0.0, -0.0, float("inf"), float("nan"), 1e-42])
    ),
    max_size=700,
).map(lambda values: np.array(values, np.float32))


def native_code(codec: Codec, values: Array, isa: str, offset: int) -> Array:
    return encode_values(codec, values, DRAW, offset, isa)


def check_native(codec: Codec, values: Array, offset: int = 0) -> None:
    expected = codec.encode(values, DRAW, offset)
    for isa in isas() if codec.exact or isinstance(codec, BlockCodec) else isas()[-1:]:
        code = native_code(codec, values, isa, offset)
        assert code.tobytes() == expected.tobytes(), (codec, isa)
        if isinstance(codec, BlockCodec):
            out, total = np.empty_like(values), np.ones_like(values)
            whole(codec, len(values)).decode(code, describe(out, "out"), isa=isa)
            assert_same(out, codec.decode(code, len(values)))
            whole(codec, len(values)).decode(code, describe(total, "total"), add=True, isa=isa)
            wanted = np.ones_like(values)
            codec.decode_add(code, wanted)
            assert_same(total, wanted)
        if codec.exact:
            out, total = np.empty_like(values), np.ones_like(values)
            decode_lossless(code, out, isa=isa)
            assert out.tobytes() == values.tobytes() == codec.decode(code, len(values)).tobytes()
            decode_lossless(code, total, add=True, isa=isa)
            with np.errstate(all="ignore"):
                assert_same(total, np.ones_like(values) + values)


def assert_same(a: Array, b: Array) -> None:
    """Equal bits; any NaN is as good as another."""
    nan = np.isnan(a)
    assert (nan == np.isnan(b)).all()
    assert np.where(nan, 0, a).tobytes() == np.where(nan, 0, b).tobytes()


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("text", TEXTS)
def test_native_code_is_that_of_the_reference(text: str, name: str) -> None:
    check_native(parse_codec(text), SPECIAL[name])


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=12, deadline=None)
@given(values=floats, offset=st.sampled_from([0, 256, 1 << 20, (1 << 32) - 256, 1 << 33]))
def test_any_floats_have_the_code_of_the_reference(text: str, values: Array, offset: int) -> None:
    check_native(parse_codec(text), values, offset)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=10, deadline=None)
@given(values=floats)
def test_errors_are_bounded_and_what_is_not_finite_is_seen(text: str, values: Array) -> None:
    codec = parse_codec(text)
    check_bound(codec, values)


def check_bound(codec: Codec, values: Array) -> None:
    code = codec.encode(values, DRAW)
    assert len(code) <= codec.wire_bytes(len(values))
    out = codec.decode(code, len(values), DRAW) if codec.id is CodecId.RANDOMK else codec.decode(code, len(values))  # type: ignore[call-arg]
    assert out.dtype == np.float32 and out.shape == values.shape
    bound = codec.error_bound(values)
    with np.errstate(all="ignore"):
        wrong = np.abs(out.astype(np.float64) - values.astype(np.float64))
    assert ((wrong <= bound) | np.isinf(bound)).all()
    if codec.id not in (CodecId.RANDOMK, CodecId.POWERSGD):
        assert np.isfinite(values).all() or not np.isfinite(out).all()


@pytest.mark.parametrize("name", [name for name in SPECIAL if name not in ("huge", "most", "mixed")])
@pytest.mark.parametrize("text", TEXTS)
def test_bounds_hold_on_special_arrays(text: str, name: str) -> None:
    check_bound(parse_codec(text), SPECIAL[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("text", [text for text in TEXTS if text != "lossless"])
def test_every_element_type_is_widened_and_narrowed(text: str, dtype: DType) -> None:
    codec = parse_codec(text)
    kind = {DType.BFLOAT16: ml_dtypes.bfloat16, DType.FLOAT16: np.float16, DType.FLOAT64: np.float64}
    with np.errstate(over="ignore"):
        array = SPECIAL["mixed"].astype(kind.get(dtype, np.float32))
    codes = array.view(np.uint16) if array.itemsize == 2 else array
    values = np.ascontiguousarray(widen(codes, dtype))
    frame = encode(codec, array, DRAW)
    assert frame[72:].tobytes() == codec.encode(values, DRAW).tobytes()
    back = codec.decode(frame[72:], len(values), *([DRAW] if codec.id is CodecId.RANDOMK else []))
    with np.errstate(over="ignore"):
        wanted = narrow(back, dtype)
    got = decode(frame, DRAW)
    assert_same(widen(got, dtype), widen(wanted, dtype))


words = st.lists(st.integers(0, (1 << 32) - 1), max_size=600).map(lambda values: np.array(values, np.uint32))
# Exponents near each other, with a few that are far: what the code is made for.
near = st.builds(
    lambda seed, width, count, far: _near(seed, width, count, far),
    st.integers(0, 99), st.integers(0, 8), st.integers(0, 700), st.integers(0, 40),
)  # fmt: skip


def _near(seed: int, width: int, count: int, far: int) -> Array:
    rng = np.random.default_rng(seed)
    exponents = 255 - rng.integers(0, 1 << width, count)
    exponents[rng.integers(0, count, far if count else 0)] = rng.integers(0, 256, far if count else 0)
    mantissas = rng.integers(0, 1 << 23, count) & rng.choice([0x7FFFFF, 0x7F0000, 0])
    return (exponents << 23 | mantissas | rng.integers(0, 2) << 31).astype(np.uint32)


@settings(max_examples=60, deadline=None)
@given(bits=st.one_of(words, near))
def test_lossless_keeps_all_bits_and_is_never_much_larger(bits: Array) -> None:
    """Of float32, and as upper halves of words those of float16 and bfloat16: NaN with what they carry, too."""
    codec = parse_codec("lossless")
    check_native(codec, bits.view(np.float32))
    halves = (bits >> np.uint32(16)).astype(np.uint16)
    for array in (bits.view(np.float32), halves.view(np.float16), halves.view(ml_dtypes.bfloat16)):
        frame = encode(codec, array)
        assert decode(frame).tobytes() == array.tobytes()
        assert len(frame) - 72 <= array.nbytes + 3 * -(-len(array) // 256)


def test_lossless_makes_floats_smaller() -> None:
    """26.9 to 27.7 bits of normal values; a block of zeros has 3 bytes; bfloat16 of them is under 12 bits."""
    codec = parse_codec("lossless")
    normal = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    share = len(encode_values(codec, normal, DRAW)) / normal.size * 8
    assert share == pytest.approx(codec.bits_per_element, abs=0.4)
    assert len(encode_values(codec, np.zeros(1 << 16, np.float32), DRAW)) == 3 * 256
    assert len(encode(codec, normal.astype(ml_dtypes.bfloat16))) * 8 < 12 * normal.size
    relu = np.where(normal > 0, normal, np.float32(0))
    assert len(encode_values(codec, relu, DRAW)) < 0.96 * relu.nbytes


def test_lossless_refuses_float64() -> None:
    with pytest.raises(ConfigError, match="float64"):
        encode("lossless", np.zeros(5))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_lossless_code_that_lies_is_refused_or_has_its_size(data: st.DataObject) -> None:
    """Without check sums. Native code and reference refuse the same, and give the same; nothing is read beyond."""
    codec = parse_codec("lossless")
    values = _near(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 8)), data.draw(st.integers(1, 600)), 9)
    code = encode_values(codec, values.view(np.float32), DRAW).copy()
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.one_of(st.integers(0, len(code) - 1), st.integers(0, 3)).filter(lambda p: p < len(code)))
        code[place] = data.draw(st.integers(0, 255))
    code = code[: len(code) - data.draw(st.sampled_from([0, 0, 1, 5, 300]))].copy()
    count = max(0, len(values) + data.draw(st.sampled_from([0, 0, -1, 1, 256])))
    try:
        wanted = codec.decode(code, count)
    except TransportError:
        wanted = None
    for isa in isas():
        out = np.zeros(count, np.float32)
        if wanted is None:
            with pytest.raises(TransportError):
                decode_lossless(code, out, isa=isa)
        else:
            decode_lossless(code, out, isa=isa)
            assert out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("text", BLOCK_TEXTS)
def test_errors_are_fed_back_in_one_pass(text: str) -> None:
    codec = parse_codec(text)
    assert isinstance(codec, BlockCodec)
    for isa in isas():
        for name in ("normal", "nan", "size 257", "size 1"):
            values = SPECIAL[name]
            memory = (values[::-1] * np.float32(0.1)).copy()
            corrected = values * np.float32(0.25) + memory
            code = np.empty(codec.wire_bytes(len(values)), np.uint8)
            whole(codec, len(values), key=DRAW.key).encode(describe(values, "values"), code, 0.25, memory, isa)
            assert code.tobytes() == codec.encode(corrected, DRAW).tobytes()
            lost = corrected - codec.decode(code, len(values))
            assert_same(memory, np.where(np.isfinite(lost), lost, np.float32(0)))


@pytest.mark.parametrize(("text", "limit"), [("int8", 127), ("int4", 7)])
def test_stochastic_rounding_is_unbiased(text: str, limit: int) -> None:
    """4,000 draws of 256 elements: each mean within 5 deviations; one step's deviation is at most half of it."""
    codec = parse_codec(text)
    values = np.linspace(-1, 1, 256).astype(np.float32)
    n = 4000
    total = np.zeros(256)
    for step in range(n):
        total += codec.decode(encode_values(codec, values, Draw(1, 2, step, 0)), 256)
    allowed = 5 * 0.5 / limit / np.sqrt(n) + 1e-6
    assert np.abs(total / n - values).max() < allowed
    assert np.abs(total / n - values).mean() < allowed / 4


def test_random_numbers_are_even_and_depend_on_everything() -> None:
    numbers = units(DRAW.key, 0, 1 << 16)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, 64, (0, 1))[0]
    assert ((counts - 1024) ** 2 / 1024).sum() < 63 + 6 * np.sqrt(2 * 63)
    neighbours = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(neighbours) < 6 / np.sqrt(1 << 16)
    keys = {Draw(*fields).key for fields in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))}
    assert len(keys) == 5 and len({int(bits(key, 0, 1)[0]) for key in keys}) == 5
    assert bits(9, 512, 300).tolist() == bits(9, 0, 812)[512:].tolist()


def test_a_random_number_belongs_to_its_place_in_the_parameter() -> None:
    values = SPECIAL["normal"]
    for text in BLOCK_TEXTS:
        codec = parse_codec(text)
        at = codec.wire_bytes(512)
        assert codec.encode(values, DRAW)[at:].tobytes() == codec.encode(values[512:], DRAW, 512).tobytes()


def test_top_k_keeps_the_first_of_equals_and_prefers_nan() -> None:
    values = np.float32([1, 2, np.nan, 2, -2, 2, np.inf, 0])
    codec = parse_codec("topk:0.5")
    assert np.flatnonzero(codec.decode(codec.encode(values, DRAW), 8)).tolist() == [1, 2, 3, 6]


def test_small_floats_are_those_of_ml_dtypes() -> None:
    for text, kind in (("fp8_e4m3", ml_dtypes.float8_e4m3fn), ("fp8_e5m2", ml_dtypes.float8_e5m2)):
        codec = parse_codec(text)
        values = np.random.default_rng(0).standard_normal(256).astype(np.float32)
        shift = float(codec.encode(values, DRAW)[0])
        wanted = (values * np.float32(2.0**shift)).astype(kind).astype(np.float32) * np.float32(2.0**-shift)
        assert codec.decode(codec.encode(values, DRAW), 256).tolist() == wanted.tolist()


def test_power_sgd_is_exact_on_a_matrix_of_its_rank() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.standard_normal((30, 2)) @ rng.standard_normal((2, 30))).astype(np.float32)
    codec = parse_codec("powersgd:2")
    out = codec.decode(codec.encode(matrix.reshape(-1), DRAW), 900)
    assert np.abs(out - matrix.reshape(-1)).max() < 1e-4 * np.abs(matrix).max()
    p = orthonormal(rng.standard_normal((50, 4)).astype(np.float32))
    assert np.abs(p.T @ p - np.eye(4)).max() < 1e-5
    assert not orthonormal(np.ones((5, 2), np.float32))[:, 1].any()


@settings(max_examples=20, deadline=None)
@given(data=st.binary(max_size=300))
def test_check_sums_are_those_of_the_reference(data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    assert native_sums(array) == check_sums(array)


def test_scatter_add_refuses_an_index_out_of_bounds_and_changes_nothing() -> None:
    out, indices, values = np.zeros(4, np.float32), np.uint32([1, 4]), np.ones(2, np.float32)
    assert not _native.scatter_add(out.ctypes.data, 4, indices.ctypes.data, values.ctypes.data, 2)
    assert not out.any()
    indices[1] = 3
    assert _native.scatter_add(out.ctypes.data, 4, indices.ctypes.data, values.ctypes.data, 2)
    assert out.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_number_name_the_codec_again(text: str) -> None:
    codec = parse_codec(text)
    assert codec == parse_codec(codec.text) == codec_of(codec.id, codec.number)
    assert hash(codec) == hash(parse_codec(codec.text)) and codec.text in repr(codec)


def test_ids_are_those_of_the_codecs() -> None:
    made = {name: (maker(0.5) if name == "threshold" else maker()).id for name, maker in builtin_codecs().items()}
    assert made == {id.name.lower(): id for id in CodecId}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int9", 'do you mean "int8"'), ("int8:3", "takes no number"), ("topk:much", "not a number"),
        ("topk:0", "fraction"), ("randomk:2", "fraction"), ("threshold", "say which"), ("threshold:-1", "positive"),
        ("powersgd:1.5", "whole"), ("blocksparse:nan", "fraction"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_codec(text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_code_of_the_wrong_size_is_refused(text: str) -> None:
    codec = parse_codec(text)
    with pytest.raises(TransportError):
        codec.decode(codec.encode(SPECIAL["normal"], DRAW)[:-3], 777)


@pytest.mark.parametrize(
    "data", [np.zeros(3, np.int32), np.zeros(8, np.float32)[::2], [1.0, 2.0]], ids=["type", "strided", "list"]
)
def test_arrays_that_codecs_do_not_take_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError):
        encode("int8", data)
