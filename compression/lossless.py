"""Lossless: the exponents of gradients are alike, so they are coded as distances below the largest of a block.

The code of 256 words of float32 (sign, 8 bits of exponent, 23 of mantissa) is

* 3 bytes: the largest exponent; the width w of distances, 0 to 8, with 16 if all lower halves are zero, 32 if all signs
  and upper mantissas are, and 64 if there are zeros; the number n of escapes;
* the lower halves (512 bytes), then signs and upper mantissas (256), unless they are all zero;
* the distances' lowest w bits, in planes of 4, 2 and 1 bits, or as bytes where w is 8: byte i of a plane of b bits has
  those of elements i, i + 32 b, i + 64 b, ...;
* of distances that are larger (escapes; none where w is 8): n places, ascending, and n exponents.

Zeros and denormals have the exponent 0, far below: if a block has both them and others, and w is 1 to 7, their distance
is coded as 2**w - 1, which then stands for nothing else. w is what makes the code shortest, the smallest of equals.

An end of fewer than 256 words is a byte and the words; where all lower halves are zero, the byte is 1 and only upper
halves follow. So a block has at most 3 bytes more than its words. A frame of reference with patches, as Zukowski et al.
2006 have it for integers.
"""

from __future__ import annotations

import numpy as np

from hccl_py.compression.blocks import BLOCK
from hccl_py.compression.codec import Array, Codec, CodecId
from hccl_py.compression.counter import Draw
from hccl_py.compression.elements import STORED
from hccl_py.core.errors import ConfigError, TransportError
from hccl_py.core.types import DType

_WIDTH, _NO_LOW, _NO_HIGH, _ZEROS = 15, 16, 32, 64
_HEADER_BYTES = 3
_PLANES = {w: [(b, w & -(2 * b) & 7) for b in (4, 2, 1) if w & b] for w in range(8)}  # bits, and those that lie lower
WORD_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


class Lossless(Codec):
    """What was encoded comes back bit for bit."""

    id = CodecId.LOSSLESS
    fixed_size = False
    exact = True
    bits_per_element = 27.4  # of normally distributed values; gradients with zeros have fewer

    def wire_bytes(self, count: int) -> int:
        """At most."""
        whole, rest = divmod(count, BLOCK)
        return whole * (_HEADER_BYTES + 4 * BLOCK) + (1 + 4 * rest if rest else 0)

    def encode(self, values: Array, draw: Draw, offset: int = 0) -> Array:
        """The codes of the blocks one after the other; neither chance nor place matters."""
        words = values.view(np.uint32)
        whole = len(words) // BLOCK * BLOCK
        codes = [_block_code(block) for block in words[:whole].reshape(-1, BLOCK)]
        if whole < len(words):
            codes.append(_end_code(words[whole:]))
        return np.concatenate([np.zeros(0, np.uint8), *codes])

    def decode(self, code: Array, count: int) -> Array:
        """The same bits."""
        self.check(code, count, DType.FLOAT32)
        words, at = np.empty(count, np.uint32), 0
        for begin in range(0, count, BLOCK):
            out = words[begin : begin + BLOCK]
            at += _decode_block(code[at:], out) if len(out) == BLOCK else _decode_end(code[at:], out)
        if at != len(code):
            raise TransportError(f"lossless: {len(code)} bytes are no code of {count} elements")
        return words.view(np.float32)

    def check(self, code: Array, count: int, dtype: DType) -> None:
        """Raise TransportError if ``code`` is too short for ``count`` elements, or none of this type are encoded."""
        if dtype not in WORD_TYPES or count // BLOCK * _HEADER_BYTES > len(code):
            raise TransportError(f"lossless: {len(code)} bytes are no code of {count} elements of {dtype.name.lower()}")

    def error_bound(self, values: Array) -> Array:
        """None; no number either where the value is none."""
        bound: Array = np.where(np.isfinite(values), 0.0, np.inf)
        return bound


def check_words(dtype: DType) -> None:
    """Raise ConfigError if there are no words for elements of this type."""
    if dtype not in WORD_TYPES:
        names = ", ".join(kind.name.lower() for kind in WORD_TYPES)
        raise ConfigError(f"lossless: it takes {names}; this is {dtype.name.lower()}")


def words_of(stored: Array, dtype: DType) -> Array:
    """Elements, as STORED says, as words of the codec, float32 [n]: those of 16 bits become upper halves.

    Raises:
        ConfigError: there are no words for this type.
    """
    check_words(dtype)
    if dtype is DType.FLOAT32:
        return stored
    words: Array = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return words


def stored_of(words: Array, dtype: DType) -> Array:
    """What :func:`words_of` was given."""
    if dtype is DType.FLOAT32:
        return words
    halves: Array = (words.view(np.uint32) >> np.uint32(16)).astype(STORED[dtype])
    return halves


def _block_code(words: Array) -> Array:
    low, high = words.astype(np.uint16), ((words >> 16 & 0x7F) | (words >> 24 & 0x80)).astype(np.uint8)
    exponents = (words >> 23).astype(np.uint8)
    top, is_zero = exponents.max(), exponents == 0
    distances, zeros = top - exponents, bool(is_zero.any() and top > 0)
    escapes = {w: np.flatnonzero((distances >= (1 << w) - zeros) & ~(is_zero & zeros)) for w in range(zeros, 8)}
    escapes[8] = np.zeros(0, np.int64)
    width = min(escapes, key=lambda w: BLOCK // 8 * w + 2 * len(escapes[w]))
    places = escapes[width]
    flags = width | (0 if low.any() else _NO_LOW) | (0 if high.any() else _NO_HIGH)
    flags |= _ZEROS if zeros and width < 8 else 0
    parts = [np.array([top, flags, len(places)], np.uint8)]
    parts += [part.view(np.uint8) for part in (low, high) if part.any()]
    if width == 8:
        parts.append(distances)
    else:
        if zeros:
            distances[is_zero] = (1 << width) - 1
        for bits, shift in _PLANES[width]:
            fields = (distances >> shift & ((1 << bits) - 1)).reshape(8 // bits, -1)
            parts.append(np.bitwise_or.reduce(fields << np.arange(0, 8, bits, dtype=np.uint8)[:, None]))
        parts += [places.astype(np.uint8), exponents[places]]
    return np.concatenate(parts)


def _decode_block(code: Array, out: Array) -> int:
    """Fill ``out``, uint32 [BLOCK], from the beginning of ``code``; returns how many bytes that took."""
    top, flags, num_escapes = (
        (int(byte) for byte in code[:_HEADER_BYTES]) if len(code) >= _HEADER_BYTES else (0, 255, 0)
    )
    width = flags & _WIDTH
    sizes = [0 if flags & _NO_LOW else 2 * BLOCK, 0 if flags & _NO_HIGH else BLOCK, BLOCK // 8 * width, 2 * num_escapes]
    end = _HEADER_BYTES + sum(sizes)
    wrong = flags >= 2 * _ZEROS or width > 8 or (width == 8 and num_escapes) or (flags & _ZEROS and width in (0, 8))
    if wrong or len(code) < end:
        raise TransportError("lossless: there is no such block")
    low, high, planes, escapes = np.split(code[_HEADER_BYTES:end], np.cumsum(sizes)[:-1])
    distances = np.zeros(BLOCK, np.uint8)
    if width == 8:
        distances |= planes
    for bits, shift in _PLANES.get(width, ()):
        plane, planes = planes[: bits * BLOCK // 8], planes[bits * BLOCK // 8 :]
        fields = plane >> np.arange(0, 8, bits, dtype=np.uint8)[:, None] & np.uint8((1 << bits) - 1)
        distances |= fields.reshape(-1) << np.uint8(shift)
    if flags & _ZEROS:
        distances[distances == (1 << width) - 1] = top
    exponents = np.uint8(top) - distances
    places, values = np.split(escapes, 2)
    if (places[1:] <= places[:-1]).any():
        raise TransportError("lossless: places of a block do not ascend")
    exponents[places] = values
    out[:] = exponents.astype(np.uint32) << np.uint32(23)
    if len(low):
        out |= low.copy().view(np.uint16)
    if len(high):
        out |= (high & 0x7F).astype(np.uint32) << np.uint32(16) | (high & 0x80).astype(np.uint32) << np.uint32(24)
    return end


def _end_code(words: Array) -> Array:
    halves = not (words & np.uint32(0xFFFF)).any()
    body = (words >> np.uint32(16)).astype(np.uint16) if halves else words
    return np.concatenate([np.array([halves], np.uint8), body.view(np.uint8)])


def _decode_end(code: Array, out: Array) -> int:
    """As :func:`_decode_block`, of fewer words."""
    kind = int(code[0]) if len(code) else 2
    end = 1 + (2 if kind else 4) * len(out)
    if kind > 1 or len(code) < end:
        raise TransportError("lossless: there is no such end")
    body = code[1:end].copy()
    out[:] = body.view(np.uint16).astype(np.uint32) << np.uint32(16) if kind else body.view(np.uint32)
    return end
