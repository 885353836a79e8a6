"""rails: hosts of equally many ranks, whose i-th ranks are a rail; each rail gets its share of the bytes.

all_reduce: inside a host, the i-th rank adds up rail i's share; along the rail that is all-reduced; inside the host
each rank spreads what it has. All of it is one pipeline. Shares need not be equal: where a rail's NICs are slow, the
links inside the hosts carry its bytes to other rails. Parameters: ``groups`` (the ranks of each host, hosts in the
order in which rails go), ``shares`` (of each rail), ``chunks`` (relative sizes), and how a rail reduces:

* ``radices`` = (): a ring. A chunk has one part for each host, which hosts finish and spread hop by hop; 2 (H - 1)
  hops, of which each carries an H-th. The rings of several chunks hide each other's latency.
* ``radices`` = (r1, r2, ...) with product H: hosts are numbered with digits of these radices, the first digit counting
  neighbours. In turn for each digit, ranks that differ in it alone reduce-scatter among each other, and back again
  all-gather: recursive halving and doubling, for any radix. Each chunk goes through all stages behind the one before;
  small ones first and last keep the ends short.

It is written for the classes of ranks with one index in their hosts (template.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple, cast

import numpy as np

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.rails_for import rails_for
from hccl_py.scheduler.template import ClassOperand, ClassProgram, ClassWriter, Ints, Template
from hccl_py.scheduler.writer import Writer

_RESULTS = 1  # the channel of finished slots, apart from partial sums


class _Rails(NamedTuple):
    """The parameters, checked. ``ranks[h, i]`` is rank i of host h."""

    ranks: Ints
    shares: tuple[int, ...]
    radices: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def slots(self) -> int:
        return len(self.ranks) * sum(self.shares) * sum(self.chunks)

    def region(self, chunk: int, rail: int) -> tuple[int, int]:
        """First slot of a rail's part of a chunk, and the slots of one host's part of it."""
        hosts, unit = len(self.ranks), self.chunks[chunk]
        first = hosts * (sum(self.shares) * sum(self.chunks[:chunk]) + unit * sum(self.shares[:rail]))
        return first, unit * self.shares[rail]


def _parsed(params: Mapping[str, ParamValue], world: int) -> _Rails:
    groups = cast(Groups, params.get("groups", (tuple(range(world)),)))
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or sorted(rank for group in groups for rank in group) != list(range(world)):
        raise PlanError(f"rails: {len(groups)} groups do not hold each of {world} ranks once, all hosts equally many")
    if len(groups) < 2:
        raise PlanError("rails: there is only one host")
    per_host = sizes.pop()
    shares = cast("tuple[int, ...]", params.get("shares", (1,) * per_host))
    radices = cast("tuple[int, ...]", params.get("radices", ()))
    chunks = cast("tuple[int, ...]", params.get("chunks", (1,)))
    if len(shares) != per_host or min(shares) < 1 or not chunks or min(chunks) < 1:
        raise PlanError(
            f"rails: {per_host} ranks a host with shares {shares}, chunks {chunks}: whole numbers from 1 on"
        )
    if radices and (min(radices) < 2 or prod(radices) != len(groups)):
        raise PlanError(f"rails: radices {radices} are not those of {len(groups)} hosts")
    return _Rails(np.array(groups, dtype=np.int64), shares, radices, chunks)


class _Class:
    """Writes the class of the ranks with index ``rail`` in their hosts; entry h of each array is host h."""

    def __init__(self, rails: _Rails, rail: int) -> None:
        self._rails, self._rail = rails, rail
        self._host = np.arange(len(rails.ranks))
        self._per_host = rails.ranks.shape[1]
        self._others = [(rail + d) % self._per_host for d in range(1, self._per_host)]
        self.writer = ClassWriter(rails.ranks[:, rail])

    def _neighbour(self, index: int, span: int, raw: bool, channel: int = 0) -> ClassOperand:
        return self.writer.peer(self._rails.ranks[:, index], span, raw, channel)

    def gather(self, chunk: int, part: Ints | int, parts: int) -> tuple[list[ClassOperand], Ints | int, int]:
        """Give neighbours what their rails want of ``parts`` hosts' parts from ``part`` on; the same of them for ours.

        Returns the sources of the sum over this host, the place of its parts and their span.
        """
        w = self.writer
        for other in self._others:
            first, unit = self._rails.region(chunk, other)
            span = unit * parts
            w.fold([w.input(first + part * unit, span)], [self._neighbour(other, span, raw=True)])
        first, unit = self._rails.region(chunk, self._rail)
        span = unit * parts
        own = {self._rail: w.input(first + part * unit, span)}
        own.update((other, self._neighbour(other, span, raw=True)) for other in self._others)
        return [own[index] for index in sorted(own)], first + part * unit, span

    def spread(self, chunk: int, part: Ints | int, parts: int) -> None:
        """Send this rank's results to its neighbours."""
        w = self.writer
        first, unit = self._rails.region(chunk, self._rail)
        span = unit * parts
        targets = [self._neighbour(other, span, raw=False, channel=_RESULTS) for other in self._others]
        if targets:
            w.fold([w.output(first + part * unit, span)], targets)

    def collect(self, chunk: int, part: Ints | int, parts: int) -> None:
        """Receive the neighbours' results."""
        w = self.writer
        for other in self._others:
            first, unit = self._rails.region(chunk, other)
            span = unit * parts
            w.fold([self._neighbour(other, span, raw=False, channel=_RESULTS)], [w.output(first + part * unit, span)])

    def ring(self, chunk: int) -> Iterator[None]:
        """Part p starts at host p, is complete after H - 1 hops at host p - 1, then goes round once more.

        Yields after each hop.
        """
        w, hosts, ranks = self.writer, len(self._host), self._rails.ranks[:, self._rail]
        before, after = np.roll(ranks, 1), np.roll(ranks, -1)
        first, span = self._rails.region(chunk, self._rail)
        alone = self._per_host == 1
        for hop in range(hosts):
            sources, place, _ = self.gather(chunk, (self._host - hop) % hosts, 1)
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
            place = first + (self._host + 1 - hop) % hosts * span
            if hop > 0:
                w.fold([w.peer(before, span, raw=False, channel=_RESULTS)], [w.output(place, span)])
            if hop < hosts - 1:
                w.fold([w.output(place, span)], [w.peer(after, span, channel=_RESULTS)])
            self.spread(chunk, (self._host + 1 - hop) % hosts, 1)
            self.collect(chunk, (self._host + 1 - hop) % hosts, 1)
            yield

    def stages(self, chunk: int) -> Iterator[None]:
        """Halving and doubling of one chunk; yields after each stage."""
        w, radices, hosts = self.writer, self._rails.radices, len(self._host)
        sources, place, span = self.gather(chunk, 0, hosts)
        w.fold(sources, [w.output(place, span)])
        yield
        first, unit = self._rails.region(chunk, self._rail)
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
        self.spread(chunk, 0, hosts)
        self.collect(chunk, 0, hosts)
        yield

    def _partner(self, digit: Ints, d: int, radix: int, stride: int) -> Ints:
        """The rank whose digit is larger by ``d``, modulo the radix."""
        hosts = self._host + ((digit + d) % radix - digit) * stride
        found: Ints = self._rails.ranks[hosts, self._rail]
        return found


def write_rails(params: Mapping[str, ParamValue], world: int) -> tuple[_Rails, tuple[ClassProgram, ...]]:
    """The programs of all classes."""
    rails = _parsed(params, world)
    found = []
    for rail in range(rails.ranks.shape[1]):
        part = _Class(rails, rail)
        running = [(part.stages if rails.radices else part.ring)(chunk) for chunk in range(len(rails.chunks))]
        begun = len(running) if not rails.radices else 1  # chunks of halvings begin one stage behind the other
        while running:
            running[:begun] = [stages for stages in running[:begun] if next(stages, running) is not running]
            begun = len(running) if not rails.radices else begun + 1
        found.append(part.writer.program())
    return rails, tuple(found)


def rails_template(world: int, params: Mapping[str, ParamValue], name: str = "rails") -> Template:
    """The verified template of these parameters."""
    rails, classes = write_rails(params, world)
    return Template(name, tuple(params.items()), Collective.ALL_REDUCE, rails.slots, 2, classes)


def _write(w: Writer) -> None:
    params = cast("Mapping[str, ParamValue]", w.params)
    _, classes = write_rails(params, w.world)
    for part in classes:
        if w.rank in part.members:
            member = int(np.flatnonzero(part.members == w.rank)[0])
            for step in part.steps:
                w.append(step.of(member))


def _shape(_: Collective, world: int, params: Mapping[str, ParamValue]) -> Shape:
    return Shape(slots=_parsed(params, world).slots, channels=2)


def _variants(_: Collective, groups: Groups) -> tuple[Mapping[str, ParamValue], ...]:
    """A ring and one way of halving, with unequal shares; nothing where hosts differ in size or there is only one."""
    if len(groups) == 1 == len(groups[0]):
        return ({},)
    if len({len(group) for group in groups}) > 1 or len(groups) < 2:
        return ()
    shares = tuple(1 + index % 2 for index in range(len(groups[0])))
    ring: dict[str, ParamValue] = {"groups": groups, "shares": shares}
    return (ring, {**ring, "chunks": (1, 1)}, {**ring, "radices": factors(len(groups)), "chunks": (1, 2)})


def factors(hosts: int) -> tuple[int, ...]:
    """The prime factors of a number, ascending."""
    found, rest, p = [], hosts, 2
    while rest > 1:
        if rest % p == 0:
            found.append(p)
            rest //= p
        else:
            p += 1
    return tuple(found)


RAILS = Algorithm(
    name="rails",
    summary="rings or halvings along the rails of equal hosts, with unequal shares; any number of ranks",
    collectives=frozenset({Collective.ALL_REDUCE}),
    write=_write,
    shape=_shape,
    variants=_variants,
    synthesize=rails_for,
    template=rails_template,
)
