"""Python objects as bytes that may come from another rank: plain data only, unless the user trusts all ranks.

Unpickling runs what the sender says. So what arrives is unpickled with nothing to call but the makers of plain data:
numbers, text, bytes, the built-in containers, slices, NumPy arrays and scalars of plain types. Objects of other
classes are refused, on both sides, unless ``HCCL_PY_PICKLE=any``.
"""

from __future__ import annotations

import builtins
import io
import pickle
from typing import Any

import numpy as np

from hccl_py.core.errors import ConfigError

_BUILTINS = frozenset({"bytearray", "complex", "frozenset", "set", "slice", "range"})
_PLAIN_KINDS = frozenset("biufcSUmM")  # of NumPy's element types; not objects, not records


def array_from(data: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    """The array that was sent; a scalar for the shape ``()`` of one. Called while objects are read."""
    element = np.dtype(kind)
    if element.kind not in _PLAIN_KINDS:
        raise ConfigError(f"an array of {kind} arrived, which is no plain type")
    return np.frombuffer(bytearray(data), element).reshape(shape)


def scalar_from(data: bytes, kind: str) -> Any:
    """The NumPy scalar that was sent."""
    return array_from(data, kind, (1,))[0]


_OURS = {"array_from": array_from, "scalar_from": scalar_from}


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.generic) and obj.dtype.kind in _PLAIN_KINDS:
            return scalar_from, (obj.tobytes(), obj.dtype.str)
        if type(obj) is np.ndarray and obj.dtype.kind in _PLAIN_KINDS:
            return array_from, (obj.tobytes(), obj.dtype.str, obj.shape)
        kind = obj if isinstance(obj, type) else type(obj)
        ours = any(obj is maker for maker in _OURS.values())
        if ours or (kind.__module__ == "builtins" and kind.__name__ in _BUILTINS):
            return NotImplemented
        raise ConfigError(_refusal(f"{kind.__module__}.{kind.__qualname__}"))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in _OURS:
            return _OURS[name]
        if module == "builtins" and name in _BUILTINS:
            return getattr(builtins, name)
        raise ConfigError(_refusal(f"{module}.{name}"))


def _refusal(what: str) -> str:
    return (
        f"{what} is not plain data (numbers, text, bytes, containers, NumPy arrays of numbers); reading it would run "
        "code of the rank that sent it. If all ranks of the job are trusted: HCCL_PY_PICKLE=any"
    )


class Objects:
    """Turns objects into bytes and back.

    Args:
        anything: whatever pickle can do, for jobs whose ranks trust each other.
    """

    def __init__(self, anything: bool) -> None:
        self._anything = anything

    def dumps(self, obj: Any) -> bytes:
        """The bytes. Raises ConfigError for what is not plain data."""
        if self._anything:
            return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        out = io.BytesIO()
        _Writer(out, pickle.HIGHEST_PROTOCOL).dump(obj)
        return out.getvalue()

    def loads(self, data: bytes) -> Any:
        """The object. Raises ConfigError for what is not plain data, or no object at all."""
        if self._anything:
            return pickle.loads(data)
        try:
            return _Reader(io.BytesIO(data)).load()
        except ConfigError:
            raise
        except Exception as error:  # whatever broken bytes lead to
            raise ConfigError(f"what arrived is no object: {type(error).__name__}: {error}") from None
