"""Plan tables put together by size: what an operator forces up to some size, and the model's choice above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.select import MAX_BYTES, PlanEntry, PlanTable

Limits = Sequence[tuple[int | None, str]]


def table_by_size(limits: Limits, table: Callable[[str | None], PlanTable]) -> PlanTable:
    """Blocks of up to each limit are served by its algorithm, those above the last limit by the free choice.

    Args:
        limits: ``(upto_bytes, algorithm)`` ascending; None, as the last one, is any size.
        table: makes the table with an algorithm forced, or (None) the free one.

    Raises:
        PlanError: a forced algorithm cannot serve, or the limits do not ascend.
    """
    rows: list[PlanEntry] = []
    begin = 0
    made: dict[str | None, PlanTable] = {}
    for upto, algorithm in (*limits, (None, None)):
        end = MAX_BYTES if upto is None else upto
        if begin > MAX_BYTES:  # the last limit was any size
            break
        if end < begin:
            raise PlanError(f"the limit of {algorithm} is {end} bytes, not above the one before it")
        if algorithm not in made:
            made[algorithm] = table(algorithm)
        for row in made[algorithm].entries:
            low, high = max(row.from_bytes, begin), min(row.upto_bytes, end)
            if low <= high:
                rows.append(replace(row, from_bytes=low, upto_bytes=high))
        begin = end + 1
    return PlanTable(tuple(rows))
