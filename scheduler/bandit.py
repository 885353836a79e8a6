"""Bandit: tries what no model knows the price of, one thing at a time against what is in use, with bounded regret.

Successive elimination (E. Even-Dar, S. Mannor, Y. Mansour, "Action Elimination and Stopping Conditions for the
Multi-Armed Bandit and Reinforcement Learning Problems", JMLR 7, 2006) with one challenger at a time: a challenger is in
use until the steps tell it apart from what was in use before (:mod:`hccl_py.scheduler.probation`); the better one
stays, the other is never tried again in this network. Nothing is drawn by lot: equal events, equal trials.
"""

from __future__ import annotations

from collections.abc import Iterable

from hccl_py.scheduler.arrangement import Arrangement

LEAST_GAIN = 0.01  # of a step: what gains less is not worth a switch
FIRST_STEPS, SHARE = 6.0, 0.005  # what all trials may lose: so many steps' time, and a share of all time


class Bandit:
    """The trials in one network."""

    def __init__(self) -> None:
        self._tried: set[Arrangement] = set()
        self.lost_s = 0.0  # by steps under challengers that were slower

    def next(
        self, arms: Iterable[tuple[str, Arrangement]], usual_s: float, time_s: float
    ) -> tuple[str, Arrangement] | None:
        """The next challenger; None: all were tried, or nothing may be lost at present.

        Args:
            usual_s: seconds of a step.
            time_s: of the whole job so far.
        """
        if self.exhausted(usual_s, time_s):
            return None
        return next((arm for arm in arms if arm[1] not in self._tried), None)

    def begins(self, current: Arrangement, challenger: Arrangement) -> None:
        """Neither is a challenger again."""
        self._tried |= {current, challenger}

    def lose(self, seconds: float) -> None:
        """Steps under a challenger have taken so much longer."""
        self.lost_s += max(0.0, seconds)

    def exhausted(self, usual_s: float, time_s: float) -> bool:
        """True if trials have lost what they may."""
        return self.lost_s > FIRST_STEPS * usual_s + SHARE * time_s
