"""What can be said against one program alone: shape, bounds, overlapping operands, the rules of a one-round plan."""

from __future__ import annotations

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.program import Operand, Program, Step, Where

SlotSize = tuple[int, int, int]  # (k, owner of the block): equal for slots of equal length, see Layout.input_owner


def check_program(program: Program) -> None:
    """Check what needs no other rank.

    Raises:
        PlanError: names rank and step.
    """
    layout = Layout(program.collective, program.world, program.root, program.rank, program.slots_per_block)
    _check_header(program, layout)
    for number, step in enumerate(program.steps):
        try:
            _check_step(program, layout, step)
        except PlanError as error:
            raise PlanError(f"rank {program.rank}, step {number} ({step}): {error}") from None


def sizes(program: Program, layout: Layout, operand: Operand) -> tuple[SlotSize, ...]:
    """Names of the sizes of a local operand's slots."""
    return tuple(_size(program, layout, operand.where, operand.slot + i) for i in range(operand.span))


def _size(program: Program, layout: Layout, where: Where, slot: int) -> SlotSize:
    if where is Where.SCRATCH:
        where, slot = program.scratch[slot]
    owner = layout.input_owner(slot) if where is Where.INPUT else layout.output_owner(slot)
    return (slot % program.slots_per_block, *owner)


def _check_header(p: Program, layout: Layout) -> None:
    if p.world < 1 or not 0 <= p.rank < p.world or not 0 <= p.root < p.world:
        raise PlanError(f"rank {p.rank}, root {p.root} in a world of {p.world}: no such rank")
    if p.slots_per_block < 1 or p.channels < 1:
        raise PlanError(
            f"rank {p.rank}: {p.slots_per_block} slots a block, {p.channels} channels: at least one is needed"
        )
    if (p.input_blocks, p.output_blocks) != (layout.input_blocks, layout.output_blocks):
        raise PlanError(
            f"rank {p.rank}: {p.input_blocks} blocks in, {p.output_blocks} out; "
            f"{p.collective.name} has {layout.input_blocks} and {layout.output_blocks}"
        )
    for size in p.scratch:
        limits = {Where.INPUT: layout.input_slots, Where.OUTPUT: layout.output_slots}
        if not 0 <= size.slot < limits.get(size.where, 0):
            raise PlanError(f"rank {p.rank}: scratch as large as {size.where.name}[{size.slot}]: there is no such slot")


def _check_step(p: Program, layout: Layout, step: Step) -> None:
    if not step.sources or not step.targets:
        raise PlanError("a step needs a source and a target")
    local_sources = [o for o in step.sources if o.where is not Where.PEER]
    local_targets = [o for o in step.targets if o.where is not Where.PEER]
    for operand in (*step.sources, *step.targets):
        _check_operand(p, layout, operand)
    if not local_sources and not local_targets:
        raise PlanError("no local operand, so it has no length")
    if len(local_targets) > 1:
        raise PlanError("more than one local target")
    if len(step.sources) > 1 and not p.collective.reduces:
        raise PlanError(f"a fold, but {p.collective.name} does not reduce")
    if any(o.where is Where.INPUT for o in local_targets):
        raise PlanError("writes to INPUT")
    if not local_targets and len(step.targets) > 1 and len(step.sources) > 1:
        raise PlanError("a fold for several peers needs a local target to stand in")
    _check_sizes(p, layout, step, local_sources + local_targets)
    for side in (step.sources, step.targets):
        channels = [(o.peer, o.channel) for o in side if o.where is Where.PEER]
        if len(set(channels)) < len(channels):
            raise PlanError("two messages of one channel in one step")
    _check_overlap(layout, local_sources, local_targets)
    if p.one_round:
        _check_one_round(step)


def _check_operand(p: Program, layout: Layout, o: Operand) -> None:
    if o.span < 1 or o.slot < 0:
        raise PlanError(f"{o}: {o.span} slots from slot {o.slot} on")
    if o.where is Where.PEER:
        if not 0 <= o.peer < p.world or o.peer == p.rank:
            raise PlanError(f"rank {o.peer} is not another rank")
        if not 0 <= o.channel < p.channels:
            raise PlanError(f"channel {o.channel} of {p.channels}")
        return
    limit = {Where.INPUT: layout.input_slots, Where.OUTPUT: layout.output_slots, Where.SCRATCH: len(p.scratch)}[o.where]
    if o.slot + o.span > limit:
        raise PlanError(f"{o} is out of range: {o.where.name} has {limit} slots")


def _check_sizes(p: Program, layout: Layout, step: Step, local: list[Operand]) -> None:
    span = local[0].span
    if any(o.span != span for o in (*step.sources, *step.targets)):
        raise PlanError("operands of different numbers of slots")
    if len(local) > 1 and not _in_one_block(p, local):
        ks = [[size[0] for size in sizes(p, layout, o)] for o in local]
        if any(other != ks[0] for other in ks[1:]):
            raise PlanError("operands of different sizes")


def _in_one_block(p: Program, local: list[Operand]) -> bool:
    """True if all are at the same place of a block of INPUT or OUTPUT: their slots need no look one by one."""
    slots, first = p.slots_per_block, local[0].slot % p.slots_per_block
    return first + local[0].span <= slots and all(o.where <= Where.OUTPUT and o.slot % slots == first for o in local)


def _check_overlap(layout: Layout, sources: list[Operand], targets: list[Operand]) -> None:
    """The engine folds into a target that is exactly a source, but not into one that is shifted against it."""
    shifts = (*layout.in_place_shifts(), 0)
    for target in targets:
        for source in sources:
            if (source.where is Where.SCRATCH) is not (target.where is Where.SCRATCH):
                continue
            distance = source.slot + shifts[source.where] - target.slot - shifts[target.where]
            if distance != 0 and abs(distance) < target.span:
                raise PlanError(f"{source} and {target} overlap without being the same (in place)")


def _check_one_round(step: Step) -> None:
    sends = any(o.where is Where.PEER for o in step.targets)
    if sends and (len(step.sources) > 1 or step.sources[0].where is not Where.INPUT):
        raise PlanError("not a one-round plan: it sends something else than its INPUT")
