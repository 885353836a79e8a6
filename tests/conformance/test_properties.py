"""Random programs: what ranks agree on has the value of a float64 oracle, and where they do not agree all get an error.

A program is a list of calls that all ranks make in the same order, of random collective, type, operator, size, root,
memory, group and form; what is started is waited for in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from conformance_oracle import NUMPY, REDUCTIONS, Expected, bits, inputs
from conformance_ranks import TRANSPORTS, Ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hccl_py import ConfigError, DesyncError, HcclError
from hccl_py.communicator import Communicator
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine
from hccl_py.hosts import PartBootstrap

QUICK = settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
FORMS = ("blocking", "started", "prepared", "in place")
LAYOUTS = ("plain", "shifted", "matrix", "strided", "big-endian", "read-only")
REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)
DONE_NOTHING = ("strided", "big-endian", "read-only")


class Step(NamedTuple):
    """One call of all ranks of a group."""

    collective: Collective
    dtype: DType
    op: ReduceOp
    count: int  # elements of a block
    root: int
    form: str
    layout: str
    part: bool  # by all ranks but the last
    late: int  # started work is waited for in the order of these numbers


def steps(world: int) -> st.SearchStrategy[Step]:
    """Random calls of a world."""

    def made(kind: tuple[DType, ReduceOp], rest: Any) -> Step:
        collective, count, root, form, layout, part, late = rest
        dtype, op = kind
        if collective not in REDUCING:
            op = ReduceOp.SUM
        part = part and world > 2
        return Step(collective, dtype, op, count, root % (world - part), form, layout, part, late)

    count = st.sampled_from([0, 1, 2, 7, 64, 1000, 4099, 30_000])
    rest = st.tuples(
        st.sampled_from(list(Collective)), count, st.integers(0, world - 1), st.sampled_from(FORMS),
        st.sampled_from(["plain"] * 4 + list(LAYOUTS)), st.booleans(), st.integers(0, 9),
    )  # fmt: skip
    return st.builds(made, st.sampled_from(REDUCTIONS), rest)


def laid_out(values: Any, layout: str) -> Any:
    """The values in memory of that kind; what a Communicator refuses, too."""
    if layout == "shifted":
        room = np.zeros(values.size + 3, values.dtype)
        room[3:] = values
        return room[3:]
    if layout == "matrix" and values.size % 2 == 0:
        return values.reshape(2, -1).copy()
    if layout == "strided" and values.size > 1:
        return np.repeat(values, 2)[::2]
    if layout == "big-endian" and values.dtype.itemsize > 1 and values.dtype.kind in "iuf":
        return values.astype(values.dtype.newbyteorder(">"))
    return values.copy()


def refused(step: Step, given: Any, out: Any) -> bool:
    """True if this rank alone can say that these buffers will not do."""
    odd = [a for a in (given, out) if a is not None and not (a.flags.c_contiguous and a.dtype.isnative)]
    return bool(odd) or (step.layout == "read-only" and out is not None)


class Player:
    """Plays the steps of one rank in one group and says what was wrong."""

    def __init__(self, comm: Communicator, seed: int) -> None:
        self.comm, self.seed = comm, seed
        self.wrong: list[str] = []
        self.waiting: list[tuple[Step, Any, Any]] = []

    def play(self, number: int, step: Step) -> None:
        """Make one call; a wrong result is kept, not raised, so that the other ranks do not wait for this one."""
        comm, n, me = self.comm, self.comm.size, self.comm.rank
        blocks = {
            Collective.REDUCE_SCATTER: (n, 1), Collective.ALL_TO_ALL: (n, n), Collective.ALL_GATHER: (1, n),
            Collective.GATHER: (1, n), Collective.SCATTER: (n, 1), Collective.BARRIER: (0, 0),
        }.get(step.collective, (1, 1))  # fmt: skip
        all_given = inputs(step.dtype, step.op, step.count * blocks[0], n, self.seed + number)
        sends = step.collective is not Collective.SCATTER or me == step.root
        receives = step.collective not in (Collective.REDUCE, Collective.GATHER) or me == step.root
        mine = laid_out(all_given[me], step.layout) if sends else None
        out = None
        if receives and step.collective not in (Collective.BROADCAST, Collective.BARRIER):
            out = laid_out(np.zeros(step.count * blocks[1], NUMPY[step.dtype]), step.layout)
        in_place = step.form == "in place" and step.collective in (Collective.ALL_REDUCE, Collective.REDUCE)
        if in_place:
            out = mine if receives else None
        target = mine if step.collective is Collective.BROADCAST and me != step.root else out
        if step.layout == "read-only" and target is not None:
            target.flags.writeable = False
        if any(refused(step, *self._of(step, rank)) for rank in range(n)):
            self._refuse(step, mine, out, in_place)
            return
        name = step.collective.name.lower()
        arguments = self._arguments(step, mine, None if in_place else out)
        label = f"rank {me} of {n}, #{number} {step}"
        if step.form == "started":
            work = getattr(comm, f"i{name}")(*arguments)
            self.waiting.append((step, work, lambda: self._check(label, step, all_given, mine, out)))
            return
        if step.form == "prepared":
            prepared = getattr(comm, f"prepare_{name}")(*arguments)
            prepared.run()
        else:
            getattr(comm, name)(*arguments)
        self._check(label, step, all_given, mine, out)

    def _of(self, step: Step, rank: int) -> tuple[Any, Any]:
        """Buffers like those of another rank, as far as it matters whether they are refused."""
        sends = step.collective is not Collective.SCATTER or rank == step.root
        receives = step.collective not in (Collective.REDUCE, Collective.GATHER) or rank == step.root
        sample = laid_out(np.zeros(max(step.count, 2), NUMPY[step.dtype]), step.layout)
        if step.collective is Collective.BARRIER:
            return None, None
        if step.collective is Collective.BROADCAST:
            return sample, sample if rank != step.root else None
        return (sample if sends else None), (sample if receives else None)

    def _arguments(self, step: Step, mine: Any, out: Any) -> tuple[Any, ...]:
        if step.collective is Collective.BARRIER:
            return ()
        if step.collective is Collective.BROADCAST:
            return mine, step.root
        op = (step.op,) if step.collective in REDUCING else ()
        return (mine, out, *op, *((step.root,) if step.collective.rooted else ()))

    def _refuse(self, step: Step, mine: Any, out: Any, in_place: bool) -> None:
        """One rank's buffers will not do (alike on all here, but for the root): nobody calls, who can tell is told."""
        if not refused(step, mine, out if step.collective is not Collective.BROADCAST else None):
            return
        before = [None if a is None else a.copy() for a in (mine, out)]
        try:
            getattr(self.comm, step.collective.name.lower())(*self._arguments(step, mine, None if in_place else out))
            self.wrong.append(f"{step} was not refused")
        except ConfigError:
            pass
        for was, now in zip(before, (mine, out), strict=True):
            if was is not None and not np.array_equal(was.view("u1"), now.copy().view("u1")):
                self.wrong.append(f"{step}: refused, but something was written")

    def _check(self, label: str, step: Step, given: list[Any], mine: Any, out: Any) -> None:
        n, me, c, root = self.comm.size, self.comm.rank, step.count, step.root
        if step.collective is Collective.BARRIER:
            return
        if step.collective is Collective.BROADCAST:
            got, want = mine, given[root]
        else:
            if out is None:
                return
            got, want = out, None
        flat = np.ascontiguousarray(got).reshape(-1)
        if step.collective in REDUCING:
            block = slice(me * c, me * c + c) if step.collective is Collective.REDUCE_SCATTER else slice(0, c)
            found = Expected(step.dtype, step.op, [one[block] for one in given]).check(flat, False) if c else ""
            if found:
                self.wrong.append(f"{label}: {found}")
            return
        if step.collective in (Collective.ALL_GATHER, Collective.GATHER):
            want = np.concatenate(given)
        elif step.collective is Collective.ALL_TO_ALL:
            want = np.concatenate([given[rank][me * c : me * c + c] for rank in range(n)])
        elif step.collective is Collective.SCATTER:
            want = given[root][me * c : me * c + c]
        if not np.array_equal(bits(flat), bits(want)):
            self.wrong.append(f"{label}: moved wrongly")

    def end(self) -> None:
        """Wait for what was started, in another order."""
        for _, work, check in sorted(self.waiting, key=lambda item: item[0].late):
            work.wait()
            check()
        self.waiting.clear()


class Worlds:
    """Groups by transport and size, each with a part of all ranks but the last; made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], tuple[Ranks, list[Communicator | None]]] = {}

    def get(self, transport: str, world: int) -> tuple[Ranks, list[Communicator | None]]:
        """The ranks, and the part's communicator of each (None: it is not in it)."""
        if (transport, world) not in self._made:
            ranks = Ranks(transport, world)
            members = list(range(world - 1))

            def part(comm: Communicator) -> Communicator | None:
                return (
                    Communicator(Engine(PartBootstrap(comm, members), env=comm.engine.env))
                    if comm.rank in members
                    else None
                )

            self._made[transport, world] = ranks, ranks.run(part)
        return self._made[transport, world]

    def close(self) -> None:
        """End all."""
        for ranks, parts in self._made.values():
            for part in parts:
                if part is not None:
                    part.close()
            ranks.close()


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


@st.composite
def programs(draw: Any) -> tuple[int, int, list[Step]]:
    """World size, seed of the data, and the calls."""
    world = draw(st.integers(2, 4))
    return world, draw(st.integers(0, 1000)), draw(st.lists(steps(world), min_size=1, max_size=8))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_programs_agree_with_the_oracle(worlds: Worlds, transport: str) -> None:
    @QUICK
    @given(programs())
    def check(program: tuple[int, int, list[Step]]) -> None:
        world, seed, calls = program
        ranks, parts = worlds.get(transport, world)

        def play(comm: Communicator) -> list[str]:
            part = parts[comm.rank]
            players = [Player(comm, seed), *([] if part is None else [Player(part, seed)])]
            for number, step in enumerate(calls):
                if not step.part:
                    players[0].play(number, step)
                elif part is not None:
                    players[1].play(number, step)
            for player in players:
                player.end()
            return [wrong for player in players for wrong in player.wrong]

        for wrong in ranks.run(play):
            assert not wrong, "\n".join(wrong)

    check()


# Ranks that disagree


class Call(NamedTuple):
    """A call in words that can differ."""

    collective: Collective
    dtype: DType
    op: ReduceOp
    count: int
    root: int

    def make(self, comm: Communicator) -> None:
        """Make it on fresh memory."""
        n, kind, name = comm.size, NUMPY[self.dtype], self.collective.name.lower()
        many = {
            "reduce_scatter": (n, 1),
            "all_to_all": (n, n),
            "all_gather": (1, n),
            "gather": (1, n),
            "scatter": (n, 1),
        }
        ins, outs = many.get(name, (1, 1))
        a, b = np.ones(self.count * ins, kind), np.zeros(self.count * outs, kind)
        op = (self.op,) if self.collective in REDUCING else ()
        root = (self.root,) if self.collective.rooted else ()
        if self.collective is Collective.BARRIER:
            comm.barrier()
        elif self.collective is Collective.BROADCAST:
            comm.broadcast(a, *root)
        else:
            getattr(comm, name)(a, b, *op, *root)


@st.composite
def mismatches(draw: Any, world: int) -> tuple[str, int, list[Call], list[Call]]:
    """What differs, the rank that is wrong, its calls, and those of the others."""
    kinds = [kind for kind in REDUCTIONS if kind[0] is not DType.BOOL]

    def call() -> Call:
        dtype, op = draw(st.sampled_from(kinds))
        collective = draw(st.sampled_from(list(Collective)))
        count = draw(st.sampled_from([1, 24, 3000, 60_000]))
        return Call(
            collective, dtype, op if collective in REDUCING else ReduceOp.SUM, count, draw(st.integers(0, world - 1))
        )

    right = [call() for _ in range(draw(st.integers(1, 3)))]
    at = draw(st.integers(0, len(right) - 1))
    what = draw(st.sampled_from(["op", "dtype", "count", "root", "collective", "order", "missing"]))
    base = right[at]
    if what == "op":
        base = base._replace(collective=draw(st.sampled_from(REDUCING)), op=ReduceOp.SUM)
        wrong = [base._replace(op=ReduceOp.MAX)]
    elif what == "dtype":
        base = base._replace(collective=Collective.ALL_GATHER, dtype=DType.FLOAT32)
        wrong = [base._replace(dtype=draw(st.sampled_from([DType.INT32, DType.FLOAT64, DType.BFLOAT16])))]
    elif what == "count":
        collective = base.collective if base.collective is not Collective.BARRIER else Collective.ALL_REDUCE
        base = base._replace(collective=collective)
        wrong = [base._replace(count=base.count + draw(st.sampled_from([-1, 1, 1000])))]
    elif what == "root":
        base = base._replace(collective=Collective.BROADCAST, root=0)
        wrong = [base._replace(root=draw(st.integers(1, world - 1)))]
    elif what == "collective":
        other = draw(st.sampled_from([one for one in Collective if one is not base.collective]))
        wrong = [base._replace(collective=other, op=ReduceOp.SUM)]
    elif what == "order":
        second = base._replace(collective=Collective.ALL_REDUCE, count=base.count + 5, op=ReduceOp.SUM)
        first = base._replace(collective=Collective.ALL_REDUCE, op=ReduceOp.SUM)
        right[at : at + 1] = [first, second]
        bad = [*right[:at], second, first, *right[at + 2 :]]
        return what, draw(st.integers(0, world - 1)), bad, right
    else:  # not a barrier: the one at the end would take its place
        base = base._replace(collective=Collective.REDUCE) if base.collective is Collective.BARRIER else base
        wrong = []
    right[at] = base
    return what, draw(st.integers(0, world - 1)), [*right[:at], *wrong, *right[at + 1 :]], right


def until_trouble(comm: Communicator, calls: list[Call]) -> HcclError | None:
    """Make the calls and a barrier (which tells those that were done before they could know); the first error."""
    try:
        for call in calls:
            call.make(comm)
        comm.barrier()
    except HcclError as error:
        return error
    return None


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("transport", "strict"), [("loopback", False), ("shm", False), ("tcp", False), ("tcp", True)])
def test_random_mismatches_raise_on_all_ranks_and_resync_goes_on(transport: str, strict: bool, world: int) -> None:
    with Ranks(transport, world, {"strict": strict, "timeout_s": 20.0}) as ranks:

        def agree(comm: Communicator) -> float:
            data = np.full(1000, comm.rank + 1.0)
            comm.all_reduce(data)
            comm.iall_reduce(data, op=ReduceOp.MAX).wait()
            return float(data[-1])

        @settings(QUICK, max_examples=12)
        @given(mismatches(world))
        def check(drawn: tuple[str, int, list[Call], list[Call]]) -> None:
            what, culprit, bad, right = drawn

            def disagree(comm: Communicator) -> tuple[HcclError | None, list[str]]:
                error = until_trouble(comm, bad if comm.rank == culprit else right)
                return error, comm.resync()

            for rank, (error, places) in enumerate(ranks.run(disagree)):
                assert isinstance(error, DesyncError), f"{what}, rank {rank} of {world}: {error!r}"
                assert f"{error}".startswith(f"rank {rank}: ") and "test_properties.py:" in f"{error}"
                assert len(places) == world and all("test_properties.py:" in place for place in places)
            assert ranks.run(agree) == [world * (world + 1) / 2] * world

        check()
