"""Images of the exchange kernels: compiled once per machine and variant, kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from hccl_py import _native
from hccl_py.core.types import DType, ReduceOp
from hccl_py.gpu.nvrtc import Nvrtc

COPY = -1  # in place of an operator: bytes are moved, nothing is folded
_FIXED = ("--std=c++17", "--fmad=false", "-default-device", "-DHP_VARIANT=kernels")


class Compiler:
    """Makes the images that one group loads: ``arch`` is ``sm_90`` or the like, or ``host`` for the host's kernels.

    Args:
        cache: folder for images (None: nothing is kept). One that cannot be written is not an error.
    """

    def __init__(self, arch: str, size: int, cache: Path | None) -> None:
        self._arch = arch
        self._size = size
        self._cache = cache
        self._nvrtc: Nvrtc | None = None

    def image(self, dtype: DType, wire: DType, op: int) -> bytes:
        """The image for one variant: element type, type on the wire, and :class:`ReduceOp` or ``COPY``.

        Raises:
            TransportUnavailableError: it must be compiled, and there is no NVRTC.
        """
        if self._arch == "host":
            return f"{self._size}.{int(dtype)}.{int(wire)}.{op}".encode()
        numbers = {"SIZE": self._size, "ELEM": int(dtype), "WIRE": int(wire), "OP": op}
        options = [f"--gpu-architecture={self._arch}", *_FIXED, *(f"-DHP_{name}={n}" for name, n in numbers.items())]
        sources = _native.kernel_sources()
        if self._nvrtc is None:
            self._nvrtc = Nvrtc()
        recipe = repr((self._nvrtc.version(), options, sorted(sources.items())))
        path = self._cache and self._cache / f"{hashlib.sha256(recipe.encode()).hexdigest()[:32]}.cubin"
        if path:
            with contextlib.suppress(OSError):
                return path.read_bytes()
        image, _ = self._nvrtc.compile('#include "exchange.hpp"\n', sources, options)
        if path:
            with contextlib.suppress(OSError):
                _write(path, image)
        return image


def variant(key: int) -> tuple[DType, DType, int]:
    """Element type, wire type and operator of the kernels that the native group asks for by number."""
    if key == 0xFFFFFFFF:
        return DType.UINT8, DType.UINT8, COPY
    return DType(key & 15), DType(key >> 4 & 15), ReduceOp(key >> 8)


def _write(path: Path, image: bytes) -> None:
    """Whole or not at all: other ranks write the same file at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(image)
    os.replace(name, path)
