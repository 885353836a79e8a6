"""Untangle: trees of a packing that use the same pair of ranks take other ranks of the same hosts, where it is equal.

Messages of one pair of ranks pass one after the other (channels are FIFO), so a tree that waits for a narrow link holds
up the next one behind it, although the packing counts on both at once. Ranks of a host are often alike: to let the
second tree go by their neighbours changes no link's load, but then each tree has pairs of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hccl_py.scheduler.packing import Scheme, busiest_s
from hccl_py.scheduler.routes import Routes

_SLOWER = 1.001  # what the busiest link may lose
_Used = Counter[tuple[int, int, bool]]  # (source, destination, whether the message rises)


def untangled(
    routes: Routes,
    schemes: Sequence[Scheme],
    shares: Sequence[float],
    groups: Sequence[Sequence[int]],
    keep_roots: bool,
) -> tuple[Scheme, ...]:
    """``schemes`` with ranks of the same host in each other's place.

    Args:
        shares: bytes that go over each scheme.
        groups: the ranks of each host.
        keep_roots: each scheme's root has to stay.
    """
    found = list(schemes)
    most_s = busiest_s(routes, found, shares) * _SLOWER
    used: _Used = Counter()
    for number, scheme in enumerate(schemes):
        best, clashes = scheme, _clashes(scheme, used)
        for turn in range(1, max(map(len, groups))):
            if not clashes:
                break
            other = _turned(scheme, turn, groups, keep_roots)
            fewer = _clashes(other, used)
            found[number] = other
            if fewer < clashes and busiest_s(routes, found, shares) <= most_s:
                best, clashes = other, fewer
        found[number] = best
        used.update(_messages(best))
    return tuple(found)


def _turned(scheme: Scheme, turn: int, groups: Sequence[Sequence[int]], keep_root: bool) -> Scheme:
    """Every rank replaced by the one that is ``turn`` further among those of its host."""
    image = list(range(max(len(scheme.up), len(scheme.down))))
    for group in groups:
        members = [rank for rank in group if not (keep_root and rank == scheme.root)]
        for place, rank in enumerate(members):
            image[rank] = members[(place + turn) % len(members)]

    def moved(parents: tuple[int, ...]) -> tuple[int, ...]:
        new = [-1] * len(parents)
        for rank, parent in enumerate(parents):
            new[image[rank]] = image[parent] if parent >= 0 else -1
        return tuple(new)

    return Scheme(image[scheme.root], moved(scheme.up), moved(scheme.down))


def _messages(scheme: Scheme) -> list[tuple[int, int, bool]]:
    rising = [(rank, parent, True) for rank, parent in enumerate(scheme.up) if parent >= 0]
    return rising + [(parent, rank, False) for rank, parent in enumerate(scheme.down) if parent >= 0]


def _clashes(scheme: Scheme, used: _Used) -> int:
    return sum(used[message] for message in _messages(scheme))
