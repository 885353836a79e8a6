"""StepGraph: all steps of a plan with what ties them together, messages between ranks and hazards inside a rank.

A step's number is counted through all ranks: rank r has the steps ``starts[r]`` to ``starts[r + 1] - 1``.

[Note: in place] The graph is that of an in-place call, where INPUT and OUTPUT share memory: INPUT is never a target, so
sharing only adds hazards, and a plan that ends in place also ends out of place. Where a step reads INPUT that an earlier
step has overwritten through OUTPUT, the two calls could differ in value; those reads are listed for the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.program import Operand, Program, Step, Where


@dataclass(frozen=True)
class Message:
    """One message: the steps that send and receive it."""

    sender: int
    receiver: int
    follows: int  # number of the message before it on the same channel, or -1
    sent: Operand  # target of the sender
    received: Operand  # source of the receiver


@dataclass(frozen=True)
class Hazard:
    """``step`` must follow ``earlier`` of the same rank: element by element if streamed, else after it is complete."""

    step: int
    earlier: int
    streamed: bool


@dataclass(frozen=True)
class OverwrittenRead:
    """In place, ``step`` reads what ``writer`` put there at offset ``written``, instead of INPUT slot ``slot``."""

    step: int
    slot: int
    writer: int
    written: int


@dataclass(frozen=True)
class StepGraph:
    """See the module's docstring. ``incoming[step][i]`` is the message of the step's i-th source, or -1."""

    programs: tuple[Program, ...]
    layouts: tuple[Layout, ...]
    starts: tuple[int, ...]
    steps: tuple[Step, ...]
    owner: tuple[int, ...]  # the rank that runs the step
    spans: tuple[int, ...]
    messages: tuple[Message, ...]
    incoming: tuple[tuple[int, ...], ...]
    hazards: tuple[Hazard, ...]
    overwritten: tuple[OverwrittenRead, ...]

    def name(self, step: int) -> str:
        """ "rank 3, step 5 (send INPUT[0] -> rank 4)"."""
        rank = self.owner[step]
        return f"rank {rank}, step {step - self.starts[rank]} ({self.steps[step]})"


def build_graph(programs: Sequence[Program]) -> StepGraph:
    """Match messages and find hazards of programs that passed `check.check_program`.

    Raises:
        PlanError: a send that nobody receives, a receive that nobody sends, or one of another size.
    """
    starts = [0]
    for program in programs:
        starts.append(starts[-1] + len(program.steps))
    steps = tuple(step for program in programs for step in program.steps)
    layouts = tuple(Layout(p.collective, p.world, p.root, p.rank, p.slots_per_block) for p in programs)
    spans = tuple(_span(step) for step in steps)
    hazards: list[Hazard] = []
    overwritten: list[OverwrittenRead] = []
    for program, layout, start in zip(programs, layouts, starts, strict=False):
        _find_hazards(program, layout, start, hazards, overwritten)
    messages, incoming = _match(programs, starts, steps)
    owner = tuple(rank for rank, program in enumerate(programs) for _ in program.steps)
    return StepGraph(
        tuple(programs), layouts, tuple(starts), steps, owner, spans, tuple(messages), incoming, tuple(hazards),
        tuple(overwritten),
    )  # fmt: skip


def _span(step: Step) -> int:
    return next(o.span for o in (*step.sources, *step.targets) if o.where is not Where.PEER)


def _match(
    programs: Sequence[Program], starts: Sequence[int], steps: Sequence[Step]
) -> tuple[list[Message], tuple[tuple[int, ...], ...]]:
    sends: dict[tuple[int, int, int], list[tuple[int, Operand]]] = {}
    for rank, start in enumerate(starts[:-1]):
        for number, step in enumerate(programs[rank].steps, start):
            for target in step.targets:
                if target.where is Where.PEER:
                    sends.setdefault((rank, target.peer, target.channel), []).append((number, target))
    messages: list[Message] = []
    incoming: list[tuple[int, ...]] = []
    last: dict[tuple[int, int, int], int] = {}
    used: dict[tuple[int, int, int], int] = {}
    for rank, start in enumerate(starts[:-1]):
        for number, step in enumerate(programs[rank].steps, start):
            row = []
            for source in step.sources:
                if source.where is not Where.PEER:
                    row.append(-1)
                    continue
                channel = (source.peer, rank, source.channel)
                index = used.get(channel, 0)
                queue = sends.get(channel, ())
                if index >= len(queue):
                    raise PlanError(
                        f"rank {rank}, step {number - start} ({step}): rank {source.peer} sends {len(queue)} messages on "
                        f"channel {source.channel}, this is receive number {index + 1}"
                    )
                used[channel] = index + 1
                sender, sent = queue[index]
                row.append(len(messages))
                messages.append(Message(sender, number, last.get(channel, -1), sent, source))
                last[channel] = row[-1]
            incoming.append(tuple(row))
    for channel, queue in sends.items():
        if used.get(channel, 0) < len(queue):
            src, dst, _ = channel
            number, _ = queue[used.get(channel, 0)]
            raise PlanError(f"rank {src}, step {number - starts[src]} ({steps[number]}): rank {dst} never receives this")
    return messages, tuple(incoming)


def _find_hazards(
    program: Program, layout: Layout, start: int, hazards: list[Hazard], overwritten: list[OverwrittenRead]
) -> None:
    input_shift, output_shift = layout.in_place_shifts()
    shared = max(layout.input_slots, layout.output_slots)
    if not (layout.input_slots and layout.output_slots):
        input_shift = output_shift = 0
    base = (input_shift, output_shift, shared)
    size = shared + len(program.scratch)
    writers: list[tuple[int, int, int] | None] = [None] * size  # (step, first place, span) of the last write
    readers: list[list[tuple[int, int, int]]] = [[] for _ in range(size)]
    for number, step in enumerate(program.steps, start):
        found: dict[int, bool] = {}
        for source in step.sources:
            if source.where is Where.PEER:
                continue
            first, span = base[source.where] + source.slot, source.span
            for place in range(first, first + span):
                writer = writers[place]
                if writer is not None:
                    found[writer[0]] = found.get(writer[0], True) and writer[1:] == (first, span)
                    if source.where is Where.INPUT:
                        overwritten.append(OverwrittenRead(number, source.slot + place - first, writer[0], place - writer[1]))
                readers[place].append((number, first, span))
        for target in step.targets:
            if target.where is Where.PEER:
                continue
            first, span = base[target.where] + target.slot, target.span
            mine = (number, first, span)
            for place in range(first, first + span):
                writer = writers[place]
                if writer is not None:
                    found[writer[0]] = found.get(writer[0], True) and writer[1:] == (first, span)
                for reader in readers[place]:
                    if reader[0] != number:
                        found[reader[0]] = found.get(reader[0], True) and reader[1:] == (first, span)
                writers[place] = mine
                readers[place] = []
        hazards.extend(Hazard(number, earlier, streamed) for earlier, streamed in found.items())
