"""Makes tests/unit/scheduler/simgrid_answers.json: what SimGrid, an independent simulator, says about plans on small
graphs.

Needs SimGrid's Python binding (Debian: apt install python3-simgrid, then PYTHONPATH=/usr/lib/python3/dist-packages);
the tests that use the answers do not. Here a message is cut into segments. Each is a communication of SimGrid over
the links of its path, followed by a second one that takes the latency of the path and no bandwidth: the next segment
of the channel may begin after the first, whoever waits for the data after the second. The network model is CM02
without correction factors. SimGrid gives flows with a longer round trip a smaller share, as TCP does; with equal
latencies in the first communications what is left is max-min fair sharing.

    PYTHONPATH=/usr/lib/python3/dist-packages python tests/perf/simgrid_answers.py [OUT.json]

With ``--large`` it makes tests/perf/simgrid_128.json instead: all-reduce of 128 ranks in the fat tree with a slow rail.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.halving_doubling import HALVING_DOUBLING
from hccl_py.scheduler.algorithms.hierarchical import HIERARCHICAL
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.program import WINDOW, Where
from hccl_py.scheduler.simulate import Simulable
from hccl_py.scheduler.slots import slot_bounds
from hccl_py.scheduler.stepgraph import StepGraph, build_graph
from hccl_py.topology.graph import DeviceKind, Link, LinkKind, Node, NodeKind, Topology
from hccl_py.topology.placement import Placement

ANSWERS = Path(__file__).parents[1] / "unit" / "scheduler" / "simgrid_answers.json"
LARGE_ANSWERS = Path(__file__).with_name("simgrid_128.json")
LARGE_HOSTS = 16  # of 8 ranks
LARGE_BYTES = (64 << 20,)  # SimGrid takes minutes for each plan, and the more the larger
SEGMENT_BYTES = 64 * 1024
_OPTIONS = (
    "network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/bandwidth-factor:1",
    "network/latency-factor:1", "network/weight-S:0", "network/optim:Full",  # the lazy updates of 3.32 lose slow links
)  # fmt: skip


# ---- graphs: names of devices are "H/cpuI"; `wires` are (a, b, bandwidth in bytes/second, latency in seconds)


def network(ranks: list[str], wires: list[tuple[str, str, float, float]]) -> tuple[Topology, Placement]:
    """A graph of hosts with devices, and switches; every wire goes both ways."""
    names = {end for a, b, *_ in wires for end in (a, b)} | set(ranks)
    hosts = {name.partition("/")[0] for name in names if "/" in name}
    nodes = [Node(host, NodeKind.HOST) for host in hosts]
    for name in names - hosts:
        if "/" not in name:
            nodes.append(Node(name, NodeKind.SWITCH))
        elif "nic" in name:
            nodes.append(Node(name, NodeKind.NIC))
        elif "cpu" in name:
            nodes.append(Node(name, NodeKind.DEVICE, device=DeviceKind.CPU))
        else:
            nodes.append(Node(name, NodeKind.SWITCH))
    links = [
        Link(src, dst, LinkKind.ETHERNET, bandwidth_Bps, latency_s)
        for a, b, bandwidth_Bps, latency_s in wires
        for src, dst in ((a, b), (b, a))
    ]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(ranks))


def star(rates_Bps: list[float], latency_s: float = 1e-6) -> tuple[Topology, Placement]:
    """One rank a host, one switch, unequal links."""
    ranks = [f"h{i}/cpu0" for i in range(len(rates_Bps))]
    wires = [(f"h{i}/cpu0", "switch", rate, latency_s) for i, rate in enumerate(rates_Bps)]
    return network(ranks, wires)


def two_sites(per_site: int, fast_Bps: float, between_Bps: float) -> tuple[Topology, Placement]:
    """Two switches with a thin link between them, ranks going to and fro."""
    ranks = [f"h{i}/cpu0" for i in range(2 * per_site)]
    wires = [(rank, f"site{i % 2}", fast_Bps, 1e-6) for i, rank in enumerate(ranks)]
    return network(ranks, [*wires, ("site0", "site1", between_Bps, 5e-6)])


def fat_tree(leaves: int, per_leaf: int, oversubscription: float) -> tuple[Topology, Placement]:
    """Leaves under one spine."""
    ranks = [f"h{i}/cpu0" for i in range(leaves * per_leaf)]
    wires = [(rank, f"leaf{i // per_leaf}", 125e6, 1e-6) for i, rank in enumerate(ranks)]
    up = 125e6 * per_leaf / oversubscription
    return network(ranks, [*wires, *((f"leaf{i}", "spine", up, 1e-6) for i in range(leaves))])


def rails(hosts: int, per_host: int, slow: float) -> tuple[Topology, Placement]:
    """Devices around a switch in the host, a rail for each; the first rail runs at ``slow`` of the rate."""
    ranks, wires = [], []
    for h in range(hosts):
        for i in range(per_host):
            ranks.append(f"h{h}/cpu{i}")
            wires.append((f"h{h}/cpu{i}", f"h{h}/inside", 1e9, 0.5e-6))
            wires.append((f"h{h}/cpu{i}", f"h{h}/nic{i}", 1e9, 0.5e-6))
            wires.append((f"h{h}/nic{i}", f"rail{i}", 125e6 * (slow if i == 0 else 1.0), 1e-6))
    return network(ranks, wires)


def mesh(rates_Bps: list[float]) -> tuple[Topology, Placement]:
    """Every pair has a wire of its own, of these rates in turn."""
    num = 4
    ranks = [f"h{i}/cpu0" for i in range(num)]
    pairs = [(i, j) for i in range(num) for j in range(i)]
    wires = [(ranks[i], ranks[j], rates_Bps[k % len(rates_Bps)], 2e-6) for k, (i, j) in enumerate(pairs)]
    return network(ranks, wires)


GRAPHS: dict[str, Callable[[], tuple[Topology, Placement]]] = {
    "star, equal": lambda: star([125e6] * 4),
    "star, 1000/1000/500/200 Mbit/s": lambda: star([125e6, 125e6, 62.5e6, 25e6]),
    "star, 6 hosts, slow wires": lambda: star([12.5e6, 12.5e6, 6e6, 12.5e6, 3e6, 12.5e6], 100e-6),
    "two sites": lambda: two_sites(2, 125e6, 25e6),
    "fat tree, 2:1": lambda: fat_tree(2, 4, 2.0),
    "rails, one at half": lambda: rails(2, 4, 0.5),
    "mesh, unequal": lambda: mesh([125e6, 60e6, 30e6]),
}
COLLECTIVES = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.ALL_GATHER, Collective.REDUCE_SCATTER,
               Collective.ALL_TO_ALL)  # fmt: skip
ALGORITHMS = (DIRECT, RING, TREE, HALVING_DOUBLING, HIERARCHICAL)
ALL_COLLECTIVES = ("star, 1000/1000/500/200 Mbit/s", "fat tree, 2:1")
SIZES_BYTES = (16 * 1024, 4 * 1024 * 1024)


def cases() -> Iterator[tuple[str, Collective, Plan, int]]:
    """What is asked: graph, collective, plan, bytes of a block."""
    for graph, make in GRAPHS.items():
        topology, placement = make()
        for algorithm in ALGORITHMS:
            for collective in COLLECTIVES:
                if not algorithm.supports(collective):
                    continue
                if collective is not Collective.ALL_REDUCE and graph not in ALL_COLLECTIVES:
                    continue
                for params in algorithm.variants(collective, placement.groups(topology)):
                    plan = algorithm.build(collective, placement.size, 0, params)
                    for size in SIZES_BYTES:
                        blocks = max(program.input_blocks for program in plan.programs)
                        yield graph, collective, plan, size if blocks == 1 else size // placement.size


# ---- SimGrid


@dataclass
class Messages:
    """What SimGrid has to do. Numbers beyond those of ``comms`` are milestones: they take no time.

    Attributes:
        comms: source rank, destination rank, bytes.
        after: of each number, those that wait until it has arrived (or happened).
        queued: of each communication, those that wait until it has been sent.
    """

    comms: list[tuple[int, int, int]]
    after: list[list[int]]
    queued: list[list[int]]


def segments(graph: StepGraph, size_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> Messages:
    """The communications of a plan, message by message in pieces, and what they wait for."""
    pieces = [_pieces(graph, step, size_bytes, segment_bytes) for step in range(len(graph.steps))]
    first: list[int] = []
    comms: list[tuple[int, int, int]] = []
    for message in graph.messages:
        first.append(len(comms))
        ends = (graph.owner[message.sender], graph.owner[message.receiver])
        comms += [(*ends, size) for size in pieces[message.sender]]
    coming = [[m for m in row if m >= 0] for row in graph.incoming]
    going: list[list[int]] = [[] for _ in graph.steps]
    for m, message in enumerate(graph.messages):
        going[message.sender].append(m)
    hazards: list[list[tuple[int, bool]]] = [[] for _ in graph.steps]
    for hazard in graph.hazards:
        hazards[hazard.step].append((hazard.earlier, hazard.streamed))
    num = len(graph.steps)
    after: list[list[int]] = [[] for _ in range(len(comms) + 2 * num)]
    queued: list[list[int]] = [[] for _ in comms]

    def done(step: int) -> int:
        """Milestone: the step is complete."""
        return len(comms) + step

    def open_(step: int) -> int:
        """Milestone: it has a place in the window."""
        return len(comms) + num + step

    for step in range(num):
        for m in (*coming[step], *going[step]):
            after[first[m] + len(pieces[graph.messages[m].sender]) - 1].append(done(step))
        for earlier, _ in hazards[step]:
            after[done(earlier)].append(done(step))
        if step - graph.starts[graph.owner[step]] >= WINDOW:
            after[done(step - WINDOW)].append(open_(step))
            after[open_(step - 1)].append(open_(step))
    previous: dict[tuple[int, int, int], int] = {}
    for m, message in enumerate(graph.messages):
        step, rank = message.sender, graph.owner[message.sender]
        channel = (rank, graph.owner[message.receiver], message.sent.channel)
        for i in range(len(pieces[step])):
            needs: set[int] = set()
            if i or channel in previous:
                queued[first[m] + i - 1 if i else previous[channel]].append(first[m] + i)
            for earlier, streamed in [(step, True), *hazards[step]]:
                if not streamed and not i:
                    needs.add(done(earlier))
                if streamed:
                    others = coming[earlier] + (going[earlier] if earlier != step else [])
                    needs.update(first[o] + min(i, len(pieces[graph.messages[o].sender]) - 1) for o in others)
            if not i:
                needs.add(open_(step))
            for need in needs:
                after[need].append(first[m] + i)
        previous[channel] = first[m] + len(pieces[step]) - 1
    return Messages(comms, after, queued)


def _pieces(graph: StepGraph, step: int, size_bytes: int, segment_bytes: int) -> list[int]:
    program = graph.programs[graph.owner[step]]
    local = next(o for o in (*graph.steps[step].sources, *graph.steps[step].targets) if o.where is not Where.PEER)
    total = 0
    for slot in range(local.slot, local.slot + local.span):
        k = (program.scratch[slot].slot if local.where is Where.SCRATCH else slot) % program.slots_per_block
        begin, end = slot_bounds(size_bytes // 4, program.slots_per_block, k)
        total += (end - begin) * 4
    sizes = [segment_bytes] * (total // segment_bytes)
    return [*sizes, total % segment_bytes] if total % segment_bytes or not sizes else sizes


def _run(topology: Topology, placement: Placement, work: Messages) -> float:
    """Seconds until all communications are over."""
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone  # type: ignore[import-not-found]

    engine = Engine(["simgrid_answers", *(f"--cfg={option}" for option in _OPTIONS), "--log=root.thresh:critical"])
    zone = NetZone.create_full_zone("zone")
    hosts = [zone.create_host(f"rank{rank}", 1e9) for rank in range(placement.size)]
    clocks = [zone.create_host(f"clock{rank}", 1e9) for rank in range(placement.size)]
    links = {}

    def wire(name: str, bandwidth_Bps: float, latency_s: float) -> Any:
        made = zone.create_link(name, bandwidth_Bps)
        made.set_latency(latency_s)
        made.seal()
        return LinkInRoute(made)

    for number, link in enumerate(topology.links):
        links[link] = wire(f"link{number}", link.bandwidth_Bps, 0.0)
    for src, dst in {(src, dst) for src, dst, _ in work.comms}:
        path = placement.path(src, dst, topology)
        route = [*(links[link] for link in path), wire(f"even{src}-{dst}", 1e15, 1e-9)]
        zone.add_route(hosts[src].netpoint, hosts[dst].netpoint, None, None, route, False)
        delay = [wire(f"delay{src}-{dst}", 1e15, Topology.latency_s(path))]
        zone.add_route(clocks[src].netpoint, clocks[dst].netpoint, None, None, delay, False)
    zone.seal()
    comms, after, queued = work.comms, work.after, work.queued
    needs = [0] * len(after)
    for followers in (*after, *queued):
        for follower in followers:
            needs[follower] += 1

    def drive() -> None:
        running: list[Any] = []
        numbers: list[tuple[int, bool]] = []

        def begin(number: int) -> None:
            src, dst, size = comms[number]
            running.append(Comm.sendto_async(hosts[src], hosts[dst], max(size, 1)))
            numbers.append((number, False))

        def ready(number: int) -> None:
            """Nothing is waited for: a communication begins, a milestone happens, and with it others."""
            happened = [number]
            while happened:
                number = happened.pop()
                if number < len(comms):
                    begin(number)
                    continue
                for follower in after[number]:
                    needs[follower] -= 1
                    if needs[follower] == 0:
                        happened.append(follower)

        for number in [number for number, need in enumerate(needs) if need == 0]:
            ready(number)
        while running:
            at = Comm.wait_any(running)
            number, arrived = numbers[at]
            running[at], numbers[at] = running[-1], numbers[-1]
            running.pop(), numbers.pop()
            if not arrived:
                src, dst, _ = comms[number]
                running.append(Comm.sendto_async(clocks[src], clocks[dst], 1))
                numbers.append((number, True))
            for follower in (after if arrived else queued)[number]:
                needs[follower] -= 1
                if needs[follower] == 0:
                    ready(follower)

    Actor.create("driver", hosts[0], drive)
    engine.run()
    if any(needs):
        raise RuntimeError("SimGrid stood still")
    return float(Engine.clock if isinstance(Engine.clock, float) else engine.clock)


def simgrid_seconds(
    topology: Topology, placement: Placement, plan: Simulable, size_bytes: int, segment_bytes: int = SEGMENT_BYTES
) -> float:
    """What SimGrid says; in a process of its own, since it can run once only."""
    graph = build_graph([plan.program(rank) for rank in range(plan.world)])
    work = segments(graph, size_bytes, segment_bytes)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(_run(topology, placement, work)))
    child.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        child.join()


def large() -> Iterator[tuple[str, int, Simulable, int]]:
    """The plans that `make bench-topology PART=simgrid128` compares: what, number among the plans of that, plan,
    bytes of a block."""
    from bench_topology import baselines, chosen, small

    cluster = small(LARGE_HOSTS)
    for size in LARGE_BYTES:
        plans: dict[str, list[Simulable]] = {"ours": [chosen(cluster, size)], **baselines(cluster)}
        del plans["rank-order ring"]
        for what, each in plans.items():
            for number, plan in enumerate(each):
                yield what, number, plan, size


def key_of(plan: Simulable) -> str:
    """Tells plans apart by what each rank does."""
    found = hashlib.sha256()
    for rank in range(plan.world):
        found.update(repr([(step.sources, step.targets) for step in plan.program(rank).steps]).encode())
    return found.hexdigest()[:16]


def ask_large(out: Path = LARGE_ANSWERS) -> None:
    """Ask about the large plans, in minutes each; what is known is not asked for again."""
    from bench_topology import small

    cluster = small(LARGE_HOSTS)
    answers = json.loads(out.read_text("utf-8")) if out.exists() else []
    graph = cluster.topology.digest()
    known = {(row["graph"], row["digest"], row["bytes_per_block"]) for row in answers}
    for what, number, plan, size in large():
        key = (graph, key_of(plan), size)
        if key in known:
            continue
        begin_s = time.monotonic()
        seconds = simgrid_seconds(cluster.topology, cluster.placement, plan, size, large_segment_bytes(size))
        print(
            f"{what} {number}, {size >> 20} MiB: {seconds * 1e3:.4f} ms, asked for {time.monotonic() - begin_s:.0f} s",
            flush=True,
        )
        row = {"plan": what, "number": number, "graph": key[0], "digest": key[1], "bytes_per_block": size}
        answers.append({**row, "seconds": seconds})
        out.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")


def large_segment_bytes(size_bytes: int) -> int:
    """Into what messages are cut there: 64 pieces of a block."""
    return size_bytes // 64


def main() -> None:
    """Ask all, and write the answers."""
    if sys.argv[1:] == ["--large"]:
        ask_large()
        return
    answers = []
    for graph, collective, plan, size_bytes in cases():
        topology, placement = GRAPHS[graph]()
        seconds = simgrid_seconds(topology, placement, plan, size_bytes)
        row = {"graph": graph, "collective": collective.name.lower(), "plan": plan.name, "bytes_per_block": size_bytes}
        answers.append({**row, "digest": plan.digest.hex()[:16], "seconds": seconds})
        print(
            f"{graph:32} {collective.name.lower():15} {plan.name:32} {size_bytes:9} {seconds * 1e3:12.4f} ms",
            flush=True,
        )
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ANSWERS
    out.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")


if __name__ == "__main__":
    main()
