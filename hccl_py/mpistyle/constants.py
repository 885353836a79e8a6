"""Names that stand for themselves: IN_PLACE, BOTTOM, and the numbers of anybody, any tag and nobody."""

from __future__ import annotations


class Word:
    """A constant that is only compared by identity."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"MPI.{self._name}"


IN_PLACE = Word("IN_PLACE")
BOTTOM = Word("BOTTOM")

ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
UNDEFINED = -32766
TAG_UB = (1 << 30) - 1  # the largest tag; those above belong to hccl_py
