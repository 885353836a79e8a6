"""Lending: which messages need not pass through a channel when both ranks share a host.

A *lent* message stays where it is until the receiver has taken it, so the channel holds nothing: a plan may lend if it
ends on those terms too (:func:`ends_without_channels`). A *landed* message is put by the sender where the receiver
wants it: that needs a plain receive into OUTPUT, and nothing that the receiver still does with that memory before,
except lending it to the very step that sends the message, which has read each element when it writes it
(:func:`landings`).
"""

from __future__ import annotations

from dataclasses import replace

from hccl_py.core.types import Collective
from hccl_py.scheduler.program import Lends, Operand, Program, Step, Where
from hccl_py.scheduler.progress import Condition, finish_turns
from hccl_py.scheduler.stepgraph import StepGraph, build_graph


def lends(graph: StepGraph) -> Lends:
    """On which terms the plan of ``graph``, which is that of a call in place, may lend."""
    if graph.programs[0].collective is Collective.BARRIER:
        return Lends.NEVER
    if ends_without_channels(graph):
        return Lends.ALWAYS
    return Lends.APART if ends_without_channels(build_graph(graph.programs, apart=True)) else Lends.NEVER


def ends_without_channels(graph: StepGraph) -> bool:
    """True if the plan ends though a step that sends is complete only when all of it has been taken.

    Each step counts twice: number ``i`` for what is made, ``n + i`` for what is made and taken.
    """
    n = len(graph.steps)
    conditions: list[Condition] = [(h.step, n + h.earlier, 0, not h.streamed) for h in graph.hazards]
    conditions += [(n + step, step, 0, False) for step in range(n)]
    for message in graph.messages:
        conditions.append((message.receiver, message.sender, 0, False))
        conditions.append((n + message.sender, message.receiver, 0, False))
        if message.follows >= 0:
            conditions.append((message.sender, graph.messages[message.follows].receiver, 0, True))
    return bool((finish_turns(graph, conditions, doubled=True)[0] >= 0).all())


def landings(graph: StepGraph) -> dict[int, int]:
    """For each message that may land, by its number: the slot of the receiver's OUTPUT where it does."""
    before: dict[int, list[int]] = {}
    for hazard in graph.hazards:
        before.setdefault(hazard.step, []).append(hazard.earlier)
    takers: dict[int, set[int]] = {}
    for message in graph.messages:
        takers.setdefault(message.sender, set()).add(message.receiver)
    found = {}
    for number, message in enumerate(graph.messages):
        step = graph.steps[message.receiver]
        local = [target for target in step.targets if target.where is not Where.PEER]
        if len(step.sources) > 1 or not local or local[0].where is not Where.OUTPUT:
            continue
        if all(_only_lends_to(graph, takers, earlier, message.sender) for earlier in before.get(message.receiver, ())):
            found[number] = local[0].slot
    return found


def _only_lends_to(graph: StepGraph, takers: dict[int, set[int]], step: int, taker: int) -> bool:
    return takers.get(step) == {taker} and all(target.where is Where.PEER for target in graph.steps[step].targets)


def with_lending(graph: StepGraph, lends: Lends, rank: int) -> Program:
    """The program of ``rank`` with what the engine needs to know to lend and to land.

    A message that may land comes after all that its receiver would have to wait for: its source gets slot 1.
    """
    program = graph.programs[rank]
    if lends is Lends.NEVER:
        return program
    found = landings(graph)
    slots = {(graph.messages[m].sender, graph.messages[m].sent): slot for m, slot in found.items()}
    start = graph.starts[rank]

    comes_last = {graph.messages[m].receiver for m in found} if not program.one_round else set()

    def marked(number: int, target: Operand) -> Operand:
        slot = slots.get((number, target)) if target.where is Where.PEER else None
        return target if slot is None else target._replace(raw=True, slot=slot)

    steps = tuple(
        Step(
            tuple(s._replace(slot=1) for s in step.sources) if start + i in comes_last else step.sources,
            tuple(marked(start + i, target) for target in step.targets),
        )
        for i, step in enumerate(program.steps)
    )
    return replace(program, steps=steps, lends=lends)
