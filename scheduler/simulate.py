"""Simulation: how long a plan takes on a topology, message by message, with links shared fairly at every moment.

[Note: model] Flow level: a message is a flow over the links of its path; flows that share a link get max-min fair
rates, which change when a flow starts or ends. A message starts when its step is open (window of 64 unfinished
steps), what it waits for is complete or, where the engine streams, has come with its first segment, and the message
before it on its channel is sent. From then on it is never faster than what it streams from. It arrives one latency
of its path after it was sent, plus what the engines at both ends cost a message.

Left out: the processor (copying and adding is free while messages move), memory shared by all ranks of a host,
losses, and what every collective costs before it begins. Compared with the cost model (cost.py), which is faster and
ranks plans, this shows where time goes; tests/unit/scheduler/test_simgrid.py holds it against SimGrid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hccl_py.core.collector import collector_paused
from hccl_py.core.types import Collective
from hccl_py.scheduler.cost import EngineCosts
from hccl_py.scheduler.program import Program
from hccl_py.scheduler.simulate_classes import RankClasses
from hccl_py.scheduler.simulate_graph import FlowGraph, build_flows
from hccl_py.scheduler.simulate_rates import Floats, Ints, MaxMin
from hccl_py.scheduler.simulate_run import FlowLoop, Times
from hccl_py.scheduler.slots import slot_bounds
from hccl_py.topology.graph import Link, Topology
from hccl_py.topology.placement import Placement

CHANNEL_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Simulation:
    """What came out.

    Attributes:
        seconds: of the whole collective, all ranks.
        graph, times: the flows (of one rank of each class) and when they ran.
        classes: which ranks behave alike.
        link_bytes: bytes over each link that carried any, of all ranks.
    """

    seconds: float
    graph: FlowGraph
    times: Times
    classes: RankClasses
    link_bytes: dict[Link, float]

    def utilisation(self, link: Link) -> float:
        """Share of the link's capacity that was used, 0 to 1."""
        return self.link_bytes.get(link, 0.0) / (link.bandwidth_Bps * self.seconds) if self.seconds else 0.0


class Simulable(Protocol):
    """What is asked of a plan: a program for each rank, and which ranks have the same one but for names of peers."""

    @property
    def world(self) -> int: ...

    @property
    def rank_classes(self) -> RankClasses | None: ...

    def program(self, rank: int, /) -> Program: ...


def simulate(
    plan: Simulable,
    topology: Topology,
    placement: Placement,
    bytes_per_block: int,
    *,
    itemsize: int = 4,
    engine: EngineCosts | None = None,
    channel_bytes: int = CHANNEL_BYTES,
) -> Simulation:
    """Run a plan whose ranks sit at ``placement``.

    Args:
        bytes_per_block: size of one block of the call, in bytes.
        itemsize: bytes of an element.
        engine: figures of the engine (segment size, cost of a message); by default those of the kind of device.
        channel_bytes: what a channel holds while its receiver does not take it.
    """
    known = plan.rank_classes
    if known is None:
        classes = RankClasses.apart(plan.world, plan.program)
    else:
        classes = RankClasses.alike(known.of, known.peers, topology, placement)
    return simulate_programs(
        plan.program, classes, topology, placement, bytes_per_block, itemsize=itemsize, engine=engine,
        channel_bytes=channel_bytes,
    )  # fmt: skip


def simulate_programs(
    program: Callable[[int], Program],
    classes: RankClasses,
    topology: Topology,
    placement: Placement,
    bytes_per_block: int,
    *,
    itemsize: int = 4,
    engine: EngineCosts | None = None,
    channel_bytes: int = CHANNEL_BYTES,
    merge_s: float = 0.0,
) -> Simulation:
    """As `simulate`, from programs, of which only those of the classes' representatives are asked for.

    Args:
        merge_s: events this near to each other are taken together, at the end of that time; for very large plans.
    """
    costs = engine or EngineCosts.of(topology, placement)
    with collector_paused():
        graph = build_flows(
            program, classes, bytes_per_block, itemsize, costs.segment_bytes, channel_bytes, slot_bounds
        )
        network = _Network(graph, classes, topology, placement, costs)
        lags_s = network.latency_s[graph.lane]
        times = FlowLoop(graph, network.fair, lags_s, costs.segment_bytes, channel_bytes, merge_s).run()
    return Simulation(times.end_s, graph, times, classes, network.loads(graph))


class _Network:
    """The lanes of a flow graph on the links of a topology."""

    def __init__(
        self, graph: FlowGraph, classes: RankClasses, topology: Topology, placement: Placement, costs: EngineCosts
    ) -> None:
        members: list[list[int]] = [[] for _ in classes.representatives]
        for rank, of in enumerate(classes.of):
            members[of].append(rank)
        numbers: dict[Link, int] = {}
        entries: dict[tuple[int, int], float] = {}
        inner: list[tuple[int, float]] = []  # lanes of work inside ranks
        self.latency_s = np.zeros(len(graph.ends))
        for lane, ((of, slot), touches) in enumerate(zip(graph.ends, graph.touches, strict=True)):
            if slot < 0:
                inner.append((lane, float(touches)))
                self.latency_s[lane] = costs.step_s
                continue
            for rank in members[of]:
                path = placement.path(rank, classes.peers[rank][slot], topology)
                for link in path:
                    key = (numbers.setdefault(link, len(numbers)), lane)
                    entries[key] = entries.get(key, 0.0) + 1.0
                leaves = any(link.kind.is_network for link in path)
                message_s = costs.network_message_s if leaves else costs.message_s
                self.latency_s[lane] += Topology.latency_s(path) + 2 * (costs.step_s + message_s)
            self.latency_s[lane] /= len(members[of])
        self._links = tuple(numbers)
        self._entries = entries
        capacity = [link.bandwidth_Bps for link in numbers]
        both = list(entries.items())
        classes_at: dict[int, int] = {}
        for lane, touches_ in inner:
            of = graph.ends[lane][0]
            if of not in classes_at:
                classes_at[of] = len(capacity)
                capacity.append(costs.touch_Bps)
            both.append(((classes_at[of], lane), touches_))
        keys: Ints = np.array([key for key, _ in both], dtype=np.int64).reshape(-1, 2)
        weights: Floats = np.array([weight for _, weight in both], dtype=np.float64)
        self.fair = MaxMin(keys[:, 0], keys[:, 1], weights, np.array(capacity), len(graph.ends))

    def loads(self, graph: FlowGraph) -> dict[Link, float]:
        """Bytes over each link."""
        lane_bytes = np.bincount(graph.lane, graph.size_bytes, minlength=len(graph.ends))
        found = [0.0] * len(self._links)
        for (link, lane), weight in self._entries.items():
            found[link] += weight * float(lane_bytes[lane])
        return dict(zip(self._links, found, strict=True))


def bus_factor(collective: Collective, world: int) -> float:
    """busbw / algbw as nccl-tests defines it; algbw counts the larger of the two sides' buffers."""
    if collective is Collective.ALL_REDUCE:
        return 2 * (world - 1) / world
    gathers = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
    return (world - 1) / world if collective in (*gathers, Collective.GATHER, Collective.SCATTER) else 1.0
