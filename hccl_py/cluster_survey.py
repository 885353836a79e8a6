"""What the ranks of a launch find out about their cluster: each host's inside, and figures of pairs of ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hccl_py.bootstrap import Bootstrap
from hccl_py.communicator import Communicator, init
from hccl_py.core.env import Env
from hccl_py.topology.config import parse_topology
from hccl_py.topology.discovery import builtin_probes, survey
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import Topology
from hccl_py.topology.measured import Assembled, Pair, assemble
from hccl_py.topology.probes.cpus import PRIORS_NOTE
from hccl_py.topology.world import host_word

_ROUND_TRIPS = 40
_FIRST_BYTES, _MOST_BYTES = 256 * 1024, 32 * 2**20
_AIM_S = 0.04  # how long the transfer should take whose bandwidth is measured
_REPEATS = 3


def survey_cluster(bootstrap: Bootstrap, env: Env) -> Assembled:
    """Discover and measure. Collective: all ranks call it, and all get the same answer.

    Between hosts the first rank of each exchanges with the first rank of every other one; inside a host the first one
    with each of the rest; always one pair at a time, so that no measurement disturbs another.

    Raises:
        ConfigError, TransportUnavailableError, CollectiveTimeoutError: the ranks cannot connect.
        TopologyError: the findings contradict each other.
    """
    with init(bootstrap, replace(env, topology=None)) as comm:
        planner = comm.engine.planner
        groups = planner.placement.groups(planner.topology)
        pairs = measure(comm, wanted_pairs(groups))
    ours = next(index for index, ranks in enumerate(groups) if bootstrap.rank in ranks)
    text = ""
    if groups[ours][0] == bootstrap.rank:
        found = survey(builtin_probes())
        text = json.dumps([dump_topology(Topology(found.nodes, found.links)), list(found.notes)])
    texts = [data.decode() for data in bootstrap.allgather(text.encode())]
    mine = [[a, b, pair.bandwidth_Bps, pair.latency_s] for (a, b), pair in pairs.items()]
    everyone = [json.loads(data) for data in bootstrap.allgather(json.dumps(mine).encode())]
    all_pairs = {(a, b): Pair(width, latency) for rows in everyone for a, b, width, latency in rows}
    insides, notes, used = [], list[str](), set[str]()
    for ranks in groups:
        inside_text, found_notes = json.loads(texts[ranks[0]])
        inside = parse_topology(inside_text, f"rank {ranks[0]}")
        insides.append(_renamed(inside, used))
        used.add(insides[-1].hosts()[0])
        notes += [note for note in found_notes if note != PRIORS_NOTE]
    made = assemble(insides, groups, all_pairs)
    first = (
        "bandwidth and latency between ranks were measured by hccl_py's own transports: goodput of one pair at a time"
    )
    return Assembled(made.topology, made.placement, (first, *dict.fromkeys((*notes, *made.notes))))


def wanted_pairs(groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Ordered pairs of ranks that are worth measuring."""
    firsts = [ranks[0] for ranks in groups]
    pairs = [(a, b) for a in firsts for b in firsts if a != b]
    return pairs + [ends for ranks in groups for other in ranks[1:] for ends in ((ranks[0], other), (other, ranks[0]))]


def measure(
    comm: Communicator, pairs: Sequence[tuple[int, int]], clock: Callable[[], float] = time.perf_counter
) -> dict[tuple[int, int], Pair]:
    """Figures of the pairs that begin at this rank. Collective."""
    found: dict[tuple[int, int], Pair] = {}
    for src, dst in pairs:
        comm.barrier()
        if comm.engine.rank == src:
            found[src, dst] = _lead(comm, dst, clock)
        elif comm.engine.rank == dst:
            _follow(comm, src)
    comm.barrier()
    return found


def _lead(comm: Communicator, peer: int, clock: Callable[[], float]) -> Pair:
    small = np.zeros(8, np.uint8)
    trips = []
    for _ in range(_ROUND_TRIPS):
        begin = clock()
        comm.send(small, peer)
        comm.recv(small, peer)
        trips.append(clock() - begin)
    latency_s = (
        sorted(trips)[len(trips) // 4] / 2
    )  # the lower quartile: what others on the machine took is not the wire's
    seconds = _transfer(comm, peer, _FIRST_BYTES, clock)
    size = int(min(_MOST_BYTES, max(_FIRST_BYTES, _FIRST_BYTES * _AIM_S / max(seconds, 1e-9))))
    best_Bps = 0.0
    for _ in range(_REPEATS):
        seconds = _transfer(comm, peer, size, clock)
        best_Bps = max(best_Bps, size / max(seconds - latency_s, 1e-9))  # the answer's way is no transfer
    comm.send(np.zeros(1, np.int64), peer)
    return Pair(best_Bps, max(latency_s, 0.0))


def _transfer(comm: Communicator, peer: int, size: int, clock: Callable[[], float]) -> float:
    """Seconds until the peer has said that it has ``size`` bytes."""
    data, answer = np.zeros(size, np.uint8), np.zeros(1, np.uint8)
    comm.send(np.array([size], np.int64), peer)
    comm.recv(answer, peer)
    begin = clock()
    comm.send(data, peer)
    comm.recv(answer, peer)
    return clock() - begin


def _follow(comm: Communicator, peer: int) -> None:
    small = np.zeros(8, np.uint8)
    for _ in range(_ROUND_TRIPS):
        comm.recv(small, peer)
        comm.send(small, peer)
    answer = np.zeros(1, np.uint8)
    for size in _sizes(comm, peer):
        data = np.zeros(size, np.uint8)
        comm.send(answer, peer)
        comm.recv(data, peer)
        comm.send(answer, peer)


def _sizes(comm: Communicator, peer: int) -> Iterator[int]:
    """The sizes that the peer announces, until it says 0."""
    size = np.zeros(1, np.int64)
    comm.recv(size, peer)
    while size[0]:
        yield int(size[0])
        comm.recv(size, peer)


def _renamed(inside: Topology, used: set[str]) -> Topology:
    """The host under a name that no other host has: containers and namespaces may share one."""
    (host,) = inside.hosts()
    name, number = host_word(host), 1
    while name in used:
        number += 1
        name = f"{host_word(host)}-{number}"
    if name == host:
        return inside

    def full(old: str) -> str:
        return name + old[len(host) :] if old == host or old.startswith(f"{host}/") else old

    nodes = [replace(node, name=full(node.name), numa=full(node.numa)) for node in inside.nodes]
    links = [replace(link, src=full(link.src), dst=full(link.dst)) for link in inside.links]
    return Topology(tuple(nodes), tuple(links))
