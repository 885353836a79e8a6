"""The verifier: executes the programs of all ranks symbolically and says what they compute, or why they are wrong.

It runs the engine's semantics (docs/PLAN_FORMAT.md): matching of messages, window, bounded channels and hazards in
progress.py; here the values. What it checks is listed in docs/PLAN_FORMAT.md too, with the test that rejects each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.check import check_program, sizes
from hccl_py.scheduler.expressions import Expressions
from hccl_py.scheduler.program import Program, Where
from hccl_py.scheduler.progress import completion_order
from hccl_py.scheduler.stepgraph import StepGraph, build_graph

MAX_WORLD = 64  # above, only plans of few steps
MAX_STEPS = 20_000
STEP_S = 0.5e-3  # what a step takes to verify, about, on one core


@dataclass(frozen=True)
class Certificate:
    """What the verifier found out about a right plan.

    Attributes:
        order: CANONICAL iff every output is one left fold over ranks 0 to n-1 (a mere move, where nothing is reduced).
        uneven: True if the plan also serves blocks of different sizes (the "v" calls): sizes agree by block, not only
            by k.
        graph: the step graph.
        finish_order: step numbers, each after all that it takes its data from.
    """

    order: Order
    uneven: bool
    graph: StepGraph
    finish_order: tuple[int, ...]


def verify(programs: Sequence[Program]) -> Certificate:
    """Verify that the programs of ranks 0 to n-1 together compute their collective, in place and out of place.

    Raises:
        PlanError: names rank, step and reason.
    """
    _check_agreement(programs)
    for program in programs:
        check_program(program)
    graph = build_graph(programs)
    uneven = _check_sizes(graph)
    order = completion_order(graph)
    expressions = Expressions()
    outputs = _execute(graph, order, expressions)
    if programs[0].one_round:
        _check_one_round(graph)
    if programs[0].collective is Collective.BARRIER:
        _check_barrier(graph, order)
        return Certificate(Order.CANONICAL, uneven, graph, tuple(order))
    found = _check_outputs(graph, outputs, expressions)
    if programs[0].shared_fold and (
        programs[0].collective is not Collective.ALL_REDUCE or found is not Order.CANONICAL
    ):
        raise PlanError("not for a shared fold: it is no all_reduce in canonical order")
    return Certificate(found, uneven, graph, tuple(order))


def _check_agreement(programs: Sequence[Program]) -> None:
    if not programs:
        raise PlanError("a plan needs at least one rank")
    first = programs[0]
    steps = sum(len(program.steps) for program in programs)
    if len(programs) > MAX_WORLD and steps > MAX_STEPS:
        raise PlanError(
            f"{len(programs)} ranks with {steps} steps: above {MAX_WORLD} ranks, plans are verified rank by rank up to "
            f"{MAX_STEPS} steps only"
        )
    for rank, p in enumerate(programs):
        if p.rank != rank or p.world != len(programs):
            raise PlanError(f"program {rank} of {len(programs)} says it is of rank {p.rank} of {p.world}")
        for name in ("collective", "root", "slots_per_block", "channels", "one_round", "shared_fold"):
            if getattr(p, name) != getattr(first, name):
                raise PlanError(f"rank {rank}: {name} is {getattr(p, name)}, at rank 0 it is {getattr(first, name)}")


def _check_sizes(graph: StepGraph) -> bool:
    """Messages have the same number and kind of slots at both ends. True if that holds block by block too."""
    local = []
    uneven = True
    for rank, program in enumerate(graph.programs):
        for step in program.steps:
            operands = [o for o in (*step.sources, *step.targets) if o.where is not Where.PEER]
            found = [sizes(program, graph.layouts[rank], o) for o in operands]
            local.append(found[0])
            uneven = uneven and all(other == found[0] for other in found[1:])
    for message in graph.messages:
        sent, received = local[message.sender], local[message.receiver]
        if sent == received:
            continue
        uneven = False
        if [size[0] for size in sent] != [size[0] for size in received]:
            raise PlanError(
                f"{graph.name(message.receiver)} receives slots that are number "
                f"{', '.join(str(size[0]) for size in received)} of their blocks, but {graph.name(message.sender)} "
                f"sends number {', '.join(str(size[0]) for size in sent)}"
            )
    return uneven


def _execute(graph: StepGraph, order: Sequence[int], expressions: Expressions) -> list[list[int]]:
    """Values of all OUTPUT slots of all ranks at the end, -1 where nothing was written."""
    memories = [
        (
            [expressions.input(rank, slot) for slot in range(layout.input_slots)],
            [-1] * layout.output_slots,
            [-1] * len(graph.programs[rank].scratch),
        )
        for rank, layout in enumerate(graph.layouts)
    ]
    results: list[tuple[int, ...]] = [()] * len(graph.steps)
    for number in order:
        step, memory = graph.steps[number], memories[graph.owner[number]]
        columns = []
        for source, message in zip(step.sources, graph.incoming[number], strict=True):
            if message >= 0:
                values = results[graph.messages[message].sender]
            else:
                values = tuple(memory[source.where][source.slot : source.slot + source.span])
            for value in values:
                if value < 0:
                    raise PlanError(f"{graph.name(number)}: reads {source} before anything was written there")
                if expressions.leaf[value] is not source.raw:
                    kind = "a raw contribution" if expressions.leaf[value] else f"a sum, {expressions.text(value)}"
                    raise PlanError(f"{graph.name(number)}: raw flag of {source} is {source.raw}, but it holds {kind}")
            columns.append(values)
        try:
            result = tuple(map(expressions.fold, zip(*columns, strict=True)))
        except PlanError as error:
            raise PlanError(f"{graph.name(number)}: {error}") from None
        results[number] = result
        for target in step.targets:
            if target.where is not Where.PEER:
                memory[target.where][target.slot : target.slot + target.span] = result
    _check_in_place(graph, results, [memory[0] for memory in memories])
    return [memory[1] for memory in memories]


def _check_in_place(graph: StepGraph, results: Sequence[tuple[int, ...]], inputs: Sequence[Sequence[int]]) -> None:
    """[Note: in place] of stepgraph.py: INPUT that was overwritten through OUTPUT must have got the same value."""
    for read in graph.overwritten:
        if results[read.writer][read.written] != inputs[graph.owner[read.step]][read.slot]:
            before = graph.name(read.writer)
            raise PlanError(f"{graph.name(read.step)}: in place, INPUT[{read.slot}] is overwritten before by {before}")


def _check_outputs(graph: StepGraph, outputs: Sequence[Sequence[int]], expressions: Expressions) -> Order:
    world = len(graph.programs)
    collective = graph.programs[0].collective
    everyone = (1 << world) - 1
    canonical = True
    for rank, layout in enumerate(graph.layouts):
        for slot, value in enumerate(outputs[rank]):
            wanted_slot, source = layout.wanted(slot)
            wanted = everyone if source is None else 1 << source
            name = f"rank {rank}: OUTPUT[{slot}]"
            if value < 0:
                raise PlanError(f"{name} is never written")
            if expressions.ranks[value] != wanted:
                missing, extra = wanted & ~expressions.ranks[value], expressions.ranks[value] & ~wanted
                what = "lacks the contribution" if missing else "has a contribution too many, that"
                who = (missing or extra).bit_length() - 1
                raise PlanError(f"{name} {what} of rank {who}: {expressions.text(value)}")
            if expressions.slot[value] != wanted_slot:
                raise PlanError(
                    f"{name} is of the wrong block: INPUT[{expressions.slot[value]}], not INPUT[{wanted_slot}]"
                )
            if collective is Collective.ALL_REDUCE and value != outputs[0][slot]:
                a, b = expressions.text(outputs[0][slot]), expressions.text(value)
                raise PlanError(f"{name} is added up as {b}, at rank 0 as {a}: ranks would hold different bits")
            canonical = canonical and (not collective.reduces or expressions.is_canonical(value, world))
    return Order.CANONICAL if canonical else Order.FREE


def _check_barrier(graph: StepGraph, order: Sequence[int]) -> None:
    """What a barrier moves does not matter; a rank may leave only after every rank has entered.

    [Note: empty tokens] Its messages have no bytes. So a step does not wait for one that it follows element by element,
    nor does a message wait for the sources of its own step; what counts is waiting for the end of earlier steps.
    """
    began = [1 << rank for rank in graph.owner]  # of whom it is known that they had entered when the step began
    ended = list(began)
    earlier: dict[int, list[int]] = {}
    for hazard in graph.hazards:
        if not hazard.streamed:
            earlier.setdefault(hazard.step, []).append(hazard.earlier)
    known = [1 << rank for rank in range(len(graph.programs))]
    for step in order:
        for before in earlier.get(step, ()):
            began[step] |= ended[before]
        ended[step] = began[step]
        for message in graph.incoming[step]:
            if message >= 0:
                ended[step] |= began[graph.messages[message].sender]
        known[graph.owner[step]] |= ended[step]
    for rank, ranks in enumerate(known):
        missing = ((1 << len(known)) - 1) & ~ranks
        if missing:
            raise PlanError(f"rank {rank} leaves the barrier without having heard of rank {missing.bit_length() - 1}")


def _check_one_round(graph: StepGraph) -> None:
    for message in graph.messages:
        sent = graph.steps[message.sender].sources[0]
        if (sent.slot, sent.span) != (message.received.slot, message.received.span):
            raise PlanError(
                f"{graph.name(message.receiver)}: not a one-round plan: it names INPUT[{message.received.slot}] of the "
                f"peer, which sends {sent}"
            )
