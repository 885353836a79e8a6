"""Outcome: one switch, what was predicted of it and what came; Trial: while that is still being measured."""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.scheduler.arrangement import Arrangement


@dataclass(frozen=True)
class Outcome:
    """One switch, for people: what was predicted and what came."""

    step: int
    why: str
    predicted_gain_s: float
    achieved_gain_s: float | None = None
    taken_back: bool = False
    trial: bool = False  # nothing was predicted


@dataclass
class Trial:
    """A switch on probation."""

    before: Arrangement
    before_s: tuple[float, ...]
    steps_s: list[float]
    outcome: Outcome
    wanted_s: float  # the gain for which it was made; probation asks for a part of it
