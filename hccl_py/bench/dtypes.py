"""Element types by the names that nccl-tests uses and by ours, and their NumPy types."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType

Array = npt.NDArray[Any]

# nccl-tests' name -> ours; rows that are not here have one name only
NCCL_NAMES = {
    "float": DType.FLOAT32,
    "double": DType.FLOAT64,
    "half": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "f8e4m3": DType.FLOAT8_E4M3,
    "f8e5m2": DType.FLOAT8_E5M2,
}
_ML_DTYPES = {DType.BFLOAT16: "bfloat16", DType.FLOAT8_E4M3: "float8_e4m3fn", DType.FLOAT8_E5M2: "float8_e5m2"}


def names() -> list[str]:
    """Return all names that :func:`parse` knows."""
    return sorted({*NCCL_NAMES, *(dtype.name.lower() for dtype in DType)})


def parse(name: str) -> DType:
    """Return the element type called ``name`` ("float" or "float32", ...). Raises ConfigError if there is none."""
    if name in NCCL_NAMES:
        return NCCL_NAMES[name]
    try:
        return DType[name.upper()]
    except KeyError:
        raise ConfigError(f"-d {name}: no such element type; known: {', '.join(names())}") from None


def short_name(dtype: DType) -> str:
    """Return the name that nccl-tests prints, or ours where it has none."""
    return next((name for name, value in NCCL_NAMES.items() if value is dtype), dtype.name.lower())


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type; bfloat16 and fp8 need the package ml_dtypes (ConfigError if it is missing)."""
    if dtype not in _ML_DTYPES:
        return np.dtype(dtype.name.lower())
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise ConfigError(f"-d {short_name(dtype)} needs ml_dtypes: pip install ml_dtypes") from None
    kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    return kind


def significant_bits(dtype: DType) -> int:
    """Return the significant bits of a floating-point type: integers up to 2**bits are exact."""
    return {
        DType.FLOAT64: 53,
        DType.FLOAT32: 24,
        DType.FLOAT16: 11,
        DType.BFLOAT16: 8,
        DType.FLOAT8_E4M3: 4,
        DType.FLOAT8_E5M2: 3,
    }[dtype]
