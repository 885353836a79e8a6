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

* ``turned`` = (0, 1, ...): chunks with a 1 go along the rails first, each host taking one part of every rank's whole
  chunk, and then through the host. That takes (H - 1) / H of the chunk from each rank on the rails, but inside the
  hosts an H-th of what the others take: where the inside is the bottleneck, some bytes are better off so.
* ``inner`` = (order of the indices): inside a host partial sums and results go round in this order, each link between
  neighbours once, in place of straight from each rank to each: for sockets with a narrow link between them.

It is written for the classes of ranks with one index in their hosts (template.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

import numpy as np

from hccl_py.core.collector import collector_paused
from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm, Groups, Shape
from hccl_py.scheduler.algorithms.rails_steps import Rails, RailsClass
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.rails_for import rails_for
from hccl_py.scheduler.template import ClassProgram, Template
from hccl_py.scheduler.writer import Writer


def parse_rails(params: Mapping[str, ParamValue], world: int) -> Rails:
    """The parameters, checked. Raises PlanError."""
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
    turned = cast("tuple[int, ...]", params.get("turned", (0,) * len(chunks)))
    inner = cast("tuple[int, ...]", params.get("inner", ()))
    if len(turned) != len(chunks) or (inner and sorted(inner) != list(range(per_host))):
        raise PlanError(f"rails: {len(chunks)} chunks with turned {turned}, {per_host} ranks a host with inner {inner}")
    return Rails(np.array(groups, dtype=np.int64), shares, radices, chunks, turned, inner)


def write_rails(rails: Rails, rail: int) -> ClassProgram:
    """The program of the class of a rail."""
    part = RailsClass(rails, rail)
    running = [part.run(chunk) for chunk in range(len(rails.chunks))]
    begun = len(running) if not rails.radices else 1  # chunks of halvings begin one stage behind the other
    while running:
        running[:begun] = [stages for stages in running[:begun] if next(stages, running) is not running]
        begun = len(running) if not rails.radices else begun + 1
    return part.writer.program()


def rails_template(world: int, params: Mapping[str, ParamValue], name: str = "rails") -> Template:
    """The verified template of these parameters."""
    rails = parse_rails(params, world)
    with collector_paused():
        classes = tuple(write_rails(rails, rail) for rail in range(len(rails.shares)))
    return Template(name, tuple(params.items()), Collective.ALL_REDUCE, rails.slots, 2, classes)


def _write(w: Writer) -> None:
    rails = parse_rails(cast("Mapping[str, ParamValue]", w.params), w.world)
    (host,), (rail,) = np.nonzero(rails.ranks == w.rank)
    for step in write_rails(rails, int(rail)).steps:
        w.append(step.of(int(host)))


def _shape(_: Collective, world: int, params: Mapping[str, ParamValue]) -> Shape:
    return Shape(slots=parse_rails(params, world).slots, channels=2)


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
