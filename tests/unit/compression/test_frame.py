"""Frames: what is cut off or changed is an error, never a crash or a wrong array."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.codecs import decode, encode, unpack
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.frame import HEADER_BYTES, check_sums
from hccl_py.compression.frame import unpack as reference_unpack
from hccl_py.core.errors import TransportError
from hccl_py.core.types import DType

TEXTS = ["fp16", "fp8_e4m3", "int8", "int4", "sign", "topk:0.1", "threshold:0.5", "randomk:0.1", "blocksparse:0.5"]
TEXTS += ["powersgd:2", "lossless"]
FRAMES = {text: encode(text, np.linspace(-1, 1, 700).astype(np.float32)) for text in TEXTS}


@pytest.mark.parametrize("text", TEXTS)
def test_a_frame_says_what_it_holds(text: str) -> None:
    for read in (unpack, reference_unpack):
        found = read(np.concatenate([FRAMES[text], np.zeros(5, np.uint8)]))
        assert (found.codec, found.dtype, found.num_elements) == (parse_codec(text), DType.FLOAT32, 700)
    assert len(decode(FRAMES[text])) == 700


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_changed_bits_are_an_error(text: str, data: st.DataObject) -> None:
    frame = FRAMES[text].copy()
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if (frame == FRAMES[text]).all():
        return
    for read in (decode, reference_unpack):
        with pytest.raises(TransportError):
            read(frame)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_cut_off_frames_are_an_error(text: str, data: st.DataObject) -> None:
    with pytest.raises(TransportError):
        decode(FRAMES[text][: data.draw(st.integers(0, len(FRAMES[text]) - 1))])


@settings(max_examples=25, deadline=None)
@given(junk=st.binary(max_size=200))
def test_junk_is_an_error(junk: bytes) -> None:
    with pytest.raises(TransportError):
        decode(junk)


@pytest.mark.parametrize(("place", "value"), [(5, 200), (6, 99), (6, int(DType.INT32)), (17, 0), (22, 255)])
def test_a_header_that_lies_with_true_sums_is_an_error(place: int, value: int) -> None:
    """As a sender of another build, or with malice, would make it: nothing is read or written out of bounds."""
    for text in TEXTS:
        frame = FRAMES[text].copy()
        frame[place] = value
        _sign(frame)
        with pytest.raises(TransportError):
            decode(frame)


def _sign(frame: np.ndarray[Any, Any]) -> None:
    frame[56:HEADER_BYTES] = np.frombuffer(struct.pack("<QQ", *check_sums(frame[:56])), np.uint8)


def test_sparse_indices_that_lie_are_an_error() -> None:
    frame = FRAMES["topk:0.1"].copy()
    frame[HEADER_BYTES : HEADER_BYTES + 4] = 255
    frame[40:56] = np.frombuffer(struct.pack("<QQ", *check_sums(frame[HEADER_BYTES:])), np.uint8)
    _sign(frame)
    with pytest.raises(TransportError, match="ascend"):
        decode(frame)
