"""Units: the only place where "25GB/s" and 25e9 meet.

Inside hccl_py a quantity is a plain number of bytes, seconds or bytes per second and its name says so (``_bytes``,
``_s``, ``_Bps``). Text with units exists in files, on the command line and in reports only. A number that needs a unit
is refused without one: topology files that meant 2.5 GT/s and said 2.5 have cost others days.

KB, MB, ... are powers of 1000; KiB, MiB, ... and the bare letters K, M, G, T are powers of 1024.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from hccl_py.core.errors import ConfigError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*(.*?)\s*", re.DOTALL)

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_BYTES: dict[str, Decimal] = {f"{p}B": Decimal(f) for p, f in {**_DECIMAL, **_BINARY}.items()}
_BYTES |= {p[0]: Decimal(f) for p, f in _BINARY.items()}
_SECONDS = {
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
    "ps": Decimal("1e-12"),
}
_BANDWIDTH: dict[str, Decimal] = {f"{p}B/s": Decimal(f) for p, f in {**_DECIMAL, **_BINARY}.items()}
_BANDWIDTH |= {f"{p}bit/s": Decimal(f) / 8 for p, f in _DECIMAL.items()}

_BYTES_FORMS = '"8B", "64M" or "64MiB" (x 1024 x 1024), "64MB" (x 1000 x 1000); prefixes K, M, G, T'
_SECONDS_FORMS = '"1.5us", "20ns", "3ms", "2s"'
_BANDWIDTH_FORMS = '"25GB/s", "25GiB/s", "100Gbit/s", "200Mbit/s"; prefixes K, M, G, T'
_SHARE_FORMS = '"50%", "12.5%"'
_RATIO = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*:\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*")
_SIZE_FORMS = '"8", "64M", "1G" (powers of 1024), "64MiB", "64MB"'
_MAX_BYTES = 2**63 - 1


def parse_bytes(text: object) -> int:
    """Bytes from text such as ``"64M"``, ``"64MiB"`` (both 2**26) or ``"64MB"`` (64 * 10**6).

    Raises:
        ConfigError: no unit, an unknown unit, not a whole number of bytes, or above 2**63 - 1.
    """
    return _whole_bytes(text, _parse(text, _BYTES, "a number of bytes", _BYTES_FORMS), _BYTES_FORMS)


def parse_size(text: object) -> int:
    """Bytes as nccl-tests writes them: ``"8"``, ``"64M"``, ``"1g"`` (powers of 1024); also what `parse_bytes` takes.

    Raises:
        ConfigError: as `parse_bytes`, but a bare number is a number of bytes.
    """
    units = {**_BYTES, "": Decimal(1), **{p[0].lower(): Decimal(f) for p, f in _BINARY.items()}}
    text = str(text) if isinstance(text, int) and not isinstance(text, bool) else text
    return _whole_bytes(text, _parse(text, units, "a size", _SIZE_FORMS), _SIZE_FORMS)


def parse_seconds(text: object) -> float:
    """Seconds from text such as ``"1.5us"``. Zero is allowed.

    Raises:
        ConfigError: no unit, an unknown unit, or not finite.
    """
    return _finite(text, _parse(text, _SECONDS, "a time", _SECONDS_FORMS), "a time", _SECONDS_FORMS)


def parse_bandwidth(text: object) -> float:
    """Bytes per second from text such as ``"25GB/s"`` (25e9) or ``"100Gbit/s"`` (12.5e9).

    Raises:
        ConfigError: no unit, an unknown unit, zero, or not finite.
    """
    value = _finite(text, _parse(text, _BANDWIDTH, "a bandwidth", _BANDWIDTH_FORMS), "a bandwidth", _BANDWIDTH_FORMS)
    if value <= 0:
        raise ConfigError(f"{text!r}: a bandwidth must be above zero (leave the link out if there is none)")
    return value


def parse_share(text: object) -> float:
    """A share from text such as ``"50%"`` (0.5); above 0% and at most 100%.

    Raises:
        ConfigError: no unit, another unit, or out of range.
    """
    value = _finite(text, _parse(text, {"%": Decimal("0.01")}, "a share", _SHARE_FORMS), "a share", _SHARE_FORMS)
    if not 0 < value <= 1:
        raise ConfigError(f"{text!r}: a share is above 0% and at most 100%")
    return value


def parse_ratio(text: object) -> float:
    """A ratio from text such as ``"2:1"`` (2.0) or ``"3:2"`` (1.5).

    Raises:
        ConfigError: not two numbers with a colon between them, or one of them zero.
    """
    match = _RATIO.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f'{text!r} is not a ratio: write "2:1", "1:1" or "3:2"')
    if not Decimal(match[1]) or not Decimal(match[2]):
        raise ConfigError(f"{text!r}: neither side of a ratio may be zero")
    return float(Decimal(match[1]) / Decimal(match[2]))


def format_bytes(num_bytes: int) -> str:
    """Text for a number of bytes: ``"64MiB"`` where that is exact or has at most one decimal, else ``"1000B"``."""
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        tenths, rest = divmod(num_bytes * 10, _BINARY[prefix])
        if tenths >= 10 and rest == 0:
            return f"{tenths // 10}.{tenths % 10}{prefix}B" if tenths % 10 else f"{tenths // 10}{prefix}B"
    return f"{num_bytes}B"


def format_seconds(seconds: float, *, exact: bool = False) -> str:
    """Text for a time, such as ``"1.5us"``: four digits for people, or all (``exact``: it reads back equal)."""
    return _format(seconds, _SECONDS, ("s", "ms", "us", "ns", "ps"), exact)


def format_bandwidth(bandwidth_Bps: float, *, exact: bool = False) -> str:
    """Text for a bandwidth, such as ``"12.5GB/s"``: four digits for people, or all (``exact``)."""
    return _format(bandwidth_Bps, _BANDWIDTH, ("TB/s", "GB/s", "MB/s", "KB/s", "B/s"), exact)


def _parse(text: object, units: dict[str, Decimal], what: str, forms: str) -> Decimal:
    """The exact value of ``text`` in the base unit."""
    if not isinstance(text, str):
        if isinstance(text, (int, float)) and not isinstance(text, bool):
            raise ConfigError(f"{text!r} has no unit: write {what} as {forms}")
        raise ConfigError(f"{text!r} is not {what}: write {forms}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not {what}: write {forms}")
    number, exponent, unit = match.groups()
    unit = unit.replace("\u00b5", "u").replace("\u03bc", "u")  # the two Unicode letters for micro
    if unit not in units:
        if not unit:
            raise ConfigError(f"{text!r} has no unit: write {what} as {forms}")
        raise ConfigError(f"{text!r}: {unit!r} is not a unit for {what}: write {forms}")
    return Decimal(number + (exponent or "")) * units[unit]


def _whole_bytes(text: object, value: Decimal, forms: str) -> int:
    if value > _MAX_BYTES:
        raise ConfigError(f"{text!r} is more than 2**63 - 1 bytes: write {forms}")
    if value != int(value):
        raise ConfigError(f"{text!r} is not a whole number of bytes: write {forms}")
    return int(value)


def _finite(text: object, value: Decimal, what: str, forms: str) -> float:
    result = float(value)
    if not math.isfinite(result):
        raise ConfigError(f"{text!r} is too large for {what}: write {forms}")
    return result


def _format(value: float, units: dict[str, Decimal], names: tuple[str, ...], exact: bool) -> str:
    """``value`` in the largest unit of ``names`` (largest first) that leaves at least 1, else in the smallest."""
    if value == 0:
        return f"0{names[0] if names[0] == 's' else names[-1]}"
    base = Decimal(value) if isinstance(value, int) else Decimal(repr(float(value)))  # the shortest that reads back
    unit = next((name for name in names if abs(base) >= units[name]), names[-1])
    scaled = (base / units[unit]).normalize()
    if not exact:
        scaled = Decimal(f"{scaled:.4g}")
    return f"{scaled:f}{unit}" if -6 <= scaled.adjusted() <= 15 else f"{scaled}{unit}"
