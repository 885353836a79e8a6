"""StepGraph: all steps of a plan with what ties them together, messages between ranks and hazards inside a rank.

A step's number is counted through all ranks: rank r has the steps ``starts[r]`` to ``starts[r + 1] - 1``.

[Note: in place] The graph is that of an in-place call, where INPUT and OUTPUT share memory: INPUT is never a target, so
sharing only adds hazards, and a plan that ends in place also ends out of place. Where a step reads INPUT that an
earlier step has overwritten through OUTPUT, the two calls could differ in value; those reads are listed for the
verifier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
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


def build_graph(programs: Sequence[Program], *, apart: bool = False) -> StepGraph:
    """Match messages and find hazards of programs that passed `check.check_program`.

    ``apart``: of a call with separate buffers, instead of one in place.

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
        find_hazards(program, layout, start, hazards, overwritten, apart)
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
                        f"rank {rank}, step {number - start} ({step}): receives message number {index + 1} on channel "
                        f"{source.channel} from rank {source.peer}, which sends {len(queue)}"
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
            what = f"rank {src}, step {number - starts[src]} ({steps[number]})"
            raise PlanError(f"{what}: rank {dst} never receives this")
    return messages, tuple(incoming)


def find_hazards(
    program: Program,
    layout: Layout,
    start: int,
    hazards: list[Hazard],
    overwritten: list[OverwrittenRead],
    apart: bool = False,
) -> None:
    """Append the hazards of one rank, whose steps are numbered from ``start`` on, and what it reads overwritten."""
    barrier = program.collective is Collective.BARRIER
    shifts, shared = layout.in_place_shifts(), max(layout.input_slots, layout.output_slots)
    if barrier or apart:  # a barrier is never in place
        shifts, shared = (0, layout.input_slots), layout.input_slots + layout.output_slots
    base = (*shifts, shared)
    # uses of each place since it was last written, the write included: (step, first place, span, it writes). What came
    # before that follows by way of the write; in a barrier not, as its verifier does not count streamed hazards.
    cuts = _cuts(program, base)  # slots that no operand tells apart are one place
    uses: list[list[tuple[int, int, int, bool]]] = [[] for _ in cuts]
    for number, step in enumerate(program.steps, start):
        found: dict[int, bool] = {}
        for operands, writes in ((step.sources, False), (step.targets, True)):
            for operand in operands:
                if operand.where is Where.PEER:
                    continue
                first, span = base[operand.where] + operand.slot, operand.span
                mine = (number, first, span, writes)
                for place in range(bisect_left(cuts, first), bisect_left(cuts, first + span)):
                    for earlier, its_first, its_span, wrote in uses[place]:
                        if earlier == number or not (writes or wrote):
                            continue
                        found[earlier] = found.get(earlier, True) and (its_first, its_span) == (first, span)
                        if operand.where is Where.INPUT:
                            slot = operand.slot + cuts[place] - first
                            overwritten.append(OverwrittenRead(number, slot, earlier, cuts[place] - its_first))
                    if writes and not barrier:
                        uses[place] = [mine]
                    else:
                        uses[place].append(mine)
        hazards.extend(Hazard(number, earlier, streamed) for earlier, streamed in found.items())


def _cuts(program: Program, base: Sequence[int]) -> list[int]:
    """Where operands begin or end, ascending."""
    found: set[int] = set()
    for step in program.steps:
        for operand in (*step.sources, *step.targets):
            if operand.where is not Where.PEER:
                first = base[operand.where] + operand.slot
                found.update((first, first + operand.span))
    return sorted(found)
