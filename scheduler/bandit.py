"""Bandit: tries what no model knows the price of, one thing at a time against what is in use, with bounded regret.

Successive elimination (E. Even-Dar, S. Mannor, Y. Mansour, "Action Elimination and Stopping Conditions for the
Multi-Armed Bandit and Reinforcement Learning Problems", JMLR 7, 2006) with one challenger at a time: a challenger is in
use until the steps tell it apart from what was in use before (:mod:`hccl_py.scheduler.probation`); the better one
stays. What has been deposed may challenge once more, at once: the machine may have become quicker meanwhile, and it was
not the challenger. Nothing else is tried twice in a network, nothing is drawn by lot: equal events, equal trials.
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
        self._deposed: Arrangement | None = None  # was in use before what is, and has not challenged it yet
        self._again = False  # what challenges now was in use before
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
        if self._deposed is not None:
            return "tries once more what was before", self._deposed
        return next((arm for arm in arms if arm[1] not in self._tried), None)

    def begins(self, current: Arrangement, challenger: Arrangement) -> None:
        """The challenger is in use: neither is one again."""
        self._tried |= {current, challenger}
        self._again, self._deposed = challenger == self._deposed, None

    def wins(self, before: Arrangement) -> None:
        """What is in use stays, in place of ``before``."""
        if not self._again:
            self._deposed = before
        self._again = False

    def lose(self, seconds: float) -> None:
        """Steps under a challenger have taken so much longer."""
        self.lost_s += max(0.0, seconds)

    def exhausted(self, usual_s: float, time_s: float) -> bool:
        """True if trials have lost what they may."""
        return self.lost_s > FIRST_STEPS * usual_s + SHARE * time_s
