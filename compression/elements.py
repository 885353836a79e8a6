"""The element types that codecs take, widened to float32 and narrowed again: float64, float32, float16, bfloat16.

NumPy has no bfloat16: arrays of it are taken as uint16 with ``DType.BFLOAT16`` beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType

Array = np.ndarray[Any, Any]

STORED: dict[DType, str] = {
    DType.FLOAT64: "float64",
    DType.FLOAT32: "float32",
    DType.FLOAT16: "uint16",
    DType.BFLOAT16: "uint16",
}


def check_dtype(dtype: DType, what: str) -> DType:
    """The type itself. Raises ConfigError unless it is one that codecs take."""
    if dtype not in STORED:
        known = ", ".join(kind.name.lower() for kind in STORED)
        raise ConfigError(f"{what}: codecs take {known}; this is {dtype.name.lower()}")
    return dtype


def widen(stored: Array, dtype: DType) -> Array:
    """Elements as float32, float64 rounded to nearest even; float32 is not copied. ``stored``: as STORED says."""
    if dtype is DType.BFLOAT16:
        wide: Array = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide
    if dtype is DType.FLOAT16:
        return stored.view(np.float16).astype(np.float32)
    with np.errstate(over="ignore"):
        return stored.astype(np.float32, copy=False)


def narrow(values: Array, dtype: DType) -> Array:
    """float32 to the stored type, rounded to nearest even; NaN becomes the quiet NaN of its sign."""
    if dtype is DType.BFLOAT16:
        return bf16_codes(values)
    if dtype is DType.FLOAT16:
        return fp16_codes(values)
    return values.astype(STORED[dtype], copy=False)


def bf16_codes(values: Array) -> Array:
    """uint16 codes of bfloat16."""
    word = values.view(np.uint32)
    rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = ((word >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7FC0)
    codes: Array = np.where(np.isnan(values), nan, rounded).astype(np.uint16)
    return codes


def fp16_codes(values: Array) -> Array:
    """uint16 codes of float16."""
    nan = ((values.view(np.uint32) >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7E00)
    with np.errstate(over="ignore", invalid="ignore"):
        half = values.astype(np.float16).view(np.uint16)
    codes: Array = np.where(np.isnan(values), nan.astype(np.uint16), half)
    return codes
