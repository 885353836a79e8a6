from __future__ import annotations

import array
import ctypes
import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hccl_py.buffers import Buffer, describe
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType


def locked(data: Any) -> Any:
    data.flags.writeable = False
    return data


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((np.dtype(dtype.name.lower()), dtype) for dtype in DType if not dtype.is_float or dtype <= DType.FLOAT16),
        (ml_dtypes.bfloat16, DType.BFLOAT16),
        (ml_dtypes.float8_e4m3fn, DType.FLOAT8_E4M3),
        (ml_dtypes.float8_e5m2, DType.FLOAT8_E5M2),
    ],
)
def test_numpy_arrays(kind: Any, dtype: DType) -> None:
    data = np.zeros((3, 5), kind)
    assert describe(data, "buf", writable=True) == Buffer(data.ctypes.data, 15, dtype)
    part = data.reshape(-1)[4:9]
    found = describe(part, "buf")
    assert found == Buffer(part.ctypes.data, 5, dtype) and found.nbytes == part.nbytes


@pytest.mark.parametrize(
    ("data", "size", "dtype"),
    [
        (bytearray(7), 7, DType.UINT8),
        (memoryview(bytearray(16)).cast("d"), 2, DType.FLOAT64),
        (memoryview(bytearray(16))[3:7], 4, DType.UINT8),
        (array.array("f", [1, 2, 3]), 3, DType.FLOAT32),
        (array.array("q", [1]), 1, DType.INT64),
        (array.array("H"), 0, DType.UINT16),
        (mmap.mmap(-1, 4096), 4096, DType.UINT8),
        ((ctypes.c_float * 4)(), 4, DType.FLOAT32),
        (((ctypes.c_int16 * 3) * 2)(), 6, DType.INT16),
        (np.array(3.0), 1, DType.FLOAT64),
        (np.zeros((0, 3), np.int8), 0, DType.INT8),
        (np.ones((1, 4)).T, 4, DType.FLOAT64),
        (np.ones(10)[::20], 1, DType.FLOAT64),
        (np.zeros((4, 6))[:0, ::2], 0, DType.FLOAT64),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_with_the_buffer_protocol(data: Any, size: int, dtype: DType) -> None:
    found = describe(data, "buf", writable=True)
    assert (found.size, found.dtype) == (size, dtype)
    if size:
        view = memoryview(data).cast("B")
        ctypes.memset(found.ptr, 0x41, found.nbytes)
        assert bytes(view) == b"A" * found.nbytes


def test_tensors_by_dlpack() -> None:
    torch = pytest.importorskip("torch")
    for kind, dtype in (
        (torch.float32, DType.FLOAT32), (torch.bfloat16, DType.BFLOAT16), (torch.bool, DType.BOOL),
        (torch.uint16, DType.UINT16), (torch.float8_e4m3fn, DType.FLOAT8_E4M3), (torch.float8_e5m2, DType.FLOAT8_E5M2),
    ):  # fmt: skip
        tensor = torch.zeros(6).to(kind)
        assert describe(tensor, "buf", writable=True) == Buffer(tensor.data_ptr(), 6, dtype)
    for wrong in (torch.ones(4, 4)[:, 1], torch.ones(3, dtype=torch.complex64), torch.ones(2, device="meta")):
        with pytest.raises(ConfigError, match=r"^buf "):
            describe(wrong, "buf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "is a NoneType: neither the buffer protocol nor DLPack"),
        ([1.0, 2.0], "is a list: neither"),
        (3.0, "is a float: neither"),
        ("abc", "is a str: neither"),
        (np.ones(8)[::2], "is not contiguous"),
        (np.ones(8)[::-1], "is not contiguous"),
        (np.ones((4, 4))[:, :2], "is not contiguous"),
        (np.asfortranarray(np.ones((2, 3))), "is not contiguous"),
        (np.broadcast_to(np.ones(1), (4,)), "is not contiguous"),
        (np.ones(8, ml_dtypes.bfloat16)[::2], "is not contiguous"),
        (memoryview(bytearray(8))[::2], "is not contiguous"),
        (np.ones(3, np.complex64), "elements of type complex64; supported.*float64, float32"),
        (np.ones(3, ">f4"), "elements of type >f4; supported.* byte order"),
        (np.ones(3, ">i8"), "elements of type >i8"),
        (np.array([None]), "elements of type object"),
        (np.array(["a"]), "elements of type <U1"),
        (np.array(["2020"], "M8[s]"), "elements of type datetime64"),
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), "elements of type"),
        (np.ones(3, np.longdouble), "elements of type"),
        (np.ones(3, ml_dtypes.float8_e5m2fnuz), "elements of type float8_e5m2fnuz"),
        (array.array("u", "ab"), "neither|elements of type"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_read_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^sendbuf .*(?:{message})|^sendbuf (?:{message})"):
        describe(data, "sendbuf")


@pytest.mark.parametrize(
    "data",
    [b"abc", memoryview(b"12345678").cast("d"), locked(np.ones(3)), locked(np.ones(3, ml_dtypes.bfloat16))],
    ids=lambda value: type(value).__name__,
)
def test_read_only_memory_is_read_but_not_written(data: Any) -> None:
    assert describe(data, "recvbuf").size == len(data)
    with pytest.raises(ConfigError, match=r"^recvbuf is read-only"):
        describe(data, "recvbuf", writable=True)


def test_lazily_negated_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    negated = torch.ones(2, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    with pytest.raises(ConfigError, match="resolve_neg"):
        describe(negated, "buf")


def test_the_short_look_at_numpy_arrays_sees_what_changes() -> None:
    data = np.zeros(6, np.float32)
    for _ in range(2):
        assert describe(data, "buf", writable=True) == Buffer(data.ctypes.data, 6, DType.FLOAT32)
    data.shape = (2, 3)
    assert describe(data, "buf").size == 6
    with pytest.raises(ConfigError, match="contiguous"):
        describe(data.T, "buf")
    with pytest.raises(ConfigError, match="read-only"):
        describe(locked(data), "buf", writable=True)
    data = data.view(np.int32)
    assert describe(data, "buf").dtype is DType.INT32
