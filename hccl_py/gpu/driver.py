"""The few words with CUDA's driver, by ctypes, that Python needs beside the native group. Nothing of CUDA is linked."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hccl_py.core.errors import ConfigError, InternalError, TransportUnavailableError

_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_


class Driver:
    """The driver.

    Raises:
        TransportUnavailableError: there is none.
    """

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise TransportUnavailableError(f"no CUDA driver here: {error}", "no CUDA driver") from error
        self._call("cuInit", 0)

    def device_of(self, ptr: int, what: str) -> int:
        """Number of the GPU whose memory ``ptr`` is in. Raises ConfigError if it is in none."""
        ordinal = ctypes.c_int(-1)
        status = self._lib.cuPointerGetAttribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, ctypes.c_uint64(ptr))
        if status or ordinal.value < 0:
            raise ConfigError(f"{what} has address {ptr:#x}, which is not in the memory of a GPU of this process")
        return ordinal.value

    def arch(self, ordinal: int) -> str:
        """What to compile for: ``sm_90`` or the like."""
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device(ordinal))
            numbers.append(number.value)
        return f"sm_{numbers[0]}{numbers[1]}"

    def copy(self, to: int, source: int, num_bytes: int, stream: int, ordinal: int) -> None:
        """Copy within the GPU, in the order of ``stream``."""
        where = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(num_bytes)
        with self._current(ordinal):
            self._call("cuMemcpyDtoDAsync_v2", *where, ctypes.c_void_p(stream))

    def synchronize(self, ordinal: int) -> None:
        """Wait for all that this process has under way on the GPU."""
        with self._current(ordinal):
            self._call("cuCtxSynchronize")

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device

    @contextmanager
    def _current(self, ordinal: int) -> Iterator[None]:
        """The GPU's primary context, which CuPy and torch use, as that of the thread."""
        device, context = self._device(ordinal), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(context))
        finally:
            self._call("cuDevicePrimaryCtxRelease_v2", device)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status == 100:
            raise TransportUnavailableError(f"{name}: no CUDA GPU here", "no CUDA GPU")
        if status:
            raise InternalError(f"{name} failed with status {status}")
