"""Random numbers that are a function of what they are for, not of how many were drawn before.

Stochastic rounding of element i of a parameter in a step by a rank is the same whatever bucket, shard or thread it is
done in, after a restart and on any CPU or GPU. Native: ``Draw`` in native/kernels/codec_words.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint32]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

_MASK = (1 << 64) - 1
OWNER = -1  # the rank of whoever encodes a result: the same numbers whichever rank that is


@dataclass(frozen=True)
class Draw:
    """What random numbers are for: a run's seed, a parameter's number, a training step, and the rank that encodes."""

    seed: int = 0
    parameter: int = 0
    step: int = 0
    rank: int = 0

    @property
    def key(self) -> int:
        """64 bits mixed from all four (splitmix64, Steele et al. 2014)."""
        state = 0
        for word in (self.seed, self.parameter, self.step, self.rank):
            state = _mixed(state ^ (word & _MASK))
        return state


def _mixed(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def bits(key: int, offset: int, count: int) -> Words:
    """32 random bits for each of ``count`` elements from ``offset`` of the parameter on, uint32 [count]."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    place = np.arange(offset, offset + count, dtype=np.uint64)
    # Elements from 2**32 on: by the block they are in, which is what the native code knows of them.
    upper = ((place - place % np.uint64(256)) >> np.uint64(32)).astype(np.uint32) * np.uint32(0x85EBCA6B)
    x = place.astype(np.uint32) ^ (low ^ upper)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D) + high
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    mixed: Words = x ^ (x >> np.uint32(16))
    return mixed


def units(key: int, offset: int, count: int) -> Floats:
    """As :func:`bits`, but numbers of [0, 1), multiples of 2**-24, float32 [count]."""
    numbers: Floats = (bits(key, offset, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return numbers


def keys(draws: Draw, parameters: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """``Draw.key`` for each of many parameters, uint64 [n]; seed, step and rank are those of ``draws``."""
    state = np.uint64(_mixed(draws.seed & _MASK)) ^ np.asarray(parameters, np.int64).view(np.uint64)
    for word in (None, draws.step, draws.rank):
        if word is not None:
            state = state ^ np.uint64(word & _MASK)
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    mixed: np.ndarray[Any, np.dtype[np.uint64]] = state
    return mixed
