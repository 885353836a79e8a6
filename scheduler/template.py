"""Template: a plan written for classes of ranks, from which one rank's program is made when it is asked for.

The ranks of a class do the same steps with operands in other places and with other peers: where a program has a number,
a template has an array with one entry for each member. So 1,024 ranks cost no more than their classes, and that all
members do the same holds by construction. `verify_template` (template_verify.py) is its verifier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.core.collector import collector_paused
from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.layout import Layout
from hccl_py.scheduler.plan import Params, short_name
from hccl_py.scheduler.program import Operand, Program, Step, Where
from hccl_py.scheduler.simulate_classes import RankClasses
from hccl_py.scheduler.template_table import ClassTable

Ints = npt.NDArray[np.int64]


class ClassOperand(NamedTuple):
    """An `Operand` of every member: ``slot`` and ``peer`` have one entry for each."""

    where: Where
    raw: bool
    channel: int
    peer: Ints
    slot: Ints
    span: int

    def of(self, member: int) -> Operand:
        """That of one member."""
        if self.where is Where.PEER:
            return Operand(self.where, self.raw, self.channel, int(self.peer[member]), 0, self.span)
        return Operand(self.where, self.raw, 0, 0, int(self.slot[member]), self.span)


class ClassStep(NamedTuple):
    """A `Step` of every member."""

    sources: tuple[ClassOperand, ...]
    targets: tuple[ClassOperand, ...]

    def of(self, member: int) -> Step:
        """That of one member."""
        return Step(tuple(o.of(member) for o in self.sources), tuple(o.of(member) for o in self.targets))


@dataclass(frozen=True, eq=False)
class ClassProgram:
    """The steps of a class; ``members[i]`` is the rank that entry i of every array belongs to."""

    members: Ints
    steps: tuple[ClassStep, ...]


class ClassWriter:
    """Collects the steps of a class, in the words of `Writer`. Places are numbers or arrays over the members."""

    def __init__(self, members: Ints) -> None:
        self.members = members
        self._steps: list[ClassStep] = []
        self._known: dict[int, Ints] = {}

    def input(self, k: Ints | int, span: int, raw: bool = True) -> ClassOperand:
        """``span`` slots of INPUT from slot ``k`` on."""
        return ClassOperand(Where.INPUT, raw, 0, self._all(0), self._all(k), span)

    def output(self, k: Ints | int, span: int, raw: bool = False) -> ClassOperand:
        """``span`` slots of OUTPUT from slot ``k`` on."""
        return ClassOperand(Where.OUTPUT, raw, 0, self._all(0), self._all(k), span)

    def peer(self, ranks: Ints | int, span: int, raw: bool = True, channel: int = 0) -> ClassOperand:
        """A message to or from ``ranks``, one for each member."""
        return ClassOperand(Where.PEER, raw, channel, self._all(ranks), self._all(0), span)

    def fold(self, sources: Iterable[ClassOperand], targets: Iterable[ClassOperand]) -> None:
        """Left fold of ``sources``, rounded once, into every target."""
        self._steps.append(ClassStep(tuple(sources), tuple(o._replace(raw=False) for o in targets)))

    def program(self) -> ClassProgram:
        """What was written."""
        return ClassProgram(self.members, tuple(self._steps))

    def _all(self, value: Ints | int) -> Ints:
        if isinstance(value, np.ndarray):
            return value
        if value not in self._known:
            self._known[value] = np.full(self.members.shape, value, dtype=np.int64)
        return self._known[value]


@dataclass(frozen=True, eq=False)
class Template:
    """A plan by classes; verified by its constructor, as a `Plan` is, which it can stand for where one rank's program,
    name and digest are all that is asked for.

    Args:
        algorithm, params: who wrote it and how.
        collective: all_reduce: one block in, one out.
        slots_per_block, channels: as in `Program`.
        classes: every rank is a member of one.

    Attributes:
        order, uneven, digest: as those of `Plan`; the digest is that of the classes, not of all programs.

    Raises:
        PlanError: the programs do not compute the collective.
    """

    algorithm: str
    params: Params
    collective: Collective
    slots_per_block: int
    channels: int
    classes: tuple[ClassProgram, ...] = field(repr=False)
    order: Order = field(init=False)
    uneven: bool = field(init=False, default=True)
    digest: bytes = field(init=False)
    root: int = field(init=False, default=0)
    one_round: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        from hccl_py.scheduler.template_verify import verify_template  # it needs this module's types

        if self.collective is not Collective.ALL_REDUCE:
            raise PlanError(f"templates are for all_reduce, not {self.collective.name.lower()}")
        object.__setattr__(self, "params", tuple(sorted(self.params)))
        try:
            with collector_paused():
                verify_template(self)
        except PlanError as error:
            raise PlanError(f"template {self.algorithm!r} for {self.collective.name}: {error}") from None
        object.__setattr__(self, "order", Order.FREE)
        object.__setattr__(self, "digest", self._digest())

    def _digest(self) -> bytes:
        head = [self.algorithm, self.params, self.collective, self.slots_per_block, self.channels]
        found = hashlib.sha256(b"hccl_py template 2\n" + json.dumps(head, separators=(",", ":")).encode())
        for part, table in zip(self.classes, self.tables, strict=True):
            columns = (table.step, table.side, table.where, table.raw, table.channel, table.span)
            for column in (part.members, *columns, table.place):
                found.update(f"{column.shape}".encode() + np.ascontiguousarray(column).tobytes())
        return found.digest()

    @cached_property
    def tables(self) -> tuple[ClassTable, ...]:
        """The classes by columns."""
        return tuple(map(ClassTable.of, self.classes))

    @cached_property
    def firsts(self) -> tuple[Program, ...]:
        """As `bare_program`, of the first member of each class."""
        return tuple(self._written(number, 0) for number in range(len(self.classes)))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return sum(len(part.members) for part in self.classes)

    @property
    def name(self) -> str:
        """As `Plan.name`."""
        return short_name(self.algorithm, self.params)

    @cached_property
    def place(self) -> tuple[Ints, Ints]:
        """Of each rank: number of its class, and its place among the members."""
        of, member = np.empty(self.world, dtype=np.int64), np.empty(self.world, dtype=np.int64)
        for number, part in enumerate(self.classes):
            of[part.members] = number
            member[part.members] = np.arange(len(part.members))
        return of, member

    def program(self, rank: int) -> Program:
        """The program of one rank, with order and digest as the engine needs them."""
        if not 0 <= rank < self.world:
            raise PlanError(f"plan {self.algorithm!r} is for ranks 0 to {self.world - 1}, there is no rank {rank}")
        return replace(self.bare_program(rank), order=self.order, digest=int.from_bytes(self.digest[:8], "little"))

    def bare_program(self, rank: int) -> Program:
        """As `program`, before anything is known of order and digest."""
        number, member = int(self.place[0][rank]), int(self.place[1][rank])
        return self._written(number, member) if member else self.firsts[number]

    def _written(self, number: int, member: int) -> Program:
        rank = int(self.classes[number].members[member])
        layout = Layout(self.collective, self.world, 0, rank, self.slots_per_block)
        steps = tuple(step.of(member) for step in self.classes[number].steps)
        return Program(
            self.collective, self.world, rank, 0, self.slots_per_block, layout.input_blocks, layout.output_blocks, (),
            steps, self.channels,
        )  # fmt: skip

    @cached_property
    def rank_classes(self) -> RankClasses:
        """The classes as the simulator wants them."""
        peers: list[tuple[int, ...]] = [()] * self.world
        for part in self.classes:
            columns = _distinct(o.peer for step in part.steps for o in (*step.sources, *step.targets) if _is_peer(o))
            table = np.stack(columns, axis=1) if columns else np.empty((len(part.members), 0), dtype=np.int64)
            for rank, row in zip(part.members.tolist(), table.tolist(), strict=True):
                peers[rank] = tuple(row)
        first = tuple(int(part.members[0]) for part in self.classes)
        return RankClasses(tuple(self.place[0].tolist()), first, tuple(peers))


def _is_peer(operand: ClassOperand) -> bool:
    return operand.where is Where.PEER


def _distinct(columns: Iterable[Ints]) -> Sequence[Ints]:
    found: dict[bytes, Ints] = {}
    for column in columns:
        found.setdefault(column.tobytes(), column)
    return list(found.values())
