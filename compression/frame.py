"""A code on its way: 72 bytes of header with check sums, then the code. What is cut off or changed is an error.

Little-endian: magic, version, codec, element type, flags, block, spare, count (64 bits), bytes of the code (64), the
codec's number (float64), two check sums of the code (64 each), two of the header so far (64 each). The sums are
Fletcher's over 32-bit words in 64 bits: one or two changed words are certain to be seen, more with all but certainty.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hccl_py.compression.blocks import BLOCK
from hccl_py.compression.codec import Array, Codec, CodecId
from hccl_py.compression.codecs import codec_of
from hccl_py.compression.elements import check_dtype
from hccl_py.core.errors import TransportError
from hccl_py.core.types import DType

MAGIC = 0x46435048  # "HPCF"
VERSION = 1
HEADER_BYTES = 72
_CHECKED = 56
_FIELDS = struct.Struct("<IBBBBIIQQdQQ")

Sums = Callable[[Array], tuple[int, int]]


class Frame(NamedTuple):
    """What a frame holds; ``code`` is a view into it."""

    codec: Codec
    dtype: DType
    num_elements: int
    code: Array


def check_sums(data: Array) -> tuple[int, int]:
    """Plain and weighted sum of the 32-bit words of uint8 [n], filled with zeros; the first word weighs most."""
    words = np.zeros(-(-len(data) // 4) * 4, np.uint8)
    words[: len(data)] = data
    wide = words.view(np.uint32).astype(np.uint64)
    weights = np.arange(len(wide), 0, -1, dtype=np.uint64)
    return int(wide.sum(dtype=np.uint64)), int((wide * weights).sum(dtype=np.uint64))


def write_header(frame: Array, codec: Codec, dtype: DType, count: int, sums: Sums = check_sums) -> None:
    """Fill the first 72 bytes of ``frame``, uint8, whose rest is the code."""
    code = frame[HEADER_BYTES:]
    fields = _FIELDS.pack(MAGIC, VERSION, codec.id, dtype, 0, BLOCK, 0, count, len(code), codec.number, *sums(code))
    frame[:_CHECKED] = np.frombuffer(fields, np.uint8)
    frame[_CHECKED:HEADER_BYTES] = np.frombuffer(struct.pack("<QQ", *sums(frame[:_CHECKED])), np.uint8)


def pack(code: Array, codec: Codec, dtype: DType, count: int, sums: Sums = check_sums) -> Array:
    """A frame, uint8 [72 + n]."""
    frame = np.empty(HEADER_BYTES + len(code), np.uint8)
    frame[HEADER_BYTES:] = code
    write_header(frame, codec, dtype, count, sums)
    return frame


def unpack(data: Any, sums: Sums = check_sums, who: str = "a peer", expected_bytes: int | None = None) -> Frame:
    """The frame at the beginning of ``data``, uint8; more may follow.

    ``expected_bytes``: of the code, where it holds several runs; None: one run, of which the codec says it.

    Raises:
        TransportError: it is no frame, one of another version, cut off, or changed on its way.
    """
    if len(data) < HEADER_BYTES:
        raise TransportError(f"a frame from {who} has {len(data)} bytes; its header alone has {HEADER_BYTES}")
    header = bytes(data[:HEADER_BYTES])
    magic, version, codec, dtype, _, block, _, count, code_bytes, number, *expected = _FIELDS.unpack(header[:_CHECKED])
    if magic != MAGIC:
        raise TransportError(f"what came from {who} is no frame of a codec: it begins with {magic:#x}")
    if sums(data[:_CHECKED]) != struct.unpack("<QQ", header[_CHECKED:]):
        raise TransportError(f"the header of a frame from {who} was changed on its way")
    if version != VERSION or block != BLOCK:
        raise TransportError(
            f"a frame from {who} has version {version} and blocks of {block}; this is version {VERSION} with {BLOCK}: "
            "run the same hccl_py on all ranks"
        )
    if len(data) - HEADER_BYTES < code_bytes:
        raise TransportError(f"a frame from {who} is cut off: {len(data) - HEADER_BYTES} of {code_bytes} bytes")
    code = data[HEADER_BYTES : HEADER_BYTES + code_bytes]
    if list(sums(code)) != expected:
        raise TransportError(f"the code in a frame from {who} was changed on its way")
    try:
        found = codec_of(CodecId(codec), number)
        kind = check_dtype(DType(dtype), "a frame")
    except ValueError as error:  # ConfigError is one
        raise TransportError(f"a frame from {who} names codec {codec}, element type {dtype}: {error}") from None
    most = found.wire_bytes(count) if expected_bytes is None else expected_bytes
    least = most if found.fixed_size or expected_bytes is not None else 0
    if not least <= len(code) <= most:
        raise TransportError(f"a frame from {who}: {len(code)} bytes of {found.text} are no code of {count} elements")
    return Frame(found, kind, count, code)
