"""The hierarchical all_reduce with a ring between hosts: each share goes around once to be added up and once more to be
handed out, by the ranks that own it on each host. Each host sends to one other and receives from one other, so flows
never compete for a port; see ring.py for the ring itself."""

from __future__ import annotations

from hccl_py.scheduler.algorithms.common import by_rank
from hccl_py.scheduler.algorithms.hosts import Hosts
from hccl_py.scheduler.writer import Writer

RESULTS = 1  # the channel of finished slots inside a host, apart from contributions


def all_reduce_in_a_ring(w: Writer, hosts: Hosts) -> None:
    """Slot j of a share starts on host j, is complete after H - 1 hops on the host before, then goes round again."""
    num_hosts = len(hosts.groups)
    for step in (_add_up, _hand_out):
        for hop in range(num_hosts):
            for share in range(w.slots // num_hosts):
                step(w, hosts, share, hop)


def _add_up(w: Writer, hosts: Hosts, share: int, hop: int) -> None:
    k = _slot(hosts, share, hosts.mine - hop)
    owner = hosts.owner(hosts.mine, share)
    if owner != w.rank:
        w.send(w.input(k=k), w.peer(owner))
        return
    before, after = _neighbours(hosts, share)
    sources = [(w.rank, w.input(k=k)), *((q, w.peer(q)) for q in hosts.neighbours)]
    if hop:
        alone = hop == 1 and hosts.single(hosts.host_of(before))
        sources.append((before, w.peer(before, raw=alone)))
    if len(sources) > 1:
        w.fold(by_rank(sources), [w.output(k=k)])
    w.send(w.output(k=k) if len(sources) > 1 else w.input(k=k), w.peer(after))


def _hand_out(w: Writer, hosts: Hosts, share: int, hop: int) -> None:
    """Hop 0 is the slot that was completed here, and is on its way already."""
    k = _slot(hosts, share, hosts.mine + 1 - hop)
    owner = hosts.owner(hosts.mine, share)
    if owner != w.rank:
        w.recv(w.peer(owner, raw=False, channel=RESULTS), w.output(k=k))
        return
    before, after = _neighbours(hosts, share)
    if hop:
        w.recv(w.peer(before, raw=False), w.output(k=k))
        if hop < len(hosts.groups) - 1:
            w.send(w.output(k=k), w.peer(after))
    if hosts.neighbours:
        w.send(w.output(k=k), *(w.peer(q, channel=RESULTS) for q in hosts.neighbours))


def _slot(hosts: Hosts, share: int, host: int) -> int:
    return share * len(hosts.groups) + host % len(hosts.groups)


def _neighbours(hosts: Hosts, share: int) -> tuple[int, int]:
    """Who owns the share on the host before and on the next one."""
    num_hosts = len(hosts.groups)
    return hosts.owner((hosts.mine - 1) % num_hosts, share), hosts.owner((hosts.mine + 1) % num_hosts, share)
