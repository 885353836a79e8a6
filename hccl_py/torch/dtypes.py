"""The words of torch and of the engine, side by side: element types and reduction operators.

An element type travels as ``(DType, units)``: one torch element is ``units`` engine elements. Complex numbers are two
floats. Types that the engine does not know (the ``fnuz`` floats and the like) can be moved, as bytes, but not reduced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp, allowed

REDUCIBLE: dict[torch.dtype, tuple[DType, int]] = {
    torch.float64: (DType.FLOAT64, 1),
    torch.float32: (DType.FLOAT32, 1),
    torch.float16: (DType.FLOAT16, 1),
    torch.bfloat16: (DType.BFLOAT16, 1),
    torch.float8_e4m3fn: (DType.FLOAT8_E4M3, 1),
    torch.float8_e5m2: (DType.FLOAT8_E5M2, 1),
    torch.int8: (DType.INT8, 1),
    torch.int16: (DType.INT16, 1),
    torch.int32: (DType.INT32, 1),
    torch.int64: (DType.INT64, 1),
    torch.uint8: (DType.UINT8, 1),
    torch.uint16: (DType.UINT16, 1),
    torch.uint32: (DType.UINT32, 1),
    torch.uint64: (DType.UINT64, 1),
    torch.bool: (DType.BOOL, 1),
    torch.complex32: (DType.FLOAT16, 2),
    torch.complex64: (DType.FLOAT32, 2),
    torch.complex128: (DType.FLOAT64, 2),
}

# Keyed by number, as torch's operators are slow to hash: these two tables are on the path of every small message.
_OPS: dict[int, ReduceOp] = {
    theirs.value: ours
    for theirs, ours in (
        (TorchOp.SUM, ReduceOp.SUM),
        (TorchOp.AVG, ReduceOp.AVG),
        (TorchOp.PRODUCT, ReduceOp.PROD),
        (TorchOp.MIN, ReduceOp.MIN),
        (TorchOp.MAX, ReduceOp.MAX),
        (TorchOp.BAND, ReduceOp.BAND),
        (TorchOp.BOR, ReduceOp.BOR),
        (TorchOp.BXOR, ReduceOp.BXOR),
    )
}


def _is_defined(op: ReduceOp, dtype: DType, units: int) -> bool:
    return allowed(op, dtype) and (units == 1 or op in (ReduceOp.SUM, ReduceOp.AVG))


_DEFINED: dict[torch.dtype, tuple[bool, ...]] = {
    dtype: tuple(_is_defined(op, *pair) for op in ReduceOp) for dtype, pair in REDUCIBLE.items()
}

# For the short way of small messages: the number of a type whose elements the engine has; by operator, is it defined?
PLAIN: dict[torch.dtype, tuple[int, tuple[bool, ...]]] = {
    dtype: (int(pair[0]), _DEFINED[dtype]) for dtype, pair in REDUCIBLE.items() if pair[1] == 1
}


_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def wire_type(dtype: torch.dtype, call: str) -> tuple[DType, int]:
    """The type as which elements are moved: their own where the engine has it, else bytes.

    Args:
        call: name of the collective, for the message.

    Raises:
        ConfigError: for quantized types, whose scales would stay behind.
    """
    pair = REDUCIBLE.get(dtype)
    if pair is not None:
        return pair
    if dtype in _QUANTIZED:
        raise ConfigError(f"{call}: {dtype} tensors carry scales of their own; send .int_repr() and the scales instead")
    return DType.UINT8, dtype.itemsize


def reduce_op(op: Any) -> ReduceOp:
    """The engine's operator.

    Args:
        op: torch's ``ReduceOp``, or one of its names such as ``ReduceOp.SUM`` (they are of two types).

    Raises:
        ConfigError: for what it does not know, and for PREMUL_SUM, whose factor :func:`premul_factor` takes first.
    """
    name = getattr(op, "op", op)
    try:
        return _OPS[name.value]
    except KeyError:
        raise ConfigError(
            f"hccl_py has no reduction {name} here; multiply the tensor first and use SUM, or use AVG for 1/world size"
        ) from None


def short_op(op: Any) -> int | None:
    """The number of the engine's operator, or None if it has no such one."""
    ours = _OPS.get(getattr(op, "op", op).value)
    return None if ours is None else int(ours)


def premul_factor(op: Any) -> Any:
    """The factor of a PREMUL_SUM, a number or a tensor; None for all other operators."""
    if getattr(op, "op", None) != TorchOp.PREMUL_SUM:
        return None
    return op.__getstate__()[1]


def multiplied(tensor: torch.Tensor, factor: Any, call: str) -> torch.Tensor:
    """A copy of what this rank gives to a PREMUL_SUM: ``tensor * factor``, in float32 for all narrower floats.

    Raises:
        ConfigError: for integers, which the factor would truncate, and types that do not add up.
    """
    dtype = tensor.dtype
    reduce_type(ReduceOp.SUM, dtype, call)
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ConfigError(f"{call}: PREMUL_SUM is not defined on {dtype}; use SUM and multiply")
    if dtype in (torch.float64, torch.complex128):
        wide = dtype
    else:
        wide = torch.complex64 if dtype.is_complex else torch.float32
    with torch.no_grad():
        scaled: torch.Tensor = tensor.detach().to(wide) * factor
        return scaled.to(dtype)


def reduce_type(op: ReduceOp, dtype: torch.dtype, call: str) -> tuple[DType, int]:
    """The type in which ``dtype`` is reduced with ``op``.

    Args:
        call: name of the collective, for the message.

    Raises:
        ConfigError: if the operator is not defined on the type (AVG of integers, MAX of complex numbers, ...).
    """
    pair = REDUCIBLE.get(dtype)
    if pair is None:
        raise ConfigError(
            f"{call}: {dtype} can be moved but not reduced; convert it to a type that adds up, say bfloat16"
        )
    if not _DEFINED[dtype][op]:
        if pair[1] != 1:
            hint = "complex numbers have SUM and AVG"
        else:
            hint = "use SUM and divide" if op is ReduceOp.AVG else "bitwise operators are for integers and bool"
        raise ConfigError(f"{call}: {op.name} is not defined on {dtype}; {hint}")
    return pair
