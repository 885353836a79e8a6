"""Events of all ranks in one order, whatever the order is in which they were heard, and how often."""

from __future__ import annotations

from collections.abc import Iterable

from hccl_py.scheduler.measurement import Measurement, Probe


def complete(
    events: Iterable[Measurement | Probe], world: int, last_step: int
) -> tuple[list[Measurement], list[Probe]]:
    """The latest measurements and the latest probe that are there of all ranks, by rank; empty: there are none.

    Measurements up to ``last_step`` are old.
    """
    steps: dict[int, dict[int, Measurement]] = {}
    probes: dict[tuple[int, int], dict[int, Probe]] = {}
    for one in events:
        if isinstance(one, Measurement):
            if one.step > last_step:
                steps.setdefault(one.step, {}).setdefault(one.rank, one)
        else:
            probes.setdefault((one.step, one.number), {}).setdefault(one.rank, one)
    whole = [by_rank for _, by_rank in sorted(steps.items()) if len(by_rank) == world]
    seen = [by_rank for _, by_rank in sorted(probes.items()) if len(by_rank) == world]
    return (
        [one for by_rank in whole[-1:] for _, one in sorted(by_rank.items())],
        [one for by_rank in seen[-1:] for _, one in sorted(by_rank.items())],
    )
