"""MaxMin: the rates of flows that share links fairly, where some flows may not be faster than others.

Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2), vectorised: in each turn every link whose
flows see no tighter link anywhere is filled up, not only the tightest of all; shares of the others can only grow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NEAR = 1e-9  # relative: what differs by less is equal
_FASTEST_Bps = 1e18  # of flows that no link limits
_MAX_CACHED = 4096
_TRUE = np.ones(1, dtype=np.bool_)


class MaxMin:
    """Lanes (kinds of flows, each with its links) over links of given capacities.

    Args:
        links, lanes, weights: entry i says that a flow of ``lanes[i]`` at 1 byte/s takes ``weights[i]`` bytes/s of
            ``links[i]``.
        capacity_Bps: of each link.
        num_lanes: lanes without an entry are not limited.
    """

    def __init__(self, links: Ints, lanes: Ints, weights: Floats, capacity_Bps: Floats, num_lanes: int) -> None:
        links, capacity_Bps = _distinct(links, lanes, weights, capacity_Bps, num_lanes)
        keep = links >= 0
        links, lanes, weights = links[keep], lanes[keep], weights[keep]
        order = np.argsort(lanes, kind="stable")
        self._links, self._weights = links[order], weights[order]
        self._lanes = lanes[order]
        self._capacity_Bps = capacity_Bps
        self._starts = np.searchsorted(self._lanes, np.arange(num_lanes + 1))
        self._num_lanes = num_lanes
        self._known: dict[bytes, Floats] = {}

    def rates(
        self, lanes: Ints, followers: Ints | None = None, leaders: Ints | None = None, caps_Bps: Floats | None = None
    ) -> Floats:
        """Rates in bytes/second of one flow for each entry of ``lanes``.

        Args:
            followers, leaders: indices into ``lanes``: flow ``followers[i]`` may not be faster than ``leaders[i]``.
            caps_Bps: the most that each flow may have; infinite where nothing but links limits it.
        """
        if followers is None or leaders is None or caps_Bps is None:
            counts = np.bincount(lanes, minlength=self._num_lanes)
            key = counts.tobytes()
            found = self._known.get(key)
            if found is None:
                busy = np.flatnonzero(counts)
                found = np.zeros(self._num_lanes)
                found[busy] = self._fill(busy, counts[busy].astype(np.float64), None, None, None)
                if len(self._known) >= _MAX_CACHED:
                    self._known.clear()
                self._known[key] = found
            return found[lanes]
        return self._fill(lanes, np.ones(len(lanes)), followers, leaders, caps_Bps)

    def _fill(
        self, lanes: Ints, counts: Floats, followers: Ints | None, leaders: Ints | None, caps_Bps: Floats | None
    ) -> Floats:
        """One rate for each unit; unit i stands for ``counts[i]`` equal flows of ``lanes[i]``."""
        num_units = len(lanes)
        first = self._starts[lanes]
        lengths = self._starts[lanes + 1] - first
        unit = np.repeat(np.arange(num_units), lengths)
        entries = expand(first, lengths)
        link = self._links[entries]
        num_links = len(self._capacity_Bps)
        if num_links > 2 * len(link):  # few of them are used
            used, link = np.unique(link, return_inverse=True)
            num_links = len(used)
            left = self._capacity_Bps[used]
        else:
            left = self._capacity_Bps.copy()
        load = self._weights[entries] * counts[unit]
        rate = np.full(num_units, _FASTEST_Bps) if caps_Bps is None else np.minimum(caps_Bps, _FASTEST_Bps)
        open_ = np.zeros(num_units, dtype=np.bool_)
        open_[unit] = True
        if followers is not None:
            open_[:] = True
        limit = rate.copy()
        while open_.any():
            share = np.full(num_links, np.inf)
            total = np.bincount(link, load, minlength=num_links)
            np.divide(left, total, out=share, where=total > 0)
            seen = share[link]
            level = limit.copy()
            if len(unit):
                begins = np.flatnonzero(np.concatenate((_TRUE, unit[1:] != unit[:-1])))
                level[unit[begins]] = np.minimum(level[unit[begins]], np.minimum.reduceat(seen, begins))
            level[~open_] = rate[~open_]
            if followers is not None and leaders is not None:
                _propagate(level, followers, leaders)
            tight = level[unit] >= seen * (1 - _NEAR)
            filled = np.bincount(link, ~tight, minlength=num_links) == 0
            freeze = np.zeros(num_units, dtype=np.bool_)
            freeze[unit[tight & filled[link]]] = True
            freeze |= level >= limit * (1 - _NEAR)
            if followers is not None and leaders is not None:
                held = ~open_[leaders] | freeze[leaders]
                freeze[followers[held & (level[followers] >= level[leaders] * (1 - _NEAR))]] = True
            freeze &= open_
            rate[freeze] = level[freeze]
            open_ &= ~freeze
            gone = freeze[unit]
            left -= np.bincount(link[gone], load[gone] * rate[unit[gone]], minlength=num_links)
            np.maximum(left, 0.0, out=left)
            link, load, unit = link[~gone], load[~gone], unit[~gone]
        return rate


def expand(first: Ints, lengths: Ints) -> Ints:
    """The numbers ``first[i] .. first[i] + lengths[i] - 1`` of all i, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(first - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def _propagate(level: Floats, followers: Ints, leaders: Ints) -> None:
    """No follower above its leader, along chains too."""
    while True:
        above = level[followers] > level[leaders] * (1 + _NEAR)
        if not above.any():
            return
        np.minimum.at(level, followers[above], level[leaders[above]])


def _distinct(links: Ints, lanes: Ints, weights: Floats, capacity_Bps: Floats, num_lanes: int) -> tuple[Ints, Floats]:
    """Renumbers the links: of those that carry the same flows in the same way the narrowest stays, others are -1."""
    if not len(links):
        return links, capacity_Bps
    loads: dict[tuple[bytes, bytes], int] = {}
    order = np.lexsort((lanes, links))
    numbers, begins = np.unique(links[order], return_index=True)
    ends = np.append(begins[1:], len(order))
    sorted_lanes, sorted_weights = lanes[order], weights[order]
    new = np.full(int(links.max()) + 1, -1, dtype=np.int64)
    kept: list[float] = []
    for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True):
        key = (sorted_lanes[begin:end].tobytes(), sorted_weights[begin:end].tobytes())
        at = loads.get(key)
        if at is None:
            loads[key] = len(kept)
            new[number] = len(kept)
            kept.append(float(capacity_Bps[number]))
        else:
            kept[at] = min(kept[at], float(capacity_Bps[number]))
    return new[links], np.array(kept)
