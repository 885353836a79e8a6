"""Cost: how long a plan takes on a topology, as far as a simple model can tell. For ranking plans, not for promises.

[Note: model]
* Each rank's engine does one thing at a time: ``step_s`` for every step, ``message_s`` (``network_message_s`` if it
  leaves the host) for every message it sends or receives, and ``1 / touch_Bps`` for every byte of every operand.
* Each directed link passes one byte after another at its bandwidth; messages that share a link queue for it, which
  takes as long in sum as sharing it would. A message arrives one latency of its path later.
* Steps are run through in the verifier's order. A step begins when the first piece (``segment_bytes``) of its sources
  is there, and ends when its engine and links are through with it and the last piece of its sources has come.
* A one-round plan on one host whose INPUT fits in ``one_round_limit_bytes`` goes by shared slots: every rank copies its
  INPUT there, and once all have, reads what it needs. There are no messages.
* An all_reduce of more than two ranks of one host whose plan allows a shared fold goes by the same slots at any size,
  in pieces as large as a slot: every rank copies its piece there, folds its share of all, and copies the others'.
* On one host, messages of ``lend_from_bytes`` or more cost the sender nothing and pass no link: the receiver reads them
  where they lie (lending.py).

Left out: the window, channels that are full, memory shared by all ranks of a host, more ranks than cores, and what
every collective costs before it begins (the contract check), which is the same for all plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from hccl_py.scheduler.engine_costs import LEAST_SHARED_FOLD_BYTES, ONE_ROUND_LIMIT_BYTES, EngineCosts
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.program import Lends, Program, Step, Where
from hccl_py.scheduler.rails_for import RailsCost
from hccl_py.scheduler.slots import slot_bounds
from hccl_py.scheduler.stepgraph import StepGraph
from hccl_py.scheduler.template import Template
from hccl_py.topology.graph import DeviceKind, Link, Topology
from hccl_py.topology.placement import Placement

__all__ = ["CostModel", "EngineCosts", "ONE_ROUND_LIMIT_BYTES", "cost"]  # noqa: RUF022
_LENDING_WORLD = 16
_Times = npt.NDArray[np.float64]  # one entry for each size that is asked about


@dataclass(frozen=True)
class _Route:
    """The way from one rank to another: numbers of its links."""

    links: tuple[int, ...]
    latency_s: float
    message_s: float


class CostModel:
    """Predicts plans for ranks that sit at ``placement`` in ``topology``."""

    def __init__(self, topology: Topology, placement: Placement, engine: EngineCosts | None = None) -> None:
        self.topology = topology
        self.placement = placement
        self.engine = engine or EngineCosts.of(topology, placement)
        self.on_cpus = topology.node(placement.device(0)).device is DeviceKind.CPU
        self.one_host = len(placement.groups(topology)) == 1
        self._links: dict[Link, int] = {}
        self._routes: dict[tuple[int, int], _Route] = {}

    def uses_slots(self, plan: Plan, bytes_per_block: int) -> bool:
        """True if the engine runs the plan by shared slots at this size."""
        blocks = max(program.input_blocks for program in plan.programs)
        fits = blocks * bytes_per_block <= self.engine.one_round_limit_bytes
        return plan.one_round and self.one_host and fits

    def shares_fold(self, plan: Plan) -> bool:
        """True if the engine runs the plan by shared slots, each rank folding a share."""
        large_enough = self.engine.one_round_limit_bytes >= LEAST_SHARED_FOLD_BYTES
        return plan.shared_fold and self.one_host and plan.world > 2 and large_enough

    def seconds(self, plan: Plan, bytes_per_block: int, itemsize: int = 4) -> float:
        """Predicted time of one collective with blocks of this size."""
        return self.curve(plan, [bytes_per_block], itemsize)[0]

    def curve(self, plan: Plan, sizes_bytes: Sequence[int], itemsize: int = 4) -> list[float]:
        """Predicted times for several sizes at once, in seconds."""
        if isinstance(plan, Template):
            rails = RailsCost(dict(plan.params), self.topology, self.placement, self.engine)
            return [rails.seconds(size) for size in sizes_bytes]
        lengths = _slot_lengths(plan, sizes_bytes, itemsize)
        if self.shares_fold(plan):
            return [float(seconds) for seconds in self._through_shares(plan.world, lengths.sum(axis=0))]
        by_slots = [self.uses_slots(plan, size) for size in sizes_bytes]
        found = np.zeros(len(sizes_bytes))
        slots = np.array(by_slots, dtype=np.bool_)
        if slots.any():
            found[slots] = self._through_slots(plan, lengths[:, slots])
        if not slots.all():
            found[~slots] = self._through_messages(plan, lengths[:, ~slots])
        return [float(seconds) for seconds in found]

    def link_bytes(self, plan: Plan, bytes_per_block: int, itemsize: int = 4) -> dict[Link, int]:
        """Bytes over each link that carries any, by messages."""
        graph = plan.certificate.graph
        amounts = _Amounts(graph, _slot_lengths(plan, [bytes_per_block], itemsize))
        total: dict[Link, int] = {}
        for message in graph.messages:
            src, dst = graph.owner[message.sender], graph.owner[message.receiver]
            for link in self.placement.path(src, dst, self.topology):
                total[link] = total.get(link, 0) + int(amounts.of(message.sender)[0])
        return total

    def _lends(self, plan: Plan) -> bool:
        small = plan.world <= _LENDING_WORLD  # to find it out costs as much as to verify the plan
        return self.one_host and self.engine.lend_from_bytes < inf and small and plan.lends is Lends.ALWAYS

    def _route(self, src: int, dst: int) -> _Route:
        route = self._routes.get((src, dst))
        if route is None:
            path = self.placement.path(src, dst, self.topology)
            numbers = tuple(self._links.setdefault(link, len(self._links)) for link in path)
            leaves = any(link.kind.is_network for link in path)
            message_s = self.engine.network_message_s if leaves else self.engine.message_s
            route = self._routes[src, dst] = _Route(numbers, Topology.latency_s(path), message_s)
        return route

    def _through_slots(self, plan: Plan, lengths: _Times) -> _Times:
        engine, graph = self.engine, plan.certificate.graph
        amounts = _Amounts(graph, lengths)
        block = lengths.sum(axis=0)
        posted = np.zeros(lengths.shape[1])
        spent = [np.zeros(lengths.shape[1]) for _ in plan.programs]
        for program in plan.programs:
            posted = np.maximum(posted, engine.step_s + 2 * program.input_blocks * block / engine.touch_Bps)
        for number, step in enumerate(graph.steps):
            if any(o.where is not Where.PEER for o in step.targets):
                touches = (len(step.sources) + 1) * amounts.of(number)
                spent[graph.owner[number]] += engine.step_s + touches / engine.touch_Bps
        slowest: _Times = np.array(spent).max(axis=0)
        return posted + self._hand_over_s(plan.world) + slowest

    def _through_shares(self, world: int, block: _Times) -> _Times:
        engine = self.engine
        pieces = np.maximum(np.ceil(block / engine.one_round_limit_bytes), 1)
        # INPUT and OUTPUT; and, at half the price because it stays in the cache, what is in the slots: written, all but
        # the own share, folded, the sums of the own share written, and those of the others read.
        touches = 2 + (3 * (world - 1) + 1) / world / 2
        meetings_s = pieces * (2 * self._hand_over_s(world) + 4 * engine.step_s)
        seconds: _Times = meetings_s + touches * block / engine.touch_Bps
        return seconds

    def _hand_over_s(self, world: int) -> float:
        pairs = ((src, dst) for src in range(world) for dst in range(world) if src != dst)
        return max((self._route(src, dst).latency_s for src, dst in pairs), default=0.0)

    def _through_messages(self, plan: Plan, lengths: _Times) -> _Times:
        engine, graph = self.engine, plan.certificate.graph
        num_sizes = lengths.shape[1]
        amounts = _Amounts(graph, lengths)
        routes = [self._route(graph.owner[m.sender], graph.owner[m.receiver]) for m in graph.messages]
        bandwidth = np.array([link.bandwidth_Bps for link in self._links] or [1.0])
        link_free = np.zeros((len(bandwidth), num_sizes))
        engine_free = np.zeros((plan.world, num_sizes))
        first = np.zeros((len(graph.steps) + 1, num_sizes))  # when a step has passed on its first piece
        last = np.zeros((len(graph.steps) + 1, num_sizes))
        arrived = np.zeros((len(graph.messages) + 1, num_sizes))  # when a message is through its links
        before, outgoing = _before(graph), _outgoing(graph)
        lends = self._lends(plan)
        for number in plan.certificate.finish_order:
            rank, amount = graph.owner[number], amounts.of(number)
            piece = np.minimum(1.0, engine.segment_bytes / np.maximum(amount, 1.0))
            begin, end = np.zeros(num_sizes), np.zeros(num_sizes)
            for earlier, streamed in before[number]:
                begin = np.maximum(begin, first[earlier] if streamed else last[earlier])
                end = np.maximum(end, last[earlier])
            messages = [m for m in graph.incoming[number] if m >= 0]
            for m in messages:
                sender = graph.messages[m].sender
                begin = np.maximum(begin, first[sender] + routes[m].latency_s)
                end = np.maximum(end, arrived[m] + routes[m].latency_s)
            handling = engine.step_s + sum(routes[m].message_s for m in (*messages, *outgoing[number]))
            lent = amount >= engine.lend_from_bytes
            lent &= lends and _is_kept(graph.steps[number])
            touches = np.where(lent, _touches_of_lender(graph.steps[number]), _touches(graph.steps[number]))
            work = handling + amount * touches / engine.touch_Bps
            engine_free[rank] = np.maximum(engine_free[rank], begin) + work
            first[number] = np.maximum(begin, engine_free[rank] - work) + handling + piece * (work - handling)
            last[number] = np.maximum(engine_free[rank], end + piece * (work - handling))
            for m in outgoing[number]:
                through = last[number]
                passed = np.where(lent, 0.0, amount)
                for link in routes[m].links:
                    busy = np.maximum(link_free[link], begin) + passed / bandwidth[link]
                    link_free[link] = np.where(lent, link_free[link], busy)
                    through = np.maximum(through, np.where(lent, 0.0, busy))
                    first[number] = np.maximum(first[number], begin + piece * passed / bandwidth[link])
                arrived[m] = through
        slowest: _Times = np.maximum(last.max(axis=0), arrived.max(axis=0))
        return slowest


class _Amounts:
    """Bytes that a step moves per operand, for each size."""

    def __init__(self, graph: StepGraph, lengths: _Times) -> None:
        self._graph = graph
        self._lengths = lengths
        self._known: dict[tuple[int, int], _Times] = {}

    def of(self, number: int) -> _Times:
        step, rank = self._graph.steps[number], self._graph.owner[number]
        local = next(o for o in (*step.sources, *step.targets) if o.where is not Where.PEER)
        k = _k(self._graph.programs[rank], local.where, local.slot)
        key = (k, local.span)
        if key not in self._known:
            numbers = [_k(self._graph.programs[rank], local.where, local.slot + i) for i in range(local.span)]
            self._known[key] = self._lengths[numbers].sum(axis=0)
        return self._known[key]


def _k(program: Program, where: Where, slot: int) -> int:
    return (program.scratch[slot].slot if where is Where.SCRATCH else slot) % program.slots_per_block


def _touches(step: Step) -> int:
    return len(step.sources) + len(step.targets)


def _is_kept(step: Step) -> bool:
    """True if what the step sends lies in memory: a fold straight into a message does not."""
    return len(step.sources) == 1 or any(target.where is not Where.PEER for target in step.targets)


def _touches_of_lender(step: Step) -> int:
    return len(step.sources) + sum(target.where is not Where.PEER for target in step.targets)


def _before(graph: StepGraph) -> list[list[tuple[int, bool]]]:
    before: list[list[tuple[int, bool]]] = [[] for _ in graph.steps]
    for hazard in graph.hazards:
        before[hazard.step].append((hazard.earlier, hazard.streamed))
    return before


def _outgoing(graph: StepGraph) -> list[list[int]]:
    outgoing: list[list[int]] = [[] for _ in graph.steps]
    for number, message in enumerate(graph.messages):
        outgoing[message.sender].append(number)
    return outgoing


def _slot_lengths(plan: Plan, sizes_bytes: Sequence[int], itemsize: int) -> _Times:
    """Bytes of slot k at each size: shape (slots_per_block, number of sizes)."""
    slots = plan.slots_per_block
    table = np.zeros((slots, len(sizes_bytes)))
    for column, size in enumerate(sizes_bytes):
        for k in range(slots):
            begin, end = slot_bounds(size // itemsize, slots, k)
            table[k, column] = (end - begin) * itemsize
    return table


def cost(plan: Plan, topology: Topology, placement: Placement, bytes_per_block: int, itemsize: int = 4) -> float:
    """Predicted time in seconds of one collective with blocks of this size; `CostModel` for many questions."""
    return CostModel(topology, placement).seconds(plan, bytes_per_block, itemsize)
