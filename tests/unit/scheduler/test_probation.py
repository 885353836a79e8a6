"""A switch is judged as early as the noise allows, and not kept if its gain does not come."""

from __future__ import annotations

import random

import pytest

from hccl_py.scheduler.probation import LEAST, MOST, Verdict, gain_s, judge


def verdict_of(true_gain: float, predicted: float, noise: float, seed: int, before: int = 8) -> tuple[Verdict, int]:
    """What is decided, after how many measurements, of steps that took 1 s before."""
    chance = random.Random(seed)
    befores = [1 + chance.gauss(0, noise) for _ in range(before)]
    afters: list[float] = []
    while True:
        afters.append(1 - true_gain + chance.gauss(0, noise))
        verdict = judge(befores, afters, predicted)
        if verdict is not Verdict.OPEN:
            return verdict, len(afters)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_what_is_clear_is_decided_at_once(noise: float) -> None:
    for seed in range(20):
        assert verdict_of(0.3, 0.3, noise, seed) == (Verdict.STAYS, LEAST)
        assert verdict_of(-0.3, 0.3, noise, seed) == (Verdict.TAKEN_BACK, LEAST)


def test_noise_takes_longer_but_not_for_ever() -> None:
    counts = [verdict_of(0.03, 0.1, 0.05, seed)[1] for seed in range(40)]
    assert max(counts) == MOST + 1 and min(counts) >= LEAST


def test_harm_is_seldom_kept_and_gain_seldom_lost() -> None:
    kept = sum(verdict_of(-0.02, 0.05, 0.02, seed)[0] is Verdict.STAYS for seed in range(200))
    lost = sum(verdict_of(0.05, 0.05, 0.02, seed)[0] is Verdict.TAKEN_BACK for seed in range(200))
    assert kept <= 6 and lost <= 6


def test_a_gain_that_does_not_come_is_not_kept() -> None:
    assert verdict_of(0.0, 0.1, 0.0, 0)[0] is Verdict.TAKEN_BACK
    assert judge([1.0], [5.0, 0.5], 0.5) is Verdict.OPEN  # the first one does not count, one is not enough
    assert judge([1.0], [5.0, 0.5, 0.5], 0.5) is Verdict.STAYS and gain_s([1.0], [5.0, 0.5, 0.5]) == 0.5
