"""How a block of elements is cut into slots at run time. The engine cuts in the same way (docs/PLAN_FORMAT.md)."""

from __future__ import annotations

_ALIGN_ELEMENTS = 16  # slots of large blocks begin on a vector boundary


def slot_length(elements: int, slots: int) -> int:
    """Length of all slots but the last ones, in elements, of a block of ``elements`` cut into ``slots``."""
    length = -(-elements // slots)
    if elements >= 64 * slots:
        length = -(-length // _ALIGN_ELEMENTS) * _ALIGN_ELEMENTS
    return length


def slot_bounds(elements: int, slots: int, k: int) -> tuple[int, int]:
    """First and one-past-last element of slot ``k``; the last slots of a small block may be empty."""
    length = slot_length(elements, slots)
    return min(elements, k * length), min(elements, (k + 1) * length)
