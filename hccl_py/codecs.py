"""Codecs by the engine's native code: the same bits as the NumPy reference under compression/, at the speed of memory.

>>> frame = encode(parse_codec("int8"), np.ones(1000, np.float32))
>>> decode(frame)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hccl_py import _native
from hccl_py.buffers import Buffer, describe
from hccl_py.compression import frame as frames
from hccl_py.compression.blocks import BLOCK, BlockCodec
from hccl_py.compression.codec import Array, Codec, kept
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import Draw
from hccl_py.compression.elements import STORED, check_dtype, narrow, widen
from hccl_py.compression.frame import HEADER_BYTES, Frame
from hccl_py.compression.lossless import Lossless, stored_of, words_of
from hccl_py.compression.randomk import RandomK
from hccl_py.compression.sparse import MOST_ELEMENTS, SparseCodec
from hccl_py.compression.threshold import Threshold
from hccl_py.compression.topk import TopK
from hccl_py.core.errors import ConfigError, TransportError
from hccl_py.core.types import DType

__all__ = [
    "RowTable", "decode", "decode_lossless", "encode", "encode_lossless", "encode_values", "native_sums", "open_frame",
    "parse_codec", "stored", "unpack", "view",
]  # fmt: skip


class RowTable:
    """Which runs of an array are encoded where: int64 [n, 6] as ``CodecRow`` of native/include/hccl_py/codecs.hpp.

    Args:
        starts, counts, at_bytes, offsets, residuals: int64 [n] each; bounds are checked once, here.
    """

    def __init__(
        self, codec: BlockCodec, starts: Any, counts: Any, at_bytes: Any, offsets: Any, residuals: Any
    ) -> None:
        columns = (starts, counts, at_bytes, offsets, np.zeros_like(starts), residuals)
        self.codec = codec
        self.rows = np.ascontiguousarray(np.stack([np.asarray(c, np.int64) for c in columns], axis=1))
        sizes = [codec.wire_bytes(int(count)) for count in counts]
        if len(sizes) and (self.rows[:, :4].min() < 0 or (self.rows[:, 3] % BLOCK).any()):
            raise ConfigError(f"runs of a codec begin at a multiple of {BLOCK} of their parameter, none is negative")
        ends = self.rows[:, [0, 2, 5]] + np.array([self.rows[:, 1], sizes, self.rows[:, 1]], np.int64).T
        self._most = ends.max(axis=0, initial=0)  # elements, bytes of code, elements of the error memory

    def set_keys(self, keys: Any) -> None:
        """Keys of the random numbers, uint64 [n]."""
        self.rows[:, 4] = np.asarray(keys, np.uint64).view(np.int64)

    def encode(
        self, data: Buffer, out: Array, factor: float = 1.0, residual: Array | None = None, isa: str = ""
    ) -> None:
        """Codes of ``data * factor + residual`` into ``out``, uint8; ``residual``, float32, then has what was lost."""
        self._check(data.size, len(out))
        if residual is not None and (residual.dtype != np.float32 or len(residual) < self._most[2]):
            raise ConfigError(f"the error memory has {len(residual)} elements of {residual.dtype}")
        address = 0 if residual is None else residual.ctypes.data
        rows = self.rows
        _native.codec_encode(
            int(self.codec.id),
            int(data.dtype),
            data.ptr,
            factor,
            address,
            out.ctypes.data,
            rows.ctypes.data,
            len(rows),
            isa,
        )

    def decode(self, code: Array, out: Buffer, add: bool = False, isa: str = "") -> None:
        """What the codes in ``code``, uint8, stand for, into ``out`` or added to it (float32 only)."""
        self._check(out.size, len(code))
        rows = self.rows
        _native.codec_decode(
            int(self.codec.id), int(out.dtype), code.ctypes.data, out.ptr, rows.ctypes.data, len(rows), add, isa
        )

    def _check(self, elements: int, code_bytes: int) -> None:
        if elements < self._most[0] or code_bytes < self._most[1]:
            raise ConfigError(
                f"{elements} elements and {code_bytes} bytes of code; the rows need {self._most[0]} and {self._most[1]}"
            )


def whole(codec: BlockCodec, count: int, offset: int = 0, key: int = 0) -> RowTable:
    """One run: a whole array."""
    table = RowTable(codec, [0], [count], [0], [offset], [0])
    table.set_keys([key])
    return table


def native_sums(data: Array) -> tuple[int, int]:
    """:func:`hccl_py.compression.frame.check_sums`, faster."""
    return _native.check_sums(data.ctypes.data, len(data))


def unpack(data: Array, who: str = "a peer", code_bytes: int | None = None) -> Frame:
    """:func:`hccl_py.compression.frame.unpack`, faster."""
    return frames.unpack(data, native_sums, who, code_bytes)


def open_frame(
    data: Array, codec: Codec, count: int, peer: int, code_bytes: int | None, dtype: DType = DType.FLOAT32
) -> Array:
    """The code in a frame that rank ``peer`` has sent; it must be ``codec``'s, of ``count`` elements of ``dtype``.

    Raises:
        TransportError: it is not, or no frame, cut off, or changed on its way.
    """
    frame = unpack(data, f"rank {peer}", code_bytes)
    if frame.codec != codec or frame.num_elements != count or frame.dtype is not dtype:
        raise TransportError(
            f"rank {peer} sent {frame.num_elements} elements of {frame.codec.text}, {frame.dtype.name.lower()}; "
            f"{count} of {codec.text}, {dtype.name.lower()}, were expected: all ranks must compress alike"
        )
    return frame.code


def top_indices(values: Array, k: int) -> Array:
    """:func:`hccl_py.compression.sparse.top_indices`, faster."""
    indices = np.empty(k, np.uint32)
    if k:
        _native.select_top(values.ctypes.data, len(values), k, indices.ctypes.data)
    return indices


def select(codec: SparseCodec, values: Array) -> Array:
    """What a sparse codec keeps of contiguous float32 [n]: indices, uint32, ascending."""
    if len(values) > MOST_ELEMENTS:
        raise ConfigError(f"{codec.text}: {len(values)} elements in one run; the most is {MOST_ELEMENTS}")
    if isinstance(codec, TopK):
        return top_indices(values, kept(codec.fraction, len(values)))
    if isinstance(codec, Threshold):
        indices = np.empty(len(values), np.uint32)
        n = _native.select_above(values.ctypes.data, len(values), codec.least, indices.ctypes.data, len(indices))
        return indices[:n]
    return codec.select(values)


def encode_values(codec: Codec, values: Array, draw: Draw, offset: int = 0, isa: str = "") -> Array:
    """:meth:`Codec.encode` of contiguous float32 [n] by native code."""
    if isinstance(codec, BlockCodec):
        code = np.empty(codec.wire_bytes(len(values)), np.uint8)
        whole(codec, len(values), offset, draw.key).encode(describe(values, "values"), code, isa=isa)
        return code
    if isinstance(codec, Lossless):
        code = np.empty(codec.wire_bytes(len(values)), np.uint8)
        return code[: encode_lossless(values, code, isa)]
    if isinstance(codec, SparseCodec):
        indices = select(codec, values)
        return np.concatenate([indices.view(np.uint8), values[indices].view(np.uint8)])
    return codec.encode(values, draw, offset)


def encode_lossless(values: Array, out: Array, isa: str = "") -> int:
    """:meth:`Lossless.encode` of contiguous float32 [n] into ``out``, uint8; returns how many bytes it has.

    Raises:
        ConfigError: ``out`` has fewer than ``wire_bytes(n)``.
    """
    return _native.lossless_encode(values.ctypes.data, len(values), out.ctypes.data, len(out), isa)


def decode_lossless(code: Array, out: Array, add: bool = False, isa: str = "", who: str = "the caller") -> None:
    """:meth:`Lossless.decode` into contiguous float32 [n], or added to it.

    Raises:
        TransportError: it is no code of n elements; ``out`` may have some of it.
    """
    if not _native.lossless_decode(code.ctypes.data, len(code), out.ctypes.data, len(out), add, isa):
        raise TransportError(f"lossless: {len(code)} bytes from {who} are no code of {len(out)} elements")


def stored(data: Any, what: str = "data") -> tuple[Buffer, Array]:
    """Where an array lies, and its elements as NumPy has them (bfloat16 and float16 as uint16), without a copy.

    Raises:
        ConfigError: it is no contiguous array of an element type that codecs take.
    """
    found = describe(data, what)
    check_dtype(found.dtype, what)
    return found, view(found)


def view(buffer: Buffer) -> Array:
    """The elements of a buffer, without a copy, as NumPy has them (bfloat16 and float16 as uint16)."""
    return np.asarray(_Memory(buffer)) if buffer.size else np.zeros(0, STORED[buffer.dtype])


class _Memory:
    """A run of memory for NumPy."""

    def __init__(self, buffer: Buffer) -> None:
        kind = np.dtype(STORED[buffer.dtype])
        self.__array_interface__ = {
            "shape": (buffer.size,),
            "typestr": kind.str,
            "data": (buffer.ptr, False),
            "version": 3,
        }


def encode(codec: Codec | str, data: Any, draw: Draw | None = None) -> Array:
    """A frame (uint8) that holds the code of a contiguous array of float64, float32, float16 or bfloat16.

    Raises:
        ConfigError: the array is not of these (lossless takes no float64); there is no such codec.
    """
    codec = parse_codec(codec) if isinstance(codec, str) else codec
    draw = Draw() if draw is None else draw
    found, flat = stored(data)
    if isinstance(codec, BlockCodec):
        frame = np.empty(HEADER_BYTES + codec.wire_bytes(found.size), np.uint8)
        whole(codec, found.size, key=draw.key).encode(found, frame[HEADER_BYTES:])
        frames.write_header(frame, codec, found.dtype, found.size, native_sums)
        return frame
    exact = isinstance(codec, Lossless)
    values = np.ascontiguousarray(words_of(flat, found.dtype) if exact else widen(flat, found.dtype))
    return frames.pack(encode_values(codec, values, draw), codec, found.dtype, found.size, native_sums)


def decode(frame: Any, draw: Draw | None = None) -> Array:
    """The array in a frame, of the element type that was encoded (bfloat16 and float16 as the codes, uint16).

    Raises:
        TransportError: it is no frame, cut off, or changed on its way.
    """
    data = np.ascontiguousarray(np.frombuffer(frame, np.uint8))
    found = unpack(data, "the caller")
    codec = found.codec
    if isinstance(codec, BlockCodec):
        out = np.empty(found.num_elements, STORED[found.dtype])
        target = Buffer(out.ctypes.data, found.num_elements, found.dtype)
        whole(codec, found.num_elements).decode(found.code, target)
        return out
    if isinstance(codec, Lossless):
        codec.check(found.code, found.num_elements, found.dtype)
        words = np.empty(found.num_elements, np.float32)
        decode_lossless(found.code, words)
        return stored_of(words, found.dtype)
    values = (
        codec.decode(found.code, found.num_elements, draw)
        if isinstance(codec, RandomK)
        else codec.decode(found.code, found.num_elements)
    )
    return narrow(values, found.dtype)
