"""Probation: whether steps have become faster by a switch, judged as early as the noise of the steps allows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from enum import Enum

LEAST = 3  # measurements after a switch, of which the first does not count
MOST = 12  # then it is judged by what there is
_CERTAIN = 2.5  # standard errors, of what is to stay
_SUSPECT = 1.5  # and of what is taken back: harm costs every step
_LEAST_NOISE = 0.01  # relative, of one measurement
COMES = 0.25  # share of the predicted gain that must come, where it can be told


class Verdict(Enum):
    """What is to be done about a switch."""

    OPEN = "open"
    STAYS = "stays"
    TAKEN_BACK = "taken back"


def gain_s(before_s: Sequence[float], after_s: Sequence[float]) -> float:
    """Seconds that a step has become shorter; the first one after counts only if it is alone."""
    return statistics.median(before_s) - statistics.median(after_s[1:] or after_s)


def judge(before_s: Sequence[float], after_s: Sequence[float], predicted_s: float) -> Verdict:
    """Compare what steps took before a switch and after it.

    Args:
        before_s: one or more.
        after_s: the first one does not count.
        predicted_s: the gain for which the switch was made.

    The gain is that of the medians; it is certain where it is some standard errors from what it is compared with. Noise
    is 1.48 times the median absolute deviation from the own median: the standard deviation of a normal distribution.
    """
    if len(after_s) < LEAST:
        return Verdict.OPEN
    after_s = after_s[1:]
    gain = statistics.median(before_s) - statistics.median(after_s)
    off = [abs(x - statistics.median(group)) for group in (before_s, after_s) for x in group]
    noise = max(1.48 * statistics.median(off), _LEAST_NOISE * statistics.median(before_s))
    error = 1.25 * noise * math.sqrt(1 / len(before_s) + 1 / len(after_s))  # 1.25: of a median, not of a mean
    wanted = COMES * predicted_s
    if gain < wanted - _SUSPECT * error:
        return Verdict.TAKEN_BACK
    if gain > wanted + _CERTAIN * error:
        return Verdict.STAYS
    if len(after_s) < MOST:
        return Verdict.OPEN
    return Verdict.STAYS if gain > wanted else Verdict.TAKEN_BACK
