"""Arrays in GPU memory: CuPy's, and anything else with ``__cuda_array_interface__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccl_py.buffers import Buffer
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType

_BY_NAME = {dtype.name.lower(): dtype for dtype in DType} | {"float8_e4m3fn": DType.FLOAT8_E4M3}
_LEGACY_STREAM = 1  # of the interface; the driver takes 0 for it


def on_device(data: Any) -> bool:
    """True for an array in GPU memory."""
    on_cuda = getattr(data, "is_cuda", None)  # torch's tensors all have the interface, and raise where they are not
    return hasattr(data, "__cuda_array_interface__") if on_cuda is None else bool(on_cuda)


def describe_on_device(data: Any, what: str, writable: bool = False) -> Buffer:
    """Where ``data`` lies in GPU memory and what it holds.

    Raises:
        ConfigError: it is not in GPU memory, not contiguous, of an element type that the kernels lack, or read-only
            where it is to be written.
    """
    if not on_device(data):
        raise ConfigError(f"{what} is not in GPU memory ({type(data).__name__}), but another buffer of this call is")
    interface = _interface(data, what)
    ptr, readonly = interface["data"]
    shape = tuple(interface["shape"])
    dtype = _dtype(data, interface["typestr"], what)
    if not _contiguous(shape, interface.get("strides"), dtype.itemsize):
        raise ConfigError(f"{what} is not contiguous; pass cupy.ascontiguousarray(...) and copy the result back")
    if interface.get("mask") is not None:
        raise ConfigError(f"{what} has a mask, which would not travel")
    if readonly and writable:
        raise ConfigError(f"{what} is read-only, but the result goes there")
    return Buffer(int(ptr or 0), int(np.prod(shape, dtype=np.int64)), dtype)


def stream_of(data: Any) -> int:
    """The stream on which ``data`` is in use: what its interface says (CuPy: its current stream), torch's current one,
    or the default stream.
    """
    stream = _interface(data, "the array").get("stream")
    if stream is None and type(data).__module__.partition(".")[0] == "torch":
        import torch

        return int(torch.cuda.current_stream(data.device).cuda_stream)
    if stream is None:
        return 0
    if stream == 0:
        raise ConfigError("an array says stream 0 in __cuda_array_interface__, which the interface leaves undefined")
    return 0 if stream == _LEGACY_STREAM else int(stream)


def _interface(data: Any, what: str) -> dict[str, Any]:
    try:
        interface: dict[str, Any] = data.__cuda_array_interface__
    except Exception as error:  # torch: the tensor requires grad, or has a type that the interface lacks
        raise ConfigError(f"{what}: its __cuda_array_interface__ is not to be had: {error}") from error
    return interface


def _dtype(data: Any, typestr: str, what: str) -> DType:
    """By the array's own type where it has one: the interface has no words for the small floats."""
    name = str(getattr(data, "dtype", "")).rpartition(".")[2]
    if name not in _BY_NAME:
        known = np.dtype(typestr)
        name = known.name if known.isnative else typestr
    if name not in _BY_NAME:
        supported = ", ".join(dtype.name.lower() for dtype in DType)
        raise ConfigError(f"{what} has elements of type {name}; supported: {supported}")
    return _BY_NAME[name]


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> bool:
    if strides is None or 0 in shape:
        return True
    wanted = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != wanted:
            return False
        wanted *= extent
    return True
