"""A reference executor: runs the programs of all ranks on real numbers, element by element, in a random order.

It knows the engine's rules (docs/PLAN_FORMAT.md) but shares no code with the verifier: hazards are found by comparing
ranges of memory with those of every earlier step that is not complete, messages are queues of numbers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hccl_py.core.types import Collective
from hccl_py.scheduler.program import WINDOW, Operand, Program, Step, Where
from hccl_py.scheduler.slots import slot_bounds

Counts = Sequence[Sequence[int]]  # [rank][block]


class Stuck(Exception):
    """No step of any rank can move."""


@dataclass
class _Channel:
    """Elements under way, and whose turn it is at both ends."""

    capacity: int
    queue: deque[float] = field(default_factory=deque)
    send_turn: int = 0
    recv_turn: int = 0


@dataclass
class _Range:
    """Where an operand lies: an array, and first and one-past-last element; or a message of a channel."""

    array: np.ndarray | None
    begin: int
    end: int
    slots: tuple[int, int, int]  # memory, first and last slot: equal slots are followed element by element
    channel: _Channel | None = None
    turn: int = 0
    raw: bool = False

    def overlaps(self, other: _Range) -> bool:
        return (
            self.array is not None and self.array is other.array and self.begin < other.end and other.begin < self.end
        )


@dataclass
class _Run:
    """One step under way."""

    sources: list[_Range]
    targets: list[_Range]
    length: int
    done: int = 0
    complete: bool = False


class _Rank:
    def __init__(self, program: Program, in_counts: Sequence[int], out_counts: Sequence[int], in_place: bool) -> None:
        self.program = program
        self.in_counts, self.out_counts = list(in_counts), list(out_counts)
        in_size, out_size = sum(self.in_counts), sum(self.out_counts)
        self.input, self.output = np.full(in_size, np.nan), np.full(out_size, np.nan)
        self.in_shift = self.out_shift = 0  # in slots
        share = in_place and program.collective is not Collective.BARRIER and self.in_counts and self.out_counts
        if share:
            slots = program.slots_per_block
            if len(self.out_counts) > len(self.in_counts):
                before = sum(self.out_counts[: program.rank])
                self.input, self.in_shift = self.output[before : before + in_size], program.rank * slots
            elif len(self.in_counts) > len(self.out_counts):
                before = sum(self.in_counts[: program.rank])
                self.output, self.out_shift = self.input[before : before + out_size], program.rank * slots
            else:
                self.output = self.input
        self.shared = bool(share)
        starts = [0]
        for size in program.scratch:
            begin, end = self._element(size.where, size.slot, 1)
            starts.append(starts[-1] + end - begin)
        self.scratch_starts = starts
        self.scratch = np.full(starts[-1], np.nan)

    def _element(self, where: Where, slot: int, span: int) -> tuple[int, int]:
        """First and one-past-last element of slots of INPUT or OUTPUT."""
        counts = self.in_counts if where is Where.INPUT else self.out_counts
        slots = self.program.slots_per_block

        def at(slot: int, end: bool) -> int:
            block, k = divmod(slot, slots)
            return sum(counts[:block]) + slot_bounds(counts[block], slots, k)[end]

        return at(slot, False), at(slot + span - 1, True)

    def locate(self, o: Operand) -> _Range:
        if o.where is Where.SCRATCH:
            begin, end = self.scratch_starts[o.slot], self.scratch_starts[o.slot + o.span]
            return _Range(self.scratch, begin, end, (2, o.slot, o.slot + o.span), raw=o.raw)
        begin, end = self._element(o.where, o.slot, o.span)
        array = self.input if o.where is Where.INPUT else self.output
        shift = self.in_shift if o.where is Where.INPUT else self.out_shift
        memory = 0 if self.shared or o.where is Where.INPUT else 1
        if self.shared and array.base is not None:  # count elements in the larger of the two
            offset = (array.__array_interface__["data"][0] - array.base.__array_interface__["data"][0]) // 8
            array, begin, end = array.base, begin + offset, end + offset
        return _Range(array, begin, end, (memory, o.slot + shift, o.slot + shift + o.span), raw=o.raw)


def execute(
    programs: Sequence[Program],
    inputs: Sequence[np.ndarray],
    in_counts: Counts,
    out_counts: Counts,
    *,
    in_place: bool = False,
    average: bool = False,
    segment: int = 2,
    seed: int = 0,
) -> list[np.ndarray]:
    """OUTPUT of all ranks.

    Args:
        inputs: INPUT of each rank, float64, ``sum(in_counts[rank])`` elements.
        segment: elements that a channel holds, and most that a step moves at a time.

    Raises:
        Stuck: deadlock.
    """
    rng = random.Random(seed)
    ranks = [_Rank(p, in_counts[r], out_counts[r], in_place) for r, p in enumerate(programs)]
    for rank, values in zip(ranks, inputs, strict=True):
        rank.input[:] = values
    channels: dict[tuple[int, int, int], _Channel] = {}
    runs = [_open(rank, channels, segment) for rank in ranks]
    first = [0] * len(ranks)
    open_ranks = {r for r, steps in enumerate(runs) if steps}
    while open_ranks:
        moved = False
        for r in rng.sample(sorted(open_ranks), len(open_ranks)):
            window = [i for i in range(first[r], min(first[r] + WINDOW, len(runs[r]))) if not runs[r][i].complete]
            for i in rng.sample(window, len(window)):
                moved |= _advance(runs[r], i, segment, len(ranks) if average else 0)
            while first[r] < len(runs[r]) and runs[r][first[r]].complete:
                first[r] += 1
            if first[r] == len(runs[r]):
                open_ranks.discard(r)
        if not moved:
            raise Stuck([(r, first[r], str(programs[r].steps[first[r]])) for r in sorted(open_ranks)])
    assert not any(channel.queue for channel in channels.values())
    return [rank.output.copy() for rank in ranks]


def _open(rank: _Rank, channels: dict[tuple[int, int, int], _Channel], segment: int) -> list[_Run]:
    counted: dict[tuple[bool, int, int], int] = {}

    def place(o: Operand, source: bool) -> _Range:
        if o.where is not Where.PEER:
            return rank.locate(o)
        ends = (o.peer, rank.program.rank) if source else (rank.program.rank, o.peer)
        channel = channels.setdefault((*ends, o.channel), _Channel(segment))
        turn = counted.get((source, o.peer, o.channel), 0)
        counted[source, o.peer, o.channel] = turn + 1
        return _Range(None, 0, 0, (3, 0, 0), channel, turn, o.raw)

    runs = []
    for step in rank.program.steps:
        sources, targets = [place(o, True) for o in step.sources], [place(o, False) for o in step.targets]
        local = [x.end - x.begin for x in (*sources, *targets) if x.array is not None]
        assert len(set(local)) == 1, (rank.program.rank, str(step), local)
        runs.append(_Run(sources, targets, local[0]))
    return runs


def _limit(runs: list[_Run], i: int) -> int:
    """How far step i may go by what earlier steps do with the same memory; -1: not at all."""
    limit = runs[i].length
    for earlier in runs[:i]:
        if earlier.complete:
            continue
        pairs = [(a, b) for a in runs[i].targets for b in (*earlier.sources, *earlier.targets)]
        pairs += [(a, b) for a in runs[i].sources for b in earlier.targets]
        for mine, theirs in pairs:
            if not mine.overlaps(theirs):
                continue
            if mine.slots != theirs.slots:
                return -1
            limit = min(limit, earlier.done)
    return limit


def _advance(runs: list[_Run], i: int, segment: int, world: int) -> bool:
    """Move up to ``segment`` elements of step i. ``world`` is 0, or the number of ranks if raw sources are scaled."""
    run = runs[i]
    for source in run.sources:
        if source.channel is not None and source.channel.recv_turn != source.turn:
            return False
    for target in run.targets:
        if target.channel is not None and target.channel.send_turn != target.turn:
            return False
    n = min(_limit(runs, i) - run.done, segment)
    n = min([n, *(len(s.channel.queue) for s in run.sources if s.channel is not None)])
    n = min([n, *(t.channel.capacity - len(t.channel.queue) for t in run.targets if t.channel is not None)])
    if n <= 0 and run.done < run.length:
        return False
    for _ in range(max(n, 0)):
        total = 0.0
        for position, source in enumerate(run.sources):
            value = source.channel.queue.popleft() if source.channel else source.array[source.begin + run.done]
            if world and source.raw and len(run.sources) > 1:
                value = value / world
            total = value if position == 0 else total + value
        for target in run.targets:
            if target.channel:
                target.channel.queue.append(total)
            else:
                target.array[target.begin + run.done] = total
        run.done += 1
    if run.done == run.length:
        run.complete = True
        for source in run.sources:
            if source.channel is not None:
                source.channel.recv_turn += 1
        for target in run.targets:
            if target.channel is not None:
                target.channel.send_turn += 1
    return True


def read_one_round(programs: Sequence[Program], inputs: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """OUTPUT of all ranks when a one-round plan reads posted INPUT, as the engine does on one host."""
    outputs = []
    for program, own in zip(programs, inputs, strict=True):
        slots = program.slots_per_block

        def part(array: np.ndarray, o: Operand, slots: int = slots) -> np.ndarray:
            first, last = divmod(o.slot, slots), divmod(o.slot + o.span - 1, slots)
            begin = first[0] * count + slot_bounds(count, slots, first[1])[0]
            return array[begin : last[0] * count + slot_bounds(count, slots, last[1])[1]]

        output = np.full(program.output_blocks * count, np.nan)
        for step in program.steps:
            target = next((o for o in step.targets if o.where is not Where.PEER), None)
            if target is None:
                continue
            values = [part(own if o.where is Where.INPUT else inputs[o.peer], o) for o in step.sources]
            part(output, target)[:] = sum(values[1:], values[0].copy())
        outputs.append(output)
    return outputs


def make_counts(
    collective: Collective, world: int, root: int, count: int, sizes: Sequence[int] | None
) -> tuple[Counts, Counts]:
    """Elements of the blocks of INPUT and OUTPUT of all ranks; ``sizes``: uneven blocks, by rank (or modulo)."""
    C = Collective

    def size(a: int, b: int = 0) -> int:
        return count if sizes is None else sizes[(a + 3 * b) % len(sizes)]

    in_counts: list[list[int]] = []
    out_counts: list[list[int]] = []
    for r in range(world):
        every = [size(b) for b in range(world)]
        one = [count] if collective in (C.ALL_REDUCE, C.REDUCE, C.BROADCAST, C.BARRIER) else [size(r)]
        at_root = r == root
        in_counts.append(
            {
                C.REDUCE_SCATTER: every,
                C.ALL_TO_ALL: [size(r, b) for b in range(world)],
                C.SCATTER: every if at_root else [],
                C.BROADCAST: one if at_root else [],
            }.get(collective, one)
        )
        out_counts.append(
            {
                C.ALL_GATHER: every,
                C.ALL_TO_ALL: [size(b, r) for b in range(world)],
                C.GATHER: every if at_root else [],
                C.REDUCE: one if at_root else [],
            }.get(collective, one)
        )
    return in_counts, out_counts


def expected(
    collective: Collective, root: int, inputs: Sequence[np.ndarray], in_counts: Counts, average: bool = False
) -> list[np.ndarray]:
    """What OUTPUT must be, by numpy."""
    C, world = Collective, len(inputs)
    blocks = [np.split(x, np.cumsum(n)[:-1]) if n else [] for x, n in zip(inputs, in_counts, strict=True)]
    found = []
    for r in range(world):
        if collective in (C.ALL_REDUCE, C.REDUCE, C.REDUCE_SCATTER):
            index = r if collective is C.REDUCE_SCATTER else 0
            total = np.sum([blocks[q][index] for q in range(world)], axis=0) / (world if average else 1)
            found.append(total if collective is not C.REDUCE or r == root else np.zeros(0))
        elif collective is C.BROADCAST:
            found.append(blocks[root][0])
        elif collective is C.SCATTER:
            found.append(blocks[root][r])
        elif collective is C.ALL_TO_ALL:
            found.append(np.concatenate([blocks[q][r] for q in range(world)]))
        elif collective is C.ALL_GATHER or (collective is C.GATHER and r == root):
            found.append(np.concatenate([blocks[q][0] for q in range(world)]))
        else:
            found.append(np.zeros(0))
    return found


def check(
    programs: Sequence[Program],
    *,
    count: int,
    in_place: bool,
    average: bool = False,
    sizes: Sequence[int] | None = None,
    segment: int = 2,
    seed: int = 0,
) -> None:
    """Run the programs and compare with numpy; AssertionError or Stuck if they are wrong."""
    first = programs[0]
    in_counts, out_counts = make_counts(first.collective, first.world, first.root, count, sizes)
    rng = np.random.default_rng(seed)
    unit = first.world if average else 1  # so that scaled values are whole numbers, and sums exact
    inputs = [rng.integers(-9, 10, sum(counts)).astype(float) * unit for counts in in_counts]
    outputs = execute(
        programs, [x.copy() for x in inputs], in_counts, out_counts,
        in_place=in_place, average=average, segment=segment, seed=seed,
    )  # fmt: skip
    if first.collective is Collective.BARRIER:
        return
    right = expected(first.collective, first.root, inputs, in_counts, average)
    for rank, (found, wanted) in enumerate(zip(outputs, right, strict=True)):
        np.testing.assert_array_equal(found, wanted, err_msg=f"rank {rank}")


__all__ = ["Step", "Stuck", "check", "execute", "expected", "make_counts", "read_one_round"]
