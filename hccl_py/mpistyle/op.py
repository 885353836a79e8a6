"""Reduction operators by MPI's names: what they are on buffers, and what they do to Python objects."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import ReduceOp

Function = Callable[[Any, Any], Any]


class Op:
    """An operator; called with two objects it combines them.

    Args:
        name: MPI's.
        function: of two objects.
        on_buffers: the engine's operator; None: not on buffers.
        logical: it takes elements for true or false: on buffers of bool only.
    """

    def __init__(
        self, name: str, function: Function, on_buffers: ReduceOp | None = None, logical: bool = False
    ) -> None:
        self.name = name
        self.logical = logical
        self.on_buffers = on_buffers
        self._function = function

    def __call__(self, x: Any, y: Any) -> Any:
        return self._function(x, y)

    def __repr__(self) -> str:
        return f"MPI.{self.name}"

    @property
    def is_predefined(self) -> bool:
        """True unless it was made by Create."""
        return self.name != "Op.Create(...)"

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        """An operator for Python objects. Always folded in rank order, so ``commute`` changes nothing."""
        return cls("Op.Create(...)", function)

    def Free(self) -> None:
        """Nothing to free."""


def buffer_op(op: Op | ReduceOp, kind: Any) -> ReduceOp:
    """The engine's operator for a buffer of this NumPy type (None: not known, and not complex).

    Raises ConfigError where there is none.
    """
    if isinstance(op, ReduceOp):
        return op
    if not isinstance(op, Op):
        raise ConfigError(f"{op!r} is no operator of hccl_py.MPI")
    if op.on_buffers is None:
        raise ConfigError(f"{op!r} is not on buffers: use the method in lower case, which takes Python objects")
    if op.logical and getattr(kind, "kind", "") != "b":
        raise ConfigError(f"{op!r} is on buffers of bool only, these are {kind}: compare with 0 first")
    if getattr(kind, "kind", "") == "c" and op.on_buffers is not ReduceOp.SUM:
        raise ConfigError(f"{op!r} is not on buffers of complex numbers; MPI.SUM is")
    return op.on_buffers


def _located(better: Function) -> Function:
    """MAXLOC, MINLOC: pairs of value and place; the smaller place where the values are equal."""

    def combine(x: Any, y: Any) -> Any:
        if x[0] == y[0]:
            return x[0], min(x[1], y[1])
        return x if better(x[0], y[0]) else y

    return combine


def basic_ops() -> dict[str, Op]:
    """The operators by name."""
    rows: tuple[tuple[Any, ...], ...] = (
        ("SUM", operator.add, ReduceOp.SUM), ("PROD", operator.mul, ReduceOp.PROD),
        ("MAX", lambda x, y: y if y > x else x, ReduceOp.MAX), ("MIN", lambda x, y: y if y < x else x, ReduceOp.MIN),
        ("LAND", lambda x, y: bool(x) & bool(y), ReduceOp.BAND, True),
        ("LOR", lambda x, y: bool(x) | bool(y), ReduceOp.BOR, True),
        ("LXOR", lambda x, y: bool(x) ^ bool(y), ReduceOp.BXOR, True),
        ("BAND", operator.and_, ReduceOp.BAND), ("BOR", operator.or_, ReduceOp.BOR),
        ("BXOR", operator.xor, ReduceOp.BXOR), ("MAXLOC", _located(operator.gt)), ("MINLOC", _located(operator.lt)),
        ("REPLACE", lambda x, y: y), ("NO_OP", lambda x, y: x),
    )  # fmt: skip
    return {row[0]: Op(*row) for row in rows}
