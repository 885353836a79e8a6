"""The cases: for each collective its buffers, in place and out of place, and the factor of its bus bandwidth.

A new collective is a row of :data:`CASES`, a method in each library of peers.py and a branch in oracle.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hccl_py.bench.dtypes import Array


@dataclass(frozen=True)
class Case:
    """One collective as the benchmark sees it; ``n`` is the number of ranks throughout."""

    name: str
    sends_blocks: bool  # INPUT is n blocks (else one)
    receives_blocks: bool  # OUTPUT is n blocks (else one)
    bus_factor: Callable[[int], float]  # busbw / algbw
    reduces: bool = False
    rooted: bool = False
    root_only_input: bool = False
    root_only_output: bool = False
    out_of_place: bool = True
    in_place: bool = True

    def count(self, size_bytes: int, itemsize: int, n: int) -> int:
        """Return the elements per block, at least one, so that the largest buffer has about ``size_bytes``."""
        blocks = n if self.sends_blocks or self.receives_blocks else 1
        return max(size_bytes // (itemsize * blocks), 1)

    def size_bytes(self, count: int, itemsize: int, n: int) -> int:
        """Return S of nccl-tests: the bytes of the largest buffer of a rank, which algbw divides by the time."""
        return count * itemsize * (n if self.sends_blocks or self.receives_blocks else 1)

    def has_input(self, rank: int, root: int) -> bool:
        """True if ``rank`` gives data."""
        return not self.root_only_input or rank == root

    def has_output(self, rank: int, root: int) -> bool:
        """True if ``rank`` receives data."""
        return not self.root_only_output or rank == root


@dataclass(frozen=True)
class Buffers:
    """The buffers of one rank for one measurement: None where the rank has none; in place they overlap."""

    send: Array | None
    recv: Array | None

    @classmethod
    def allocate(
        cls,
        case: Case,
        dtype: np.dtype,
        count: int,
        rank: int,
        n: int,
        root: int,
        in_place: bool,
        zeros: Callable[[int, np.dtype], Array] = np.zeros,
    ) -> Buffers:
        """Make the buffers: one-dimensional, ``count`` elements a block, zeroed (so that their pages exist).

        ``zeros`` makes an array of so many elements of a type.
        """
        sends = case.has_input(rank, root)
        receives = case.has_output(rank, root)
        send_count = count * (n if case.sends_blocks else 1)
        recv_count = count * (n if case.receives_blocks else 1)
        if not in_place or not (sends and receives):
            return cls(
                zeros(send_count, dtype) if sends else None,
                zeros(recv_count, dtype) if receives else None,
            )
        whole = zeros(max(send_count, recv_count), dtype)
        own = whole[rank * count : (rank + 1) * count]
        return cls(
            own if send_count < recv_count else whole,
            own if recv_count < send_count else whole,
        )


def _share(n: int) -> float:
    return (n - 1) / n


def _one(_: int) -> float:
    return 1.0


CASES = {
    case.name: case
    for case in (
        Case("all_reduce", False, False, lambda n: 2 * (n - 1) / n, reduces=True),
        Case("reduce", False, False, _one, reduces=True, rooted=True, root_only_output=True),
        # Every library here broadcasts one buffer: there is no out-of-place form to measure.
        Case("broadcast", False, False, _one, rooted=True, out_of_place=False),
        Case("all_gather", False, True, _share),
        Case("reduce_scatter", True, False, _share, reduces=True),
        Case("all_to_all", True, True, _share),
        Case("gather", False, True, _share, rooted=True, root_only_output=True),
        Case("scatter", True, False, _share, rooted=True, root_only_input=True),
        Case("sendrecv", False, False, _one, in_place=False),  # each rank to the next, from the previous
        Case("barrier", False, False, _one, out_of_place=False),  # moves nothing: one row, time only
    )
}
