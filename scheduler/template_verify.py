"""The verifier of templates: all ranks at once, class by class.

* That the members of a class do the same steps holds by construction. Here it is checked that their steps also overlap
  in memory in the same way, and that the k-th message between two members comes from one step and goes to one step, the
  same for all members. Then what is true of one member's progress is true of all (by induction over the moments of
  progress.py), so that there is no deadlock is found out on one rank of each class, with the engine's limits.
* Values: all programs run in place, each slot two words of 32 bits. In the one a fold adds: the contributions of all
  ranks are random, so a wrong set of them gives the right sum by chance only, once in 2**32. In the other a fold mixes
  the order in: equal words on all ranks mean that all add up in the same order, rounding alike. Slots that no operand
  tells apart are one. Nobody reads INPUT that was overwritten, so the same values come out out of place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.check import check_program
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.program import WINDOW, Where
from hccl_py.scheduler.progress import SEGMENTS, edges_of
from hccl_py.scheduler.stepgraph import Hazard, Message, StepGraph, find_hazards

if TYPE_CHECKING:
    from hccl_py.scheduler.template import ClassOperand, ClassProgram, Template
    from hccl_py.scheduler.template_table import ClassTable

_Words = npt.NDArray[np.uint32]
_Ints = npt.NDArray[np.int64]
_MIX, _SHIFT = np.uint32(0x9E3779B9), np.uint32(15)


def verify_template(template: Template) -> None:
    """Verify that the programs of all ranks together compute their all-reduce, in place and out of place.

    Raises:
        PlanError: says in which class, step and why.
    """
    _check_members(template)
    _check_alike(template)
    graph = _class_graph(template)
    _Run(template, graph).check(_completion_order(graph))


def _check_members(template: Template) -> None:
    ranks = np.concatenate([part.members for part in template.classes])
    if not np.array_equal(np.sort(ranks), np.arange(len(ranks))):
        raise PlanError(f"the classes do not hold each of the ranks 0 to {len(ranks) - 1} once")
    limit = template.slots_per_block
    for number, (part, table) in enumerate(zip(template.classes, template.tables, strict=True)):
        if not table.sound(part.members, len(ranks), template.channels, limit):
            check_program(template.firsts[number])
            _blame(number, part, len(ranks), limit)


def _blame(number: int, part: ClassProgram, world: int, limit: int) -> None:
    """Say what is wrong with a class of which the first member alone is right."""
    for at, step in enumerate(part.steps):
        what = f"class {number}, step {at}"
        for operand in (*step.sources, *step.targets):
            if operand.where is Where.PEER:
                if operand.peer.min() < 0 or operand.peer.max() >= world or (operand.peer == part.members).any():
                    raise PlanError(f"{what}: a peer that is not another rank")
            elif operand.slot.min() < 0 or operand.slot.max() + operand.span > limit:
                raise PlanError(f"{what}: {operand.where.name} beyond its {limit} slots")
    raise PlanError(f"class {number}: what its first member does is no step of another one: they belong in two classes")


def _check_alike(template: Template) -> None:
    """In all members of a class the same steps touch the same memory.

    Each operand has a random word; each slot the sum of those that touch it. Members are alike if the same words come
    up, however often.
    """
    cuts = _cuts(template)
    number = np.zeros(template.slots_per_block + 1, dtype=np.int64)
    number[cuts] = np.arange(len(cuts))
    random = np.random.default_rng(2027)
    for at, (part, table) in enumerate(zip(template.classes, template.tables, strict=True)):
        touched = table.touches(number, len(cuts), lambda num: random.integers(1, 2**64, num, dtype=np.uint64))
        words = np.sort(touched, axis=1)
        new = np.ones(words.shape, dtype=np.bool_)
        new[:, 1:] = words[:, 1:] != words[:, :-1]
        mixed = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)  # else sums of sums would agree
        found = np.where(new, mixed ^ (mixed >> np.uint64(31)), np.uint64(0)).sum(axis=1, dtype=np.uint64)
        if (found != found[0]).any():
            other = int(part.members[int(np.argmax(found != found[0]))])
            raise PlanError(
                f"class {at}: the steps of rank {other} touch each other's slots in another way than those of rank "
                f"{int(part.members[0])}: they belong in two classes"
            )


class _End(NamedTuple):
    """One end of the messages of one operand: the step, and whom each member deals with."""

    step: int  # counted through all classes
    span: int
    source: int  # number among the sources, -1 at the sending end


def _class_graph(template: Template) -> StepGraph:
    """The step graph of one rank of each class, in which a message ends at the class of its receiver."""
    programs = template.firsts
    layouts = [Layout(p.collective, p.world, p.root, p.rank, p.slots_per_block) for p in programs]
    starts = [0]
    hazards: list[Hazard] = []
    for program, layout in zip(programs, layouts, strict=True):
        find_hazards(program, layout, starts[-1], hazards, [])
        starts.append(starts[-1] + len(program.steps))
    steps = tuple(step for program in programs for step in program.steps)
    owner = tuple(number for number, program in enumerate(programs) for _ in program.steps)
    incoming: list[list[int]] = [[-1] * len(step.sources) for step in steps]
    messages: list[Message] = []
    for sends, receives in _channels(template, starts):
        if len(sends) != len(receives):
            raise PlanError(
                f"step {sends[0].step if sends else receives[0].step} of the classes: a channel with "
                f"{len(sends)} messages sent and {len(receives)} received"
            )
        before = -1
        for sent, received in zip(sends, receives, strict=True):
            if sent.span != received.span:
                raise PlanError(
                    f"step {received.step} of the classes receives {received.span} slots, "
                    f"step {sent.step} sends {sent.span}"
                )
            source = steps[received.step].sources[received.source]
            target = next(o for o in steps[sent.step].targets if o.where is Where.PEER)
            incoming[received.step][received.source] = len(messages)
            messages.append(Message(sent.step, received.step, before, target, source))
            before = len(messages) - 1
    return StepGraph(
        tuple(programs), tuple(layouts), tuple(starts), steps, owner, (1,) * len(steps), tuple(messages),
        tuple(map(tuple, incoming)), tuple(hazards), (),
    )  # fmt: skip


def _channels(template: Template, starts: Sequence[int]) -> list[tuple[list[_End], list[_End]]]:
    """The ends of each channel between two classes, in order."""
    partners = _Partners(template)
    found: dict[tuple[int, int, int, bytes], tuple[list[_End], list[_End]]] = {}
    columns: dict[tuple[int, int, int], dict[bytes, _Ints]] = {}
    for number, part in enumerate(template.classes):
        for at, step in enumerate(part.steps, starts[number]):
            ends = [(o, i, False) for i, o in enumerate(step.sources)] + [(o, -1, True) for o in step.targets]
            for operand, i, sends in ends:
                if operand.where is not Where.PEER:
                    continue
                try:
                    other, to = partners.of(number, operand.peer, sends)
                except PlanError as error:
                    raise PlanError(f"class {number}, step {at - starts[number]}: {error}") from None
                key = (number, other, operand.channel) if sends else (other, number, operand.channel)
                queues = found.setdefault((*key, to.tobytes()), ([], []))
                queues[0 if sends else 1].append(_End(at, operand.span, i))
                columns.setdefault(key, {})[to.tobytes()] = to
    for (source, target, channel), kinds in columns.items():
        table = np.sort(np.stack(list(kinds.values())), axis=0)
        if (table[1:] == table[:-1]).any():
            raise PlanError(f"classes {source} and {target}, channel {channel}: not one partner for all members alike")
    return list(found.values())


class _Partners:
    """Whom the members of a class deal with, and who is at the receiving end of each of the senders."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known: dict[tuple[int, bool, bytes], tuple[int, _Ints]] = {}

    def of(self, number: int, peers: _Ints, sends: bool) -> tuple[int, _Ints]:
        """The class of ``peers``, and the receivers by the place of their sender.

        Raises:
            PlanError: they are not all members of one class, each once.
        """
        key = (number, sends, peers.tobytes())
        if key not in self._known:
            of, member = self._template.place
            members = self._template.classes[number].members
            other = int(of[peers[0]])
            alike = (of[peers] == other).all() and len(peers) == len(self._template.classes[other].members)
            if not alike or len(np.unique(peers)) < len(peers):
                raise PlanError("the members' peers are not the members of one class, each once")
            to = peers
            if not sends:
                to = np.empty_like(members)
                to[member[peers]] = members
            self._known[key] = other, to
        return self._known[key]


def _completion_order(graph: StepGraph) -> list[int]:
    """As `progress.completion_order`, step by step: quick where there are many steps and few move at a time.

    Raises:
        PlanError: deadlock.
    """
    num_steps = len(graph.steps)
    waits: list[list[tuple[int, int]]] = [[] for _ in range(num_steps)]
    ends: list[list[int]] = [[] for _ in range(num_steps)]  # that have to be complete
    wakes: list[list[int]] = [[] for _ in range(num_steps)]
    for step, other, slack, complete in edges_of(graph):
        if complete:
            ends[step].append(other)
        else:
            waits[step].append((other, slack))
        wakes[other].append(step)
    done, order = [0] * num_steps, list[int]()
    oldest = list(graph.starts[:-1])  # of each rank: the first step that is not complete
    closes = [first + WINDOW for first in oldest]
    queue = deque(
        s
        for first, end in zip(graph.starts, graph.starts[1:], strict=False)
        for s in range(first, min(end, first + WINDOW))
    )
    waiting = [False] * num_steps
    for step in queue:
        waiting[step] = True
    owners = graph.owner
    while queue:
        step = queue.popleft()
        waiting[step] = False
        owner, limit = owners[step], SEGMENTS
        if done[step] == SEGMENTS or step >= closes[owner]:
            continue
        for other, slack in waits[step]:
            if done[other] + slack < limit:
                limit = done[other] + slack
        if limit <= done[step] or any(done[other] < SEGMENTS for other in ends[step]):
            continue
        done[step] = limit
        woken = wakes[step]
        if limit == SEGMENTS:
            order.append(step)
            before, end = oldest[owner], graph.starts[owner + 1]
            while oldest[owner] < end and done[oldest[owner]] == SEGMENTS:
                oldest[owner] += 1
            closes[owner] = oldest[owner] + WINDOW
            woken = [*woken, *range(min(end, before + WINDOW), min(end, closes[owner]))]
        for other in woken:
            if not waiting[other]:
                waiting[other] = True
                queue.append(other)
    if len(order) < num_steps:
        stuck = next(step for step in range(num_steps) if done[step] < SEGMENTS)
        raise PlanError(f"deadlock: {graph.name(stuck)} waits for ever, {num_steps - len(order)} steps in all")
    return order


class _Run:
    """Memory of all ranks, and the words on their way."""

    def __init__(self, template: Template, graph: StepGraph) -> None:
        self._template, self._graph = template, graph
        cuts = _cuts(template)
        self._first = cuts  # of each number, its first slot
        self._number = np.zeros(template.slots_per_block + 1, dtype=np.int64)
        self._number[cuts] = np.arange(len(cuts))
        atoms, world = len(cuts) - 1, template.world
        random = np.random.default_rng(2026)
        self._memory = random.integers(0, 2**32, (2, world, atoms), dtype=np.uint32)
        self._wanted = self._memory[0].sum(axis=0, dtype=np.uint32)
        self._written = [bytearray(atoms) for _ in template.classes]  # of one member; the others are alike
        self._leaf = [bytearray(atoms) for _ in template.classes]
        self._places = [_Places.of(table, self._number) for table in template.tables]
        self._sent: list[tuple[_Words, bool]] = [(np.empty(0, dtype=np.uint32), False)] * len(graph.steps)
        self._to_send = [0] * len(graph.steps)
        for message in graph.messages:
            self._to_send[message.sender] += 1

    def check(self, order: Sequence[int]) -> None:
        """Run and look at the outputs."""
        for number in order:
            self._step(number)
        if not all(map(all, self._written)):
            raise PlanError("an OUTPUT slot is never written")
        sums, orders = self._memory
        wrong = np.argwhere(sums != self._wanted)
        if len(wrong):
            rank, atom = wrong[0]
            raise PlanError(f"rank {rank}: OUTPUT[{self._first[atom]}] does not hold each contribution once")
        if (orders != orders[0]).any():
            rank, atom = np.argwhere(orders != orders[0])[0]
            raise PlanError(f"rank {rank}: OUTPUT[{self._first[atom]}] is added up in another order than at rank 0")

    def _step(self, number: int) -> None:
        owner = self._graph.owner[number]
        part = self._template.classes[owner]
        step = part.steps[number - self._graph.starts[owner]]
        found: _Words | None = None
        raw = False
        at = self._places[owner].begin[number - self._graph.starts[owner]]
        for source, message in zip(step.sources, self._graph.incoming[number], strict=True):
            values, raw = self._read(owner, part.members, source, message, at)
            at += 1
            if raw is not source.raw:
                raise PlanError(f"{self._graph.name(number)}: a raw flag that is wrong")
            if found is None:
                found = values
            else:  # the order of a sum counts in the second word
                total = np.empty_like(values)
                np.add(found[0], values[0], out=total[0])
                np.multiply(found[1], _MIX, out=total[1])
                total[1] += values[1] ^ (values[1] >> _SHIFT)
                found = total
        assert found is not None  # check_program has seen a source
        raw = raw and len(step.sources) == 1
        for target in step.targets:
            if target.where is not Where.PEER:
                self._write(owner, part.members, found, raw, at)
            at += 1
        if self._to_send[number]:
            self._sent[number] = found, raw

    def _read(self, owner: int, members: _Ints, source: ClassOperand, message: int, at: int) -> tuple[_Words, bool]:
        if message >= 0:
            sender = self._graph.messages[message].sender
            values, raw = self._sent[sender]
            values = values[:, self._template.place[1][source.peer]]
            self._to_send[sender] -= 1
            if not self._to_send[sender]:
                self._sent[sender] = np.empty(0, dtype=np.uint32), False
            return values, raw
        columns, first, end = self._places[owner].columns(at)
        if source.where is Where.INPUT:
            if any(self._written[owner][first:end]):
                raise PlanError(f"class {owner}: reads INPUT that was overwritten before, in place")
            return self._memory[:, members[:, None], columns], True
        if not all(self._written[owner][first:end]):
            raise PlanError(f"class {owner}: reads OUTPUT before anything was written there")
        return self._memory[:, members[:, None], columns], all(self._leaf[owner][first:end])

    def _write(self, owner: int, members: _Ints, values: _Words, raw: bool, at: int) -> None:
        columns, first, end = self._places[owner].columns(at)
        self._memory[:, members[:, None], columns] = values
        self._written[owner][first:end] = b"\1" * (end - first)
        self._leaf[owner][first:end] = bytes([raw]) * (end - first)


class _Places(NamedTuple):
    """Where the operands of a class lie, in the numbers of the pieces of a block."""

    begin: list[int]  # of each step, the number of its first operand
    first: _Ints  # of each operand and member
    sizes: list[int]

    @classmethod
    def of(cls, table: ClassTable, number: _Ints) -> _Places:
        """Raises PlanError: members cut their slots in different ways."""
        local = ~table.is_peer
        first, count = np.zeros_like(table.place), np.zeros(len(table.step), dtype=np.int64)
        first[local] = number[table.place[local]]
        counts = number[table.place[local] + table.span[local, None]] - first[local]
        if (counts != counts[:, :1]).any():
            raise PlanError("members of a class cut their slots in different ways")
        count[local] = counts[:, 0] if counts.size else 0
        begin = np.searchsorted(table.step, np.arange(table.num_steps))
        return cls(begin.tolist(), first, count.tolist())

    def columns(self, at: int) -> tuple[_Ints, int, int]:
        """The numbers of all members; those of the first member are a range."""
        row, count = self.first[at], self.sizes[at]
        columns = row[:, None] if count == 1 else row[:, None] + np.arange(count)
        begin = int(row[0])
        return columns, begin, begin + count


def _cuts(template: Template) -> _Ints:
    """Where any operand begins or ends, 0 and the end included."""
    marks = np.zeros(template.slots_per_block + 1, dtype=np.bool_)
    marks[[0, -1]] = True
    for table in template.tables:
        local = ~table.is_peer
        marks[table.place[local]] = True
        marks[table.place[local] + table.span[local, None]] = True
    return np.flatnonzero(marks)
