"""Synthesis: from a graph to the parameters of the algorithm `forest`: packed trees, with shares in whole slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from hccl_py.core.types import Collective
from hccl_py.scheduler.cuts import per_byte
from hccl_py.scheduler.packing import Packing, Scheme, busiest_s, pack
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.routes import Routes
from hccl_py.scheduler.untangle import untangled
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

MAX_FOREST_RANKS = 24  # above, packing takes minutes, and hosts are alike enough for the hierarchical plans
_SLOTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)
_GAP = 5e-3
_LOSS = 1.004  # what cutting into whole slots may cost
_PER_ROOT = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def forest_for(
    collective: Collective, topology: Topology, placement: Placement, root: int = 0, channels: int = 2
) -> tuple[Mapping[str, ParamValue], ...]:
    """Parameter sets of `forest` for this graph; none for a single rank or more than `MAX_FOREST_RANKS`.

    Args:
        root: of reduce and broadcast.
        channels: how many channels there are to a peer.
    """
    if not 1 < placement.size <= MAX_FOREST_RANKS:
        return ()
    schemes, shares = _in_slots(topology, placement, collective, root)
    up = tuple(scheme.up for scheme in schemes) if collective.reduces else ()
    down = tuple(scheme.down for scheme in schemes) if schemes[0].down else ()
    roots = tuple(scheme.root for scheme in schemes)
    return ({"roots": roots, "shares": shares, "up": up, "down": down, "channels": channels},)


@lru_cache(maxsize=32)
def packing_for(topology: Topology, placement: Placement, collective: Collective, root: int) -> Packing:
    """The packing of this graph; kept, as bounds and several tables ask for the same one."""
    cuts = per_byte(topology, placement, collective, root)
    known_s = max((bound.seconds for bound in cuts), default=0.0)
    seeds: tuple[Scheme, ...] = ()
    if collective is Collective.ALL_REDUCE and placement.size > 4:  # trees that gather well reduce well, turned round
        seeds = packing_for(topology, placement, Collective.ALL_GATHER, 0).schemes
    return pack(Routes(topology, placement), collective, root, gap=_GAP, known_bound_s=known_s, seeds=seeds)


@lru_cache(maxsize=32)
def _in_slots(
    topology: Topology, placement: Placement, collective: Collective, root: int
) -> tuple[tuple[Scheme, ...], tuple[int, ...]]:
    packing = packing_for(topology, placement, collective, root)
    routes = Routes(topology, placement)
    best: tuple[float, tuple[int, ...]] | None = None
    for slots in _SLOTS:
        shares = _rounded(packing, slots, per_root=collective in _PER_ROOT)
        seconds = busiest_s(routes, packing.schemes, [share / slots for share in shares])
        if best is None or seconds < best[0]:
            best = seconds, shares
        if seconds <= packing.seconds_per_byte * _LOSS:
            break
    assert best is not None  # _SLOTS is not empty
    kept = [(scheme, share) for scheme, share in zip(packing.schemes, best[1], strict=True) if share]
    shares = tuple(share for _, share in kept)
    fixed = collective is not Collective.ALL_REDUCE
    groups = placement.groups(topology)
    return untangled(routes, [scheme for scheme, _ in kept], shares, groups, keep_roots=fixed), shares


def _rounded(packing: Packing, slots: int, per_root: bool) -> tuple[int, ...]:
    """Shares in whole slots by largest remainder, ``slots`` in all, or for each root."""
    shares = [0] * len(packing.schemes)
    for members in _by_root(packing.schemes) if per_root else [list(range(len(packing.schemes)))]:
        whole = sum(packing.shares[i] for i in members)
        exact = {i: packing.shares[i] / whole * slots for i in members}
        for i in members:
            shares[i] = int(exact[i])
        left = slots - sum(shares[i] for i in members)
        for i in sorted(members, key=lambda i: (int(exact[i]) - exact[i], i))[:left]:
            shares[i] += 1
    return tuple(shares)


def _by_root(schemes: Sequence[Scheme]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for number, scheme in enumerate(schemes):
        groups.setdefault(scheme.root, []).append(number)
    return list(groups.values())
