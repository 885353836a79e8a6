"""Bounds: how long a collective takes at least on a graph, whatever the plan, and why.

What a bound counts on: messages go from rank to rank by the routes of `Topology.path`; switches neither copy nor add
up; ranks do not code. Then, for a collective that moves blocks of M bytes over n ranks,

* **cut**: so much has to leave, or to enter, a set of ranks; what can do so is the largest flow between the set and
  the others over the links that routes use (above 64 ranks, what all links around it carry). All-reduce, reduce and
  broadcast: M; all-gather: M for each rank behind the cut.
* **partition**: into k sets of ranks. All-reduce sends each byte at least 2 (k - 1) times from set to set, k - 1 times
  to reduce and k - 1 times to spread, so all sets together need 2 (k - 1) M of what can leave them. Sets are single
  ranks, hosts, what hangs together once the top switches are gone, or once the slow links are.
* **trees**: the optimum of the linear programme of packing.py, the sharpest; up to `MAX_FOREST_RANKS` ranks.

The latency of the longest of the shortest ways is a bound of its own. The largest counts.
"""

from __future__ import annotations

from hccl_py.core.types import Collective
from hccl_py.scheduler.cuts import Bound, per_byte
from hccl_py.scheduler.synthesis import MAX_FOREST_RANKS, packing_for
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

C = Collective
_TREES = (C.ALL_REDUCE, C.REDUCE, C.BROADCAST, C.ALL_GATHER, C.REDUCE_SCATTER)
__all__ = ["Bound", "Bounds", "gap", "lower_bound"]


class Bounds:
    """The bounds of one collective on one graph; they are worked out once and asked for any size.

    Args:
        root: of rooted collectives.
        trees: False: leave out the linear programme, which takes up to seconds on 16 ranks and more.
    """

    def __init__(
        self, topology: Topology, placement: Placement, collective: Collective, root: int = 0, *, trees: bool = True
    ) -> None:
        self._fixed = [Bound(0.0, "nothing has to move")]
        self._per_byte: list[Bound] = []
        if placement.size < 2:
            return
        self._fixed.append(_latency(topology, placement, collective, root))
        self._per_byte = per_byte(topology, placement, collective, root)
        if trees and collective in _TREES and placement.size <= MAX_FOREST_RANKS:
            packing = packing_for(topology, placement, collective, root if collective.rooted else 0)
            self._per_byte.append(Bound(packing.bound_s, "trees"))

    def at(self, bytes_per_block: int) -> Bound:
        """The largest bound for blocks of this size."""
        scaled = [Bound(bytes_per_block * bound.seconds, bound.why) for bound in self._per_byte]
        return max((*self._fixed, *scaled), key=lambda bound: bound.seconds)


def lower_bound(
    topology: Topology,
    placement: Placement,
    collective: Collective,
    bytes_per_block: int,
    root: int = 0,
    *,
    trees: bool = True,
) -> Bound:
    """What `Bounds` says for one size."""
    return Bounds(topology, placement, collective, root, trees=trees).at(bytes_per_block)


def gap(predicted_s: float, bound_s: float) -> str:
    """How far a predicted time is above its bound, for tables: "+4.2%"; "-" where the bound is zero."""
    return f"{100 * (predicted_s / bound_s - 1):+.1f}%" if bound_s > 0 else "-"


def _latency(topology: Topology, placement: Placement, collective: Collective, root: int) -> Bound:
    """From the root, or to it. Where all hear of all, from rank 0 only: looking at all pairs takes long."""
    at = root if collective.rooted else 0
    gathers = collective in (C.REDUCE, C.GATHER)
    longest, other = 0.0, at
    for rank in range(placement.size):
        if rank != at:
            ends = (rank, at) if gathers else (at, rank)
            latency_s = Topology.latency_s(placement.path(*ends, topology))
            longest, other = max((longest, other), (latency_s, rank), key=lambda pair: pair[0])
    return Bound(longest, f"latency between ranks {at} and {other}")
