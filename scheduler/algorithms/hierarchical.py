"""hierarchical: what crosses the network has been reduced inside its host first, and is spread there by its receivers.

Parameter ``groups``: the ranks of each host, in any numbers and any order of ranks. Work is spread over the ranks of a
host: its i-th share belongs to local rank i (modulo the number of ranks there).
all_reduce: reduce-scatter inside the hosts, all-reduce between the ranks of equal local index, all-gather inside the
hosts, as one pipeline. Each byte leaves a host 2 (H - 1) / H times for H hosts. Between hosts everyone talks to
everyone, or to the next one only (``across`` = ring, host_ring.py): more steps, but no port has two senders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.common import by_rank
from hccl_py.scheduler.algorithms.host_ring import all_reduce_in_a_ring
from hccl_py.scheduler.algorithms.hosts import Hosts, groups_of
from hccl_py.scheduler.algorithms.rails import rails_template
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import WINDOW, Operand
from hccl_py.scheduler.template import Template
from hccl_py.scheduler.writer import Writer

C = Collective
_RESULTS = 1  # all_reduce: the channel of finished slots inside a host, apart from contributions


def _write(w: Writer) -> None:
    hosts = Hosts(groups_of(w.params, w.world), w.rank)
    write = {
        C.ALL_REDUCE: _all_reduce,
        C.REDUCE_SCATTER: _reduce_scatter,
        C.ALL_GATHER: _all_gather,
        C.BROADCAST: _broadcast,
        C.REDUCE: _reduce,
        C.BARRIER: _barrier,
        C.ALL_TO_ALL: _all_to_all,
    }
    write[w.collective](w, hosts)


def _local_sources(w: Writer, hosts: Hosts, own: Operand) -> list[tuple[int, Operand]]:
    return [(w.rank, own), *((q, w.peer(q)) for q in hosts.neighbours)]


def _spread(w: Writer, ranks: Sequence[int], local: Operand, channel: int = 0) -> None:
    """Pass on what was received or added up. A step of its own: see [Note: store, then send] in ring.py."""
    if ranks:
        w.send(local, *(w.peer(q, channel=channel) for q in ranks))


def _all_reduce(w: Writer, hosts: Hosts) -> None:
    """Share i consists of one slot for each host, whose i-th rank finishes it."""
    if w.params.get("across") == "ring":
        all_reduce_in_a_ring(w, hosts)
        return
    mine, elsewhere, num_hosts = hosts.mine, hosts.elsewhere, len(hosts.groups)
    shares = w.slots // num_hosts
    for share in range(shares):
        owner = hosts.owner(mine, share)
        for host in (*elsewhere, mine):
            contribution = w.input(k=share * num_hosts + host)
            if owner != w.rank:
                w.send(contribution, w.peer(owner))
                continue
            sources = _local_sources(w, hosts, contribution)
            partners = [(hosts.owner(h, share), hosts.single(h)) for h in elsewhere]
            output = w.output(k=share * num_hosts + host)
            if host != mine:
                w.fold(by_rank(sources), [output])
                w.send(output, w.peer(hosts.owner(host, share)))
                continue
            sources += [(q, w.peer(q, raw=single)) for q, single in partners]
            w.fold(by_rank(sources), [output])
    for slot in range(w.slots):  # the results, in the same order everywhere
        share, host = divmod(slot, num_hosts)
        owner = hosts.owner(mine, share)
        receivers = hosts.neighbours
        if owner != w.rank:
            w.recv(w.peer(owner, raw=False, channel=_RESULTS), w.output(k=slot))
            continue
        if host != mine:
            w.recv(w.peer(hosts.owner(host, share), raw=False), w.output(k=slot))
        else:
            _spread(w, [hosts.owner(h, share) for h in elsewhere], w.output(k=slot))
        _spread(w, receivers, w.output(k=slot), channel=_RESULTS)


def _reduce_scatter(w: Writer, hosts: Hosts) -> None:
    """For each block one rank of each host adds up the host's part and hands it to the block's rank."""
    for block in range(w.world):
        host, share = hosts.host_of(block), hosts.share_of(block)
        collector = block if host == hosts.mine else hosts.owner(hosts.mine, share)
        if collector != w.rank:
            w.send(w.input(block), w.peer(collector))
            continue
        sources = _local_sources(w, hosts, w.input(block))
        if block != w.rank:
            w.fold(by_rank(sources), [w.peer(block)])
            continue
        for other in hosts.elsewhere:
            q = hosts.owner(other, share)
            sources.append((q, w.peer(q, raw=hosts.single(other))))
        w.fold(by_rank(sources), [w.output()])


def _all_gather(w: Writer, hosts: Hosts) -> None:
    """A block goes to the neighbours and to one rank of each other host, which passes it on to its neighbours."""
    for block in range(w.world):
        receiver = hosts.owner(hosts.mine, hosts.share_of(block))
        if block == w.rank:
            w.send(w.input(), w.output(w.rank), *map(w.peer, hosts.neighbours))
            for host in hosts.elsewhere:
                w.send(w.input(), w.peer(hosts.owner(host, hosts.share_of(block))))
        elif hosts.host_of(block) == hosts.mine:
            w.recv(w.peer(block), w.output(block))
        elif receiver == w.rank:
            w.recv(w.peer(block), w.output(block))
            _spread(w, hosts.neighbours, w.output(block))
        else:
            w.recv(w.peer(receiver), w.output(block))


class _Above(NamedTuple):
    """A rank's place in the tree of leaders: hosts form a binary tree under the root's host, ranks hang under
    leaders."""

    parent: int | None
    depth: int
    below: list[tuple[int, bool]]  # rank, and whether it contributes alone


def _above(w: Writer, hosts: Hosts) -> _Above:
    at = hosts.host_of(w.root)
    num_hosts = len(hosts.groups)
    order = [(at + d) % num_hosts for d in range(num_hosts)]
    leaders = [w.root, *(hosts.owner(host, 0) for host in order[1:])]
    i = order.index(hosts.mine)
    depth = (i + 1).bit_length() - 1
    if leaders[i] != w.rank:
        return _Above(leaders[i], depth + 1, [])
    children = [c for c in (2 * i + 1, 2 * i + 2) if c < num_hosts]
    below = [(leaders[c], hosts.single(order[c]) and 2 * c + 1 >= num_hosts) for c in children]
    below += [(q, True) for q in hosts.neighbours]
    return _Above(leaders[(i - 1) // 2] if i else None, depth, below)


def _broadcast(w: Writer, hosts: Hosts) -> None:
    above = _above(w, hosts)
    source = w.input() if above.parent is None else w.peer(above.parent)
    w.fold([source], [w.output(), *(w.peer(q) for q, _ in above.below)])


def _reduce(w: Writer, hosts: Hosts) -> None:
    above = _above(w, hosts)
    sources = [(w.rank, w.input()), *((q, w.peer(q, raw=alone)) for q, alone in above.below)]
    w.fold(by_rank(sources), [w.output() if above.parent is None else w.peer(above.parent)])


def _barrier(w: Writer, hosts: Hosts) -> None:
    """Up the tree of leaders, and down again.

    From one level to the next tokens of two slots and of one take turns, and so do up and down, so that each step waits
    for the end of those before: [Note: empty tokens] in verify.py.
    """
    above = _above(w, hosts)
    mine, below = 1 + above.depth % 2, 2 - above.depth % 2
    if above.below:
        w.copy(w.input(span=2), w.output(span=2))
    for q, _ in above.below:
        w.recv(w.peer(q), w.output(span=below))
    if above.parent is not None:
        w.send(w.output(span=mine) if above.below else w.input(span=mine), w.peer(above.parent))
        w.recv(w.peer(above.parent), w.output(span=below))
    _spread(w, [q for q, _ in above.below], w.output(span=mine))


def _all_to_all(w: Writer, hosts: Hosts) -> None:
    """Blocks for a rank of another host collect at the neighbour of its local index, which sends them in one message.
    So there are fewer messages between hosts, not fewer bytes."""
    group = sorted(hosts.groups[hosts.mine])
    for turn in range(2 * w.world):  # as in direct, among neighbours
        q = turn - w.rank
        if q == w.rank:
            w.copy(w.input(q), w.output(q))
        elif q in group:
            w.send(w.input(q), w.peer(q))
            w.recv(w.peer(q), w.output(q))
    collected = {}
    for block in range(w.world):
        if block in group:
            continue
        collector = hosts.owner(hosts.mine, hosts.share_of(block))
        if collector != w.rank:
            w.send(w.input(block), w.peer(collector))
            continue
        held = collected[block] = w.scratch(*[w.input(block)] * len(group))
        for i, q in enumerate(group):
            if q == w.rank:
                w.copy(w.input(block), w.part(held, i))
            else:
                w.recv(w.peer(q), w.part(held, i))
    scattered = []
    for host in sorted(hosts.elsewhere, key=lambda host: (host + hosts.mine) % len(hosts.groups)):
        ranks = sorted(hosts.groups[host])
        for block in sorted(collected.keys() & ranks):
            w.send(collected[block], w.peer(block))
        in_a_row = ranks[-1] - ranks[0] == len(ranks) - 1
        arrived = w.output(ranks[0], span=len(ranks)) if in_a_row else w.scratch(*map(w.output, ranks))
        w.recv(w.peer(hosts.owner(host, hosts.share_of(w.rank))), arrived)
        if not in_a_row:
            scattered += [(w.part(arrived, i), w.output(q)) for i, q in enumerate(ranks)]
    for part, output in scattered:
        w.copy(part, output)


def _shares(groups: Groups) -> int:
    """One share for each rank of the largest host. In uneven ones a rank of a small host has several shares to finish:
    not more than fit in its window."""
    smallest, largest = min(map(len, groups)), max(map(len, groups))
    return min(largest, max(smallest, WINDOW // (3 * len(groups))))


def _shape(collective: Collective, world: int, params: Mapping[str, ParamValue]) -> Shape:
    if collective is not Collective.ALL_REDUCE:
        return Shape(slots=2 if collective is Collective.BARRIER else 1)
    groups = groups_of(params, world)
    return Shape(slots=_shares(groups) * len(groups), channels=2)


def _variants(collective: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    if collective is Collective.ALL_REDUCE and len(groups) > 2:
        return {"groups": groups}, {"groups": groups, "across": "ring"}
    return ({"groups": groups},)


def _worth(groups: Groups) -> bool:
    """On one host, or with one rank a host, there is only one level."""
    return len(groups) > 1 and any(len(group) > 1 for group in groups)


def _template(world: int, params: Mapping[str, ParamValue]) -> Template:
    """In large worlds of equal hosts: a ring along each rail, with equal shares."""
    return rails_template(world, {"groups": groups_of(params, world)}, "hierarchical")


HIERARCHICAL = Algorithm(
    name="hierarchical",
    summary="reduced inside a host before it crosses the network",
    collectives=frozenset(Collective) - {Collective.GATHER, Collective.SCATTER},
    write=_write,
    shape=_shape,
    variants=_variants,
    worth=_worth,
    template=_template,
)
