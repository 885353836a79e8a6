"""FlowGraph: a plan as flows, with what each waits for and what it may not overtake, in arrays.

A flow is one message, or a step of a rank that has no messages. The plan may come as classes of ranks that behave
alike (simulate_classes.py): then one rank of each class is written out, and a flow stands for those of all ranks of
its class.

[Note: milestones] What happens once: a step opens (gets a place in the window) and is done; a flow starts, its head
(the first segment) is sent and arrives, all of it is sent and arrives. ``before[i] -> after[i]``: the second waits
for the first.

[Note: ties] While it runs, a flow is never more than so much ahead of what it depends on: ARRIVAL: behind what its
rank receives, by what was under way when the head came; LOCAL: behind what its rank sends, by one segment; ROOM:
ahead of what takes its bytes away, or is added to them, by what the channel holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.program import WINDOW, Program, Where
from hccl_py.scheduler.simulate_classes import RankClasses
from hccl_py.scheduler.stepgraph import Hazard, find_hazards

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Tie(IntEnum):
    """See [Note: ties]."""

    ARRIVAL = 0
    LOCAL = 1
    ROOM = 2


@dataclass(frozen=True)
class FlowGraph:
    """See the module's docstring. Milestones are numbered start, head, head_in, sent, arrived of all flows, then
    open, done of all steps.

    Attributes:
        lane: of each flow, an index into ``ends``.
        size_bytes: at least 1: an empty message still is a message.
        rank, step: of each flow: who sends it, in which step.
        before, after: milestones, see there.
        followers, leaders, ties: see there.
        wants_head: flows of which anybody waits for the head.
        ends: of each lane: class of the sender and slot in its list of peers; slot -1: work inside a rank.
        touches: of each lane: how often each byte is read or written inside the rank; 0 for messages.
    """

    lane: Ints
    size_bytes: Floats
    rank: Ints
    step: Ints
    before: Ints
    after: Ints
    followers: Ints
    leaders: Ints
    ties: Ints
    wants_head: npt.NDArray[np.bool_]
    num_steps: int
    ends: tuple[tuple[int, int], ...]
    touches: tuple[int, ...]
    peer: Ints  # of each flow: rank that receives it, its own for work inside a rank

    @property
    def num_flows(self) -> int:
        """Number of flows."""
        return len(self.lane)


@dataclass
class _Part:
    """One written-out rank: its steps from number ``first`` on."""

    program: Program
    first: int
    size_bytes: list[int]
    hazards: list[list[Hazard]]  # of each step
    incoming: list[list[int]]  # flows of each step
    outgoing: list[list[int]]  # flows of each step, work inside the rank included
    keeps: list[bool]  # the step has a local target


class _Builder:
    def __init__(self, segment_bytes: int, channel_bytes: int) -> None:
        self.segment_bytes, self.channel_bytes = segment_bytes, channel_bytes
        self.parts: list[_Part] = []
        self.lane: list[int] = []
        self.size_bytes: list[int] = []
        self.rank: list[int] = []
        self.peer: list[int] = []
        self.step: list[int] = []
        self.lanes: dict[tuple[int, int, int], int] = {}
        self.before: list[int] = []  # milestones; flat lists, as tuples would keep the garbage collector busy
        self.after: list[int] = []
        self.queues: list[tuple[int, int]] = []  # flows that follow each other on a channel
        self.held: list[int] = []  # ties: follower, leader, kind; follower, ...
        self.heads: set[int] = set()

    def flow(self, lane: tuple[int, int, int], size_bytes: int, rank: int, peer: int, step: int) -> int:
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.size_bytes.append(size_bytes)
        self.rank.append(rank)
        self.peer.append(peer)
        self.step.append(step)
        return len(self.lane) - 1

    def wait(self, milestone: int, before: list[int]) -> None:
        """The milestone comes after those."""
        self.before += before
        self.after += [milestone] * len(before)


def build_flows(
    program: Callable[[int], Program],
    classes: RankClasses,
    bytes_per_block: int,
    itemsize: int,
    segment_bytes: int,
    channel_bytes: int,
    slot_bounds: Callable[[int, int, int], tuple[int, int]],
) -> FlowGraph:
    """The flows of a plan of which ``program(rank)`` gives each rank's part.

    Raises:
        PlanError: messages that do not match (a verified plan has none).
    """
    build = _Builder(segment_bytes, channel_bytes)
    first = 0
    lengths: dict[int, list[int]] = {}
    for rank in classes.representatives:
        part = _part(program(rank), first, bytes_per_block, itemsize, slot_bounds, lengths)
        build.parts.append(part)
        first += len(part.size_bytes)
    _match(build, classes)
    num_flows = len(build.lane)
    at = _Milestones(num_flows, first)
    for part in build.parts:
        for index in range(len(part.size_bytes)):
            _tie_up(build, part, index, at)
    for flow, follower in build.queues:
        build.wait(at.start(follower), [at.sent(flow)])
    before, after = np.array(build.before, dtype=np.int64), np.array(build.after, dtype=np.int64)
    held = np.array(build.held, dtype=np.int64).reshape(-1, 3)
    held = held[np.argsort(held[:, 0], kind="stable")]
    wants_head = np.zeros(num_flows, dtype=np.bool_)
    wants_head[list(build.heads)] = True
    ends = tuple((of, slot) for of, slot, _ in build.lanes)
    return FlowGraph(
        np.array(build.lane, dtype=np.int64), np.maximum(np.array(build.size_bytes, dtype=np.float64), 1.0),
        np.array(build.rank, dtype=np.int64), np.array(build.step, dtype=np.int64), before, after, held[:, 0],
        held[:, 1], held[:, 2], wants_head, first, ends, tuple(touches for _, _, touches in build.lanes),
        np.array(build.peer, dtype=np.int64),
    )  # fmt: skip


class _Milestones:
    """Their numbers."""

    def __init__(self, num_flows: int, num_steps: int) -> None:
        self._flows, self._steps = num_flows, num_steps

    def start(self, flow: int) -> int:
        return flow

    def head(self, flow: int) -> int:
        return self._flows + flow

    def head_in(self, flow: int) -> int:
        return 2 * self._flows + flow

    def sent(self, flow: int) -> int:
        return 3 * self._flows + flow

    def arrived(self, flow: int) -> int:
        return 4 * self._flows + flow

    def open(self, step: int) -> int:
        return 5 * self._flows + step

    def done(self, step: int) -> int:
        return 5 * self._flows + self._steps + step


def _part(
    program: Program,
    first: int,
    bytes_per_block: int,
    itemsize: int,
    slot_bounds: Callable[[int, int, int], tuple[int, int]],
    lengths: dict[int, list[int]],
) -> _Part:
    slots = program.slots_per_block
    if slots not in lengths:  # sums of the lengths of slots, so that a run of them is a difference
        bounds = [slot_bounds(bytes_per_block // itemsize, slots, k) for k in range(slots)]
        sums = [0]
        for begin, end in bounds:
            sums.append(sums[-1] + (end - begin) * itemsize)
        lengths[slots] = sums
    sums = lengths[slots]
    scratch = [0]
    for like in program.scratch:
        k = like.slot % slots
        scratch.append(scratch[-1] + sums[k + 1] - sums[k])
    sizes, keeps = [], []
    for step in program.steps:
        local = next(o for o in (*step.targets, *step.sources) if o.where is not Where.PEER)
        begin, end = local.slot, local.slot + local.span
        if local.where is Where.SCRATCH:
            sizes.append(scratch[end] - scratch[begin])
        else:
            sizes.append((end // slots - begin // slots) * sums[-1] + sums[end % slots] - sums[begin % slots])
        keeps.append(any(o.where is not Where.PEER for o in step.targets))
    layout = Layout(program.collective, program.world, program.root, program.rank, slots)
    hazards: list[list[Hazard]] = [[] for _ in program.steps]
    found: list[Hazard] = []
    find_hazards(program, layout, 0, found, [])
    for hazard in found:
        hazards[hazard.step].append(hazard)
    num = len(sizes)
    return _Part(program, first, sizes, hazards, [[] for _ in range(num)], [[] for _ in range(num)], keeps)


def _match(build: _Builder, classes: RankClasses) -> None:
    """Make the flows; the k-th receive on a channel takes the k-th flow of the class on its other end."""
    sends: dict[tuple[int, int, int], list[int]] = {}  # (class, slot of the peer, channel) -> flows
    for number, part in enumerate(build.parts):
        rank = part.program.rank
        slot_of = {peer: slot for slot, peer in enumerate(classes.peers[rank])}
        for index, step in enumerate(part.program.steps):
            targets = [o for o in step.targets if o.where is Where.PEER]
            for target in targets:
                slot = slot_of[target.peer]
                flow = build.flow((number, slot, 0), part.size_bytes[index], rank, target.peer, index)
                part.outgoing[index].append(flow)
                sends.setdefault((number, slot, target.channel), []).append(flow)
            if not targets and not any(o.where is Where.PEER for o in step.sources):
                lane = (number, -1, len(step.sources) + len(step.targets))
                part.outgoing[index].append(build.flow(lane, part.size_bytes[index], rank, rank, index))
    for flows in sends.values():
        build.queues += itertools.pairwise(flows)
    for part in build.parts:
        receives: dict[tuple[int, int], list[int]] = {}
        for index, step in enumerate(part.program.steps):
            for source in step.sources:
                if source.where is Where.PEER:
                    receives.setdefault((source.peer, source.channel), []).append(index)
        _take(part, receives, sends, classes)


def _take(
    part: _Part,
    receives: dict[tuple[int, int], list[int]],
    sends: dict[tuple[int, int, int], list[int]],
    classes: RankClasses,
) -> None:
    rank = part.program.rank
    channels = {channel for _, _, channel in sends} | {channel for _, channel in receives}
    for peer in classes.peers[rank]:
        there = classes.of[peer], classes.slot(peer, rank)
        for channel in channels:
            flows, steps = sends.get((*there, channel), []), receives.get((peer, channel), [])
            if len(flows) != len(steps):
                raise PlanError(
                    f"rank {peer} sends {len(flows)} messages on channel {channel} to rank {rank}, which receives "
                    f"{len(steps)}"
                )
            for flow, index in zip(flows, steps, strict=True):
                part.incoming[index].append(flow)


def _tie_up(build: _Builder, part: _Part, index: int, at: _Milestones) -> None:
    """All that step ``index`` of a rank waits for, and what holds it while it runs."""
    step, size = part.first + index, part.size_bytes[index]
    small = size <= build.segment_bytes
    incoming, outgoing = part.incoming[index], part.outgoing[index]
    begins: list[int] = []  # what the step needs before it can pass anything on
    ready: list[int] = []  # what it needs before it can take anything in
    behind: list[tuple[int, Tie]] = []
    room: list[int] = []
    over = [at.arrived(flow) for flow in incoming] + [at.sent(flow) for flow in outgoing]
    for flow in incoming:
        if small:
            begins.append(at.arrived(flow))
        else:
            begins.append(at.head_in(flow))
            behind.append((flow, Tie.ARRIVAL))
    for hazard in part.hazards[index]:
        earlier = hazard.earlier
        over.append(at.done(part.first + earlier))
        if small or not hazard.streamed:
            ready.append(at.done(part.first + earlier))
            continue
        begins += [at.head_in(flow) for flow in part.incoming[earlier]]
        begins += [at.head(flow) for flow in part.outgoing[earlier]]
        behind += [(flow, Tie.ARRIVAL) for flow in part.incoming[earlier]]
        behind += [(flow, Tie.LOCAL) for flow in part.outgoing[earlier]]
        room += [*part.incoming[earlier], *part.outgoing[earlier]]
    if index >= WINDOW:
        ready.append(at.open(step))
        build.wait(at.open(step), [at.done(step - WINDOW)])
        if index > WINDOW:
            build.wait(at.open(step), [at.open(step - 1)])
    for flow in outgoing:
        build.wait(at.start(flow), begins + ready)
        for leader, tie in behind:
            build.held += (flow, leader, tie)
    build.heads.update(leader for leader, _ in behind)
    if size > build.channel_bytes:
        if not part.keeps[index]:
            room += outgoing
        for flow, sibling in zip(incoming, [*incoming[1:], *incoming[:1]], strict=True):
            build.wait(at.start(flow), ready)
            for leader in (*room, sibling):
                if leader != flow:
                    build.held += (flow, leader, Tie.ROOM)
        build.heads.update(incoming if room or len(incoming) > 1 else ())
    build.wait(at.done(step), over + ready)
