"""Call sites: which line of the user's program called, for the error of ranks that disagree."""

from __future__ import annotations

import sys
from types import CodeType

Site = tuple[CodeType, int]  # raw: code object and line; made into text only for an error

_INSIDE = ("hccl_py.", "torch.")


def call_site() -> Site | None:
    """The nearest frame outside hccl_py and torch, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != "hccl_py" and not name.startswith(_INSIDE):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def describe(site: Site | None) -> str:
    """``"train.py:31 in step"``."""
    return "an unknown place" if site is None else f"{site[0].co_filename}:{site[1]} in {site[0].co_name}"
