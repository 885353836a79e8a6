"""What a Communicator takes for data: NumPy arrays, and anything with the buffer protocol or DLPack."""

from __future__ import annotations

from typing import Any, NamedTuple

from hccl_py import _native
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType

# NumPy lets these types of other packages out neither by the buffer protocol nor by DLPack.
_BY_NAME = {"bfloat16": DType.BFLOAT16, "float8_e4m3fn": DType.FLOAT8_E4M3, "float8_e5m2": DType.FLOAT8_E5M2}

_DTYPES = tuple(DType)

_ELSEWHERE = "{} is in the memory of a device; pass an array in host memory (blocking collectives take both)"


class Buffer(NamedTuple):
    """A contiguous run of ``size`` elements at address ``ptr``."""

    ptr: int
    size: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


def describe(data: Any, what: str, writable: bool = False) -> Buffer:
    """Where ``data`` lies and what it holds.

    Raises:
        ConfigError: it is no array, not contiguous, of an element type that the engine lacks, read-only where it is to
            be written, or not in host memory.
    """
    found = _native.buffer(data)
    if found is not None:
        ptr, size, dtype, contiguous, readonly, on_host = found
        if dtype >= 0 and contiguous and on_host and not (readonly and writable):
            return Buffer(ptr, size, _DTYPES[dtype])
    return _describe_special(data, what, writable)


def _describe_special(data: Any, what: str, writable: bool) -> Buffer:
    """What takes a second look, or is wrong."""
    name = getattr(getattr(data, "dtype", None), "name", "")
    special = _BY_NAME.get(name) if isinstance(name, str) else None
    if special is not None:
        data = data.view(f"uint{8 * special.itemsize}")
    is_negated = getattr(data, "is_neg", None)
    if is_negated is not None and is_negated():
        raise ConfigError(f"{what} is a lazily negated tensor: its memory has the other sign; pass .resolve_neg()")
    found = _native.buffer(data)
    if found is None and hasattr(type(data), "__cuda_array_interface__"):
        raise ConfigError(_ELSEWHERE.format(what))
    if found is None and not hasattr(data, "dtype"):
        raise ConfigError(f"{what} is a {type(data).__name__}: neither the buffer protocol nor DLPack gives its memory")
    if found is None:
        raise ConfigError(_unsupported(what, data))
    ptr, size, dtype, contiguous, readonly, on_host = found
    if not on_host:
        raise ConfigError(_ELSEWHERE.format(what))
    if not contiguous:
        raise ConfigError(f"{what} is not contiguous; pass numpy.ascontiguousarray(...) and copy the result back")
    if readonly and writable:
        raise ConfigError(f"{what} is read-only, but the result goes there")
    if dtype < 0:
        raise ConfigError(_unsupported(what, data))
    return Buffer(ptr, size, DType(dtype) if special is None else special)


def _unsupported(what: str, data: Any) -> str:
    kind = getattr(data, "dtype", getattr(data, "format", "unknown"))
    supported = ", ".join(known.name.lower() for known in DType)
    return f"{what} has elements of type {kind}; supported, in host memory and this machine's byte order: {supported}"
