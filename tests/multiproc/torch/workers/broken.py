"""A check that fails: the launch must not pass."""

from __future__ import annotations

from checks import run_all, start

RANK, SIZE = start()


def wrong() -> None:
    assert RANK != 0, "this rank is wrong on purpose"


run_all({"wrong": wrong})
