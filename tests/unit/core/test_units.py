"""Units: what is read, what is refused and with which words, and that formatting loses nothing when asked not to."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8B", 8),
        ("64M", 64 * 2**20),
        ("64MiB", 64 * 2**20),
        ("64MB", 64 * 10**6),
        ("1K", 1024),
        ("1KB", 1000),
        ("1.5KiB", 1536),
        ("2G", 2**31),
        ("1T", 2**40),
        (" 3 KiB ", 3072),
        ("0B", 0),
    ],
)
def test_bytes_are_binary_unless_they_end_in_a_decimal_unit(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("8", 8), ("64m", 2**26), ("1g", 2**30), ("2k", 2048), (8, 8), ("0", 0)]
)
def test_sizes_are_written_as_in_nccl_tests(text: object, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5us", 1.5e-6),
        ("20ns", 20e-9),
        ("3ms", 3e-3),
        ("2s", 2.0),
        ("0s", 0.0),
        ("5\u00b5s", 5e-6),
        ("1e-1ps", 1e-13),
    ],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "bandwidth_Bps"),
    [
        ("25GB/s", 25e9),
        ("25GiB/s", 25 * 2**30),
        ("100Gbit/s", 12.5e9),
        ("200Mbit/s", 25e6),
        ("8bit/s", 1.0),
        ("1.5 TB/s", 1.5e12),
    ],
)
def test_bandwidth_in_bytes_and_in_bits(text: str, bandwidth_Bps: float) -> None:
    assert parse_bandwidth(text) == bandwidth_Bps


@pytest.mark.parametrize(
    ("parse", "bad", "says"),
    [
        (parse_bytes, "64", "has no unit"),
        (parse_bytes, 64, "has no unit"),
        (parse_bytes, "64m", "'m' is not a unit"),
        (parse_bytes, "0.3B", "not a whole number"),
        (parse_bytes, "1e30B", r"more than 2\*\*63"),
        (parse_size, "", "not a size"),
        (parse_size, "-8", "not a size"),
        (parse_size, "8.5", "not a whole number"),
        (parse_size, True, "not a size"),
        (parse_size, "64MiB/s", "is not a unit"),
        (parse_seconds, "5", "has no unit"),
        (parse_seconds, 5.0, "has no unit"),
        (parse_seconds, "5 m", "'m' is not a unit"),
        (parse_seconds, "-5us", "not a time"),
        (parse_seconds, "1e999s", "too large"),
        (parse_bandwidth, "25", "has no unit"),
        (parse_bandwidth, 25, "has no unit"),
        (parse_bandwidth, "25GB", "'GB' is not a unit"),
        (parse_bandwidth, "25Gb/s", "'Gb/s' is not a unit"),
        (parse_bandwidth, "25Gbps", "'Gbps' is not a unit"),
        (parse_bandwidth, "0GB/s", "above zero"),
        (parse_bandwidth, "nanGB/s", "not a bandwidth"),
        (parse_bandwidth, "1e9999GB/s", "not a unit"),
        (parse_bandwidth, None, "not a bandwidth"),
        (parse_bandwidth, ["25GB/s"], "not a bandwidth"),
    ],
)
def test_nonsense_is_refused_with_the_accepted_forms(parse: object, bad: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        parse(bad)  # type: ignore[operator]
    assert "above zero" in str(error.value) or "write" in str(error.value)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0B"),
        (8, "8B"),
        (1000, "1000B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (2**26, "64MiB"),
        (2**26 + 1, "67108865B"),
        (3 * 2**40, "3TiB"),
    ],
)
def test_bytes_are_formatted_exactly(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
    assert parse_bytes(text) == num_bytes


def test_figures_for_people_have_four_digits() -> None:
    assert format_seconds(1.23456e-6) == "1.235us"
    assert format_seconds(0.0) == "0s"
    assert format_seconds(90.0) == "90s"
    assert format_bandwidth(12.5e9) == "12.5GB/s"
    assert format_bandwidth(123456.0) == "123.5KB/s"
    assert format_bandwidth(0.25) == "0.25B/s"


@given(st.integers(0, 2**63 - 1))
def test_formatted_bytes_read_back(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == num_bytes


@given(st.floats(0, 1e300, allow_subnormal=True))
def test_exact_seconds_read_back(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds, exact=True)) == seconds


@given(st.floats(0, 1e300, exclude_min=True, allow_subnormal=True))
def test_exact_bandwidth_reads_back(bandwidth_Bps: float) -> None:
    assert parse_bandwidth(format_bandwidth(bandwidth_Bps, exact=True)) == bandwidth_Bps


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_size, parse_seconds, parse_bandwidth):
        with contextlib.suppress(ConfigError):
            assert parse(text) >= 0


def test_numbers_of_numpy_are_numbers() -> None:
    assert format_seconds(np.float64(0.25)) == format_seconds(0.25)
    assert format_seconds(np.float32(0.25)) == format_seconds(0.25)
