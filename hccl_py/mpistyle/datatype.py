"""Basic datatypes by MPI's names. Each has a NumPy type of the same layout; derived datatypes are not built."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccl_py.core.errors import ConfigError


class Datatype:
    """One of MPI's basic types: its name and the NumPy type of its elements."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        self.kind = np.dtype(kind)

    def Get_size(self) -> int:
        """Bytes of an element."""
        return int(self.kind.itemsize)

    def Get_extent(self) -> tuple[int, int]:
        """Lower bound and extent in bytes."""
        return 0, self.kind.itemsize

    def Get_name(self) -> str:
        """MPI's name."""
        return f"MPI_{self.name}"

    size = itemsize = extent = property(Get_size)

    def __repr__(self) -> str:
        return f"MPI.{self.name}"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"MPI.{self.name}.{name}: hccl_py.MPI has basic datatypes only; send a contiguous copy of the elements"
        )


# Name, and the NumPy type of this machine; the first of a type is the one that automatic discovery reports.
_NAMES: tuple[tuple[str, str], ...] = (
    ("BYTE", "u1"), ("CHAR", "u1"), ("SIGNED_CHAR", "b"), ("UNSIGNED_CHAR", "B"), ("SHORT", "h"),
    ("UNSIGNED_SHORT", "H"), ("INT", "i"), ("UNSIGNED", "I"), ("LONG", "l"), ("UNSIGNED_LONG", "L"),
    ("LONG_LONG", "q"), ("UNSIGNED_LONG_LONG", "Q"), ("FLOAT", "f"), ("DOUBLE", "d"), ("C_BOOL", "?"),
    ("INT8_T", "i1"), ("INT16_T", "i2"), ("INT32_T", "i4"), ("INT64_T", "i8"), ("UINT8_T", "u1"),
    ("UINT16_T", "u2"), ("UINT32_T", "u4"), ("UINT64_T", "u8"), ("C_FLOAT_COMPLEX", "F"),
    ("C_DOUBLE_COMPLEX", "D"), ("AINT", "p"), ("COUNT", "i8"), ("OFFSET", "i8"),
)  # fmt: skip
_ALIASES = {
    "BOOL": "C_BOOL", "CXX_BOOL": "C_BOOL", "SINT8_T": "INT8_T", "SINT16_T": "INT16_T", "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T", "UNSIGNED_INT": "UNSIGNED", "COMPLEX": "C_FLOAT_COMPLEX",
    "FLOAT_COMPLEX": "C_FLOAT_COMPLEX", "DOUBLE_COMPLEX": "C_DOUBLE_COMPLEX", "REAL4": "FLOAT", "REAL8": "DOUBLE",
    "INTEGER4": "INT32_T", "INTEGER8": "INT64_T",
}  # fmt: skip


def basic_datatypes() -> dict[str, Datatype]:
    """The datatypes by name, MPI's aliases included."""
    made = {name: Datatype(name, kind) for name, kind in _NAMES}
    return {**made, **{alias: made[name] for alias, name in _ALIASES.items()}}


def kind_of(datatype: Any) -> np.dtype[Any]:
    """The NumPy type of a Datatype, or of a type character as mpi4py takes it ("d").

    Raises ConfigError for anything else.
    """
    if isinstance(datatype, Datatype):
        kind: np.dtype[Any] = datatype.kind
        return kind
    if isinstance(datatype, str):
        try:
            return np.dtype(datatype)
        except TypeError:
            pass
    raise ConfigError(f"{datatype!r} is no datatype of hccl_py.MPI: one of its basic types, or a type character")
