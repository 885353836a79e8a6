"""The enumerations are written twice, in core/types.py and in types.hpp: here they are compared."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from hccl_py.core.types import Collective, DType, ReduceOp

HEADER = Path(__file__).parents[2] / "native" / "include" / "hccl_py" / "types.hpp"
PAIRS: dict[str, type[IntEnum]] = {
    "HCCL_PY_COLLECTIVES": Collective,
    "HCCL_PY_DTYPES": DType,
    "HCCL_PY_REDUCE_OPS": ReduceOp,
}
COUNTS = {"kNumCollectives": Collective, "kNumDTypes": DType, "kNumReduceOps": ReduceOp}


def native_rows(text: str, macro: str) -> dict[str, tuple[int, ...]]:
    """Return name -> numbers of the X-macro ``macro`` in the header's text; a trailing "_" of a name is dropped."""
    body = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)\n", text)
    assert body is not None, f"{macro} is not in the header"
    rows = re.findall(r"X\((\w+), (\d+)(?:, (\d+))?\)", body[1])
    return {name.rstrip("_"): tuple(int(number) for number in numbers if number) for name, *numbers in rows}


def differences(text: str, macro: str, enum: type[IntEnum]) -> list[str]:
    """Return where the header and the Python enumeration differ: names, numbers, and for types the sizes."""
    native = native_rows(text, macro)
    python = {
        member.name.lower(): (member.value, member.itemsize) if isinstance(member, DType) else (member.value,)
        for member in enum
    }
    return [
        f"{name}: {native.get(name)} in types.hpp, {python.get(name)} in types.py"
        for name in sorted(native.keys() | python.keys())
        if native.get(name) != python.get(name)
    ]


@pytest.mark.parametrize("macro", PAIRS)
def test_names_and_numbers_agree(macro: str) -> None:
    assert differences(HEADER.read_text(encoding="utf-8"), macro, PAIRS[macro]) == []


@pytest.mark.parametrize("constant", COUNTS)
def test_counts_agree(constant: str) -> None:
    found = re.search(rf"constexpr int {constant} = (\d+);", HEADER.read_text(encoding="utf-8"))
    assert found is not None and int(found[1]) == len(COUNTS[constant])


@pytest.mark.parametrize(
    ("macro", "old", "new"),
    [
        ("HCCL_PY_COLLECTIVES", "X(gather, 6)", "X(gather, 7)"),
        ("HCCL_PY_COLLECTIVES", "X(barrier, 8)", ""),
        ("HCCL_PY_DTYPES", "X(int16, 7, 2)", "X(int16, 7, 4)"),
        ("HCCL_PY_DTYPES", "X(uint8, 10, 1)", "X(uint8, 10, 1) X(uint4, 15, 1)"),
        ("HCCL_PY_REDUCE_OPS", "X(min, 3)", "X(minimum, 3)"),
    ],
)
def test_checker_rejects_a_difference(macro: str, old: str, new: str) -> None:
    text = HEADER.read_text(encoding="utf-8")
    assert old in text
    assert differences(text.replace(old, new), macro, PAIRS[macro])
