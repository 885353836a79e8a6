"""NVRTC, NVIDIA's compiler as a library, by ctypes: CUDA C++ in, machine code (cubin) out. Needs no CUDA toolkit.

The library comes with PyTorch and CuPy wheels, or with a toolkit; it needs no GPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hccl_py.core.errors import InternalError, TransportUnavailableError


class Nvrtc:
    """The compiler.

    Raises:
        TransportUnavailableError: no NVRTC library is installed.
    """

    def __init__(self) -> None:
        self._lib = _load()

    def version(self) -> tuple[int, int]:
        """Major and minor number."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
        """Compile ``source`` with ``headers`` (by name) to a cubin; return it and the compiler's remarks.

        Raises:
            InternalError: the source does not compile; the message has the compiler's.
        """
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
        texts = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
        create = (ctypes.byref(program), source.encode(), b"hccl_py.cu", len(headers), texts, names)
        self._call("nvrtcCreateProgram", *create)
        try:
            arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = self._lib.nvrtcCompileProgram(program, len(options), arguments)
            log = self._get(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
            if status:
                raise InternalError(f"a GPU kernel does not compile ({' '.join(options)}):\n{log}")
            return self._get(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), log
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, ask_size: str, ask: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(ask_size, program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(ask, program, data)
        return data.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            raise InternalError(f"{name} failed with status {status}")


def _load() -> ctypes.CDLL:
    tried = []
    for name in _candidates():
        try:
            for part in sorted(Path(name).parent.glob("libnvrtc-builtins.so.*")) if "/" in name else ():
                ctypes.CDLL(str(part))  # the compiler looks for it by name, in no folder of its own
            lib = ctypes.CDLL(name)
            lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            return lib
        except OSError as error:
            tried.append(f"{name} ({error})")
    raise TransportUnavailableError(
        "GPU kernels need NVRTC, which comes with PyTorch, CuPy or the CUDA toolkit, and none was found: pip install "
        f"'hccl-py[cuda]'. Tried: {'; '.join(tried)}",
        "no NVRTC library",
    )


def _candidates() -> Iterator[str]:
    """Where NVRTC may be: in wheels beside us first, whose parts fit each other, then on the system."""
    for folder in dict.fromkeys(sys.path):
        base = Path(folder or ".") / "nvidia"
        if base.is_dir():
            found = [p for p in base.glob("*/lib/libnvrtc.so.*") if ".alt." not in p.name]
            yield from (str(path) for path in sorted(found, reverse=True))
    for version in ("13", "12"):
        yield f"libnvrtc.so.{version}"
    yield "libnvrtc.so"
    yield from (str(path) for path in sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so"), reverse=True))
