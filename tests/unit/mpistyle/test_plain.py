"""Objects of other ranks: plain data comes back equal; nothing else is written or read, unless all is allowed."""

from __future__ import annotations

import contextlib
import os
import pickle
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py import ConfigError
from hccl_py.mpistyle.plain import Objects

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False)
)  # fmt: skip
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers()) | st.sets(st.text()) | st.binary().map(bytearray)
    ),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_data_comes_back(obj: Any) -> None:
    objects = Objects(anything=False)
    assert objects.loads(objects.dumps(obj)) == obj


@pytest.mark.parametrize("array", [
    np.arange(6).reshape(2, 3), np.array(2.5), np.zeros((0, 3)), np.array([1 + 2j]), np.array(["a", "bc"]),
    np.arange(10)[::2], np.array([True]), np.array(["2020-01-01"], "M8[D]"), np.arange(4, dtype=">i4"),
])  # fmt: skip
def test_arrays_come_back_writable(array: Any) -> None:
    objects = Objects(anything=False)
    back = objects.loads(objects.dumps({"x": [array]}))["x"][0]
    assert back.dtype == array.dtype and back.shape == array.shape and back.flags.writeable
    np.testing.assert_array_equal(back, array)


def test_scalars_keep_their_type() -> None:
    objects = Objects(anything=False)
    back = objects.loads(objects.dumps([np.float32(1.5), np.int8(-3), slice(1, None), range(3)]))
    assert back == [1.5, -3, slice(1, None), range(3)] and type(back[0]) is np.float32


class Own:
    pass


@pytest.mark.parametrize("obj", [Own(), Own, os.system, date(2020, 1, 1), Decimal(1), np.array([Own()], object), len])
def test_other_objects_are_refused_where_they_are_sent(obj: Any) -> None:
    with pytest.raises(ConfigError, match="HCCL_PY_PICKLE=any"):
        Objects(anything=False).dumps([obj])


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def _evil_array() -> bytes:
    """An array of objects by our own maker of arrays."""
    call = pickle.dumps(Objects(anything=False).dumps(np.zeros(1)))
    return pickle.loads(call).replace(b"<f8", b"|O\x94"[:3])


@pytest.mark.parametrize("data", [
    pickle.dumps(Evil()), pickle.dumps(np.zeros(3)), pickle.dumps(date(2020, 1, 1)), b"cbuiltins\neval\n.",
    b"cos\nsystem\n.", b"", b"\x80\x05", b"junk", b"\x80\x05N", _evil_array(),
])  # fmt: skip
def test_nothing_else_is_read(data: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"plain|no object"):
        Objects(anything=False).loads(data)
    assert not list(tmp_path.iterdir())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_broken_bytes_are_one_error(noise: bytes, cut: int) -> None:
    objects = Objects(anything=False)
    good = objects.dumps({"a": [1, 2.5, np.arange(3)], "b": "text"})
    for data in (noise, good[:cut], good[:cut] + noise + good[cut + len(noise) :]):
        with contextlib.suppress(ConfigError):
            objects.loads(data)


def test_anything_is_allowed_where_ranks_are_trusted() -> None:
    objects = Objects(anything=True)
    assert objects.loads(objects.dumps([date(2020, 1, 1), Decimal(3)])) == [date(2020, 1, 1), Decimal(3)]
