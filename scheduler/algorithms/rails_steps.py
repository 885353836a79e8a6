"""The steps of `rails` (rails.py): what the ranks with one index in their hosts do, as a class of a template."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hccl_py.scheduler.template import ClassOperand, ClassWriter, Ints

_PATIENCE = 3  # stages between the network part of a turned chunk and its part inside the hosts
_RESULTS = 1  # the channel of finished slots, apart from partial sums
_Place = Callable[[int], "Ints | int"]  # from a rail to the first slot of what is its in some parts of a chunk


class Rails(NamedTuple):
    """The parameters of `rails`, checked. ``ranks[h, i]`` is rank i of host h."""

    ranks: Ints
    shares: tuple[int, ...]
    radices: tuple[int, ...]
    chunks: tuple[int, ...]
    turned: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Slots of a block."""
        return len(self.ranks) * sum(self.shares) * sum(self.chunks)

    def span(self, chunk: int, rail: int) -> int:
        """Slots of one host's part of a chunk that are a rail's."""
        return self.chunks[chunk] * self.shares[rail]

    def region(self, chunk: int, rail: int) -> int:
        """First slot of a rail's part of a chunk: one host's after the other."""
        before = self.chunks[chunk] * sum(self.shares[:rail])
        return len(self.ranks) * (sum(self.shares) * sum(self.chunks[:chunk]) + before)

    def turned_place(self, chunk: int, rail: int, part: Ints | int) -> Ints | int:
        """As `region` of one part, where rails are inside the hosts' parts: of a chunk that goes along rails first."""
        before = len(self.ranks) * sum(self.chunks[:chunk]) + part * self.chunks[chunk]
        return sum(self.shares) * before + self.chunks[chunk] * sum(self.shares[:rail])


class RailsClass:
    """Writes the class of the ranks with index ``rail`` in their hosts; entry h of each array is host h."""

    def __init__(self, rails: Rails, rail: int) -> None:
        self._rails, self._rail = rails, rail
        self._host = np.arange(len(rails.ranks))
        self._per_host = rails.ranks.shape[1]
        order = rails.inner or tuple(range(self._per_host))
        at = order.index(rail)
        self._behind = [order[at - d] for d in range(self._per_host)]  # by distance, this rank first
        self._after = order[(at + 1) % self._per_host]
        self.writer = ClassWriter(rails.ranks[:, rail])

    def run(self, chunk: int) -> Iterator[None]:
        """All steps of a chunk; yields between stages."""
        if self._rails.turned[chunk]:
            return self._turned(chunk)
        return self._halvings(chunk) if self._rails.radices else self._ring(chunk)

    def _neighbour(self, index: int, span: int, raw: bool, channel: int = 0) -> ClassOperand:
        return self.writer.peer(self._rails.ranks[:, index], span, raw, channel)

    def _parts(self, chunk: int, part: Ints | int) -> _Place:
        return lambda rail: self._rails.region(chunk, rail) + part * self._rails.span(chunk, rail)

    def _gather(self, chunk: int, place: _Place, parts: int, summed: bool = False) -> list[ClassOperand]:
        """Give neighbours what their rails want of ``parts`` hosts' parts; the same of them for ours.

        Returns the sources of the sum over this host. ``summed``: what is given is no longer INPUT.
        """
        w = self.writer

        def span(rail: int) -> int:
            return parts * self._rails.span(chunk, rail)

        def given(rail: int) -> ClassOperand:
            return (w.output if summed else w.input)(place(rail), span(rail))

        if not self._rails.inner:
            others = [index for index in range(self._per_host) if index != self._rail]
            for other in self._behind[:0:-1]:
                w.fold([given(other)], [self._neighbour(other, span(other), raw=True)])
            own = {self._rail: given(self._rail)}
            own.update((other, self._neighbour(other, span(self._rail), raw=not summed)) for other in others)
            return [own[index] for index in sorted(own)]
        before = self._behind[1]
        for distance, rail in enumerate(self._behind[1:], 1):  # partial sums go round; the rail's rank adds last
            if distance > 1:
                raw = distance == 2 and not summed
                w.fold([self._neighbour(before, span(rail), raw), given(rail)], [w.output(place(rail), span(rail))])
            local = given(rail) if distance == 1 else w.output(place(rail), span(rail))
            w.fold([local], [self._neighbour(self._after, span(rail), raw=False)])
        raw = self._per_host == 2 and not summed
        return [self._neighbour(before, span(self._rail), raw), given(self._rail)]

    def _spread(self, chunk: int, place: _Place, parts: int) -> None:
        """Send this rank's results to its neighbours, and receive theirs."""
        w = self.writer
        if self._per_host == 1:
            return
        own = w.output(place(self._rail), parts * self._rails.span(chunk, self._rail))
        ring = bool(self._rails.inner)
        to = [self._after] if ring else self._behind[:0:-1]
        w.fold([own], [self._neighbour(other, own.span, raw=False, channel=_RESULTS) for other in to])
        others = self._behind[1:] if ring else self._behind[:0:-1]
        for distance, rail in enumerate(others, 1):
            result = w.output(place(rail), parts * self._rails.span(chunk, rail))
            source = self._behind[1] if ring else rail
            w.fold([self._neighbour(source, result.span, raw=False, channel=_RESULTS)], [result])
            if ring and distance < self._per_host - 1:
                w.fold([result], [self._neighbour(self._after, result.span, raw=False, channel=_RESULTS)])

    def _ring(self, chunk: int) -> Iterator[None]:
        """Part p starts at host p, is complete after H - 1 hops at host p - 1, then goes round once more.

        Yields after each hop.
        """
        w, hosts, ranks = self.writer, len(self._host), self._rails.ranks[:, self._rail]
        before, after = np.roll(ranks, 1), np.roll(ranks, -1)
        first, span = self._rails.region(chunk, self._rail), self._rails.span(chunk, self._rail)
        alone = self._per_host == 1
        for hop in range(hosts):
            part = (self._host - hop) % hosts
            place = first + part * span
            sources = [w.input(place, span)] if alone else self._gather(chunk, self._parts(chunk, part), 1)
            local = w.input(place, span) if alone else w.output(place, span)
            if hop > 0:
                sources.insert(0, w.peer(before, span, raw=alone and hop == 1))
                local = w.output(place, span)  # stored, then sent: as in ring.py
            if hop > 0 or not alone:
                w.fold(sources, [w.output(place, span)])
            if hop < hosts - 1:
                w.fold([local], [w.peer(after, span)])
            yield
        for hop in range(hosts):  # the results; that of hop 0 is its own
            part = (self._host + 1 - hop) % hosts
            result = w.output(first + part * span, span)
            if hop > 0:
                w.fold([w.peer(before, span, raw=False, channel=_RESULTS)], [result])
            if hop < hosts - 1:
                w.fold([result], [w.peer(after, span, channel=_RESULTS)])
            self._spread(chunk, self._parts(chunk, part), 1)
            yield

    def _halvings(self, chunk: int) -> Iterator[None]:
        """Halving and doubling of one chunk; yields after each stage."""
        w, radices, hosts = self.writer, self._rails.radices, len(self._host)
        first, unit = self._rails.region(chunk, self._rail), self._rails.span(chunk, self._rail)
        everything = self._parts(chunk, 0)
        w.fold(self._gather(chunk, everything, hosts), [w.output(first, hosts * unit)])
        yield
        begin = np.zeros(hosts, dtype=np.int64)  # first of the parts that a host still works on
        stride, size = 1, hosts
        done: list[tuple[int, int, Ints, int]] = []
        for radix in radices:
            digit, size = self._host // stride % radix, size // radix
            mine = begin + digit * size
            partners = [self._partner(digit, d, radix, stride) for d in range(1, radix)]
            for d, partner in enumerate(partners, 1):
                theirs = begin + (digit + d) % radix * size
                raw = self._per_host == 1 and stride == 1
                w.fold([w.output(first + theirs * unit, size * unit, raw)], [w.peer(partner, size * unit)])
            raw = self._per_host == 1 and stride == 1
            own = w.output(first + mine * unit, size * unit, raw)
            w.fold([own, *(w.peer(p, size * unit, raw) for p in reversed(partners))], [own])
            done.append((radix, stride, begin, size))
            begin, stride = mine, stride * radix
            yield
        for radix, stride, begin, size in reversed(done):
            digit = self._host // stride % radix
            partners = [self._partner(digit, d, radix, stride) for d in range(1, radix)]
            span = size * unit
            mine = first + (begin + digit * size) * unit
            w.fold([w.output(mine, span)], [w.peer(p, span, channel=_RESULTS) for p in partners])
            for d, partner in enumerate(partners, 1):
                theirs = first + (begin + (digit + d) % radix * size) * unit
                w.fold([w.peer(partner, span, raw=False, channel=_RESULTS)], [w.output(theirs, span)])
            yield
        self._spread(chunk, everything, hosts)
        yield

    def _turned(self, chunk: int) -> Iterator[None]:
        """Along the rails first: each host takes one part of every rank's whole chunk; then inside the hosts."""
        w, hosts, ranks = self.writer, len(self._host), self._rails.ranks[:, self._rail]
        partners = [np.roll(ranks, -d) for d in range(1, hosts)]
        rings = not self._rails.radices  # what a ring sends it receives one stage later

        def part(d: int) -> _Place:  # that of the host which is d further
            return lambda rail: self._rails.turned_place(chunk, rail, (self._host + d) % hosts)

        spans = [self._rails.span(chunk, rail) for rail in range(self._per_host)]
        for rail, span in enumerate(spans):
            for d, partner in enumerate(partners, 1):
                w.fold([w.input(part(d)(rail), span)], [w.peer(partner, span)])
        if rings:
            yield
        for rail, span in enumerate(spans):
            place = part(0)(rail)
            w.fold([w.input(place, span), *(w.peer(p, span) for p in reversed(partners))], [w.output(place, span)])
        yield
        for _ in range(_PATIENCE):  # channels are FIFO: what waited for the network here would hold other chunks up
            yield
        if self._per_host > 1:
            own = w.output(part(0)(self._rail), spans[self._rail])
            w.fold(self._gather(chunk, part(0), 1, summed=True), [own])
            self._spread(chunk, part(0), 1)
        yield
        for rail, span in enumerate(spans):
            w.fold([w.output(part(0)(rail), span)], [w.peer(p, span, channel=_RESULTS) for p in partners])
        if rings:
            yield
        for rail, span in enumerate(spans):
            for d, partner in enumerate(partners, 1):
                result = w.output(part(d)(rail), span)
                w.fold([w.peer(partner, span, raw=False, channel=_RESULTS)], [result])
        yield

    def _partner(self, digit: Ints, d: int, radix: int, stride: int) -> Ints:
        """The rank whose digit is larger by ``d``, modulo the radix."""
        hosts = self._host + ((digit + d) % radix - digit) * stride
        found: Ints = self._rails.ranks[hosts, self._rail]
        return found
