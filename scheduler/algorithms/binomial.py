"""gather and scatter over a binomial tree: part of `tree`. Logarithmically many messages at the root, each of many
blocks.

Ranks are counted from the root on: v = (rank - root) mod n. The subtree of v is v itself and the numbers after it, as
many as v's lowest bit says. Blocks of ranks that are not v's own pass through scratch, so all blocks must be equally
large.
"""

from __future__ import annotations

from hccl_py.scheduler.program import Operand
from hccl_py.scheduler.writer import Writer


def _subtree(v: int, n: int) -> int:
    return min(v & -v, n - v) if v else n


def _children(v: int, n: int) -> list[int]:
    bits = (1 << bit for bit in range(n.bit_length()))
    return [v + bit for bit in bits if (v == 0 or bit < v & -v) and v + bit < n]


def _pieces(w: Writer, v: int) -> list[tuple[int, int]]:
    """The subtree of v as runs ``(first, length)`` whose ranks follow each other: cut where rank n - 1 meets rank 0."""
    end, wrap = v + _subtree(v, w.world), w.world - w.root
    if v < wrap < end:
        return [(v, wrap - v), (wrap, end - wrap)]
    return [(v, end - v)]


def write_gather(w: Writer) -> None:
    """Blocks of a subtree collect in its lowest rank, then go to the parent."""
    n, v = w.world, (w.rank - w.root) % w.world
    if v == 0:
        w.copy(w.input(), w.output(w.rank))
        for child in _children(v, n):
            for first, length in _pieces(w, child):
                w.recv(w.peer((w.root + child) % n), w.output((w.root + first) % n, span=length))
        return
    parent = w.peer((w.root + (v & (v - 1))) % n)
    if _subtree(v, n) == 1:
        w.send(w.input(), parent)
        return
    held = w.scratch(*[w.input()] * _subtree(v, n))
    w.copy(w.input(), w.part(held, 0))
    for child in _children(v, n):
        for first, length in _pieces(w, child):
            w.recv(w.peer((w.root + child) % n), w.part(held, first - v, length))
    for first, length in _pieces(w, v):
        w.send(w.part(held, first - v, length), parent)


def write_scatter(w: Writer) -> None:
    """The reverse: a subtree's blocks come in one message, the children's are passed on, the largest subtree first."""
    n, v = w.world, (w.rank - w.root) % w.world
    parent = w.peer((w.root + (v & (v - 1))) % n)
    if v != 0 and _subtree(v, n) == 1:
        w.recv(parent, w.output())
        return
    held = w.scratch(*[w.output()] * _subtree(v, n)) if v else w.input()

    def part(first: int, length: int) -> Operand:
        return w.part(held, first - v, length) if v else w.input((w.root + first) % n, span=length)

    if v:
        for first, length in _pieces(w, v):
            w.recv(parent, part(first, length))
    for child in reversed(_children(v, n)):
        for first, length in _pieces(w, child):
            w.send(part(first, length), w.peer((w.root + child) % n))
    w.copy(part(v, 1), w.output())
