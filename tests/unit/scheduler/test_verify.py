"""The verifier rejects what is wrong, and says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from scheduler_reference import Stuck, check

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.program import Operand, Program, ScratchSize, Step, Where
from hccl_py.scheduler.verify import MAX_STEPS, MAX_WORLD, verify
from hccl_py.scheduler.writer import Writer

C = Collective


def write(
    collective: Collective, world: int, body: Callable[[Writer], None], slots: int = 1, channels: int = 1, **more: bool
) -> list[Program]:
    """The programs that ``body`` writes, unverified."""
    programs = []
    for rank in range(world):
        writer = Writer(collective, world, 0, rank, slots, channels=channels, **more)
        body(writer)
        programs.append(writer.program())
    return programs


def swapped(programs: list[Program], rank: int, step: int, **changes: object) -> list[Program]:
    """The programs with the first source of one step changed."""
    p = programs[rank]
    old = p.steps[step]
    new = Step((old.sources[0]._replace(**changes), *old.sources[1:]), old.targets)
    steps = (*p.steps[:step], new, *p.steps[step + 1 :])
    return [*programs[:rank], replace(p, steps=steps), *programs[rank + 1 :]]


def other(w: Writer) -> int:
    return 1 - w.rank


# ---- what is computed


def test_a_missing_contribution() -> None:
    programs = write(C.ALL_REDUCE, 2, lambda w: w.copy(w.input(), w.output()))
    with pytest.raises(PlanError, match=r"rank 0: OUTPUT\[0\] lacks the contribution of rank 1: r0"):
        verify(programs)


def test_a_contribution_that_comes_twice() -> None:
    def body(w: Writer) -> None:
        w.send(w.input(), w.peer(other(w)))
        w.reduce([w.input(), w.peer(other(w)), w.input()], w.output())

    with pytest.raises(PlanError, match=r"rank 0, step 1 .*adds the contribution of rank 0 twice"):
        verify(write(C.ALL_REDUCE, 2, body))


def test_a_contribution_too_many() -> None:
    def body(w: Writer) -> None:
        if w.rank == 0:
            w.send(w.input(), w.output(), w.peer(1))
        else:
            w.recv(w.peer(0), w.output())

    good = write(C.BROADCAST, 2, body)
    assert verify(good).order is Order.CANONICAL

    def gather(w: Writer) -> None:
        if w.rank == 0:
            w.copy(w.input(), w.output(0))
            w.copy(w.input(), w.output(1))

    with pytest.raises(PlanError, match=r"OUTPUT\[1\] lacks the contribution of rank 1"):
        verify(write(C.GATHER, 2, gather))


@pytest.mark.parametrize("collective", [C.REDUCE_SCATTER, C.ALL_TO_ALL], ids=lambda c: c.name)
def test_the_wrong_block(collective: Collective) -> None:
    def reduce_scatter(w: Writer) -> None:
        w.send(w.input(w.rank), w.peer(other(w)))
        w.reduce([w.input(other(w)), w.peer(other(w))], w.output())

    def all_to_all(w: Writer) -> None:
        w.copy(w.input(w.rank), w.output(w.rank))
        w.send(w.input(w.rank), w.peer(other(w)))
        w.recv(w.peer(other(w)), w.output(other(w)))

    body = reduce_scatter if collective is C.REDUCE_SCATTER else all_to_all
    with pytest.raises(PlanError, match="wrong block"):
        verify(write(collective, 2, body))


def test_an_output_that_is_never_written() -> None:
    def body(w: Writer) -> None:
        w.copy(w.input(), w.output(w.rank))

    with pytest.raises(PlanError, match=r"rank 0: OUTPUT\[1\] is never written"):
        verify(write(C.ALL_GATHER, 2, body))


def test_reading_before_writing() -> None:
    def body(w: Writer) -> None:
        w.send(w.output(), w.peer(other(w)))
        w.recv(w.peer(other(w), raw=False), w.output())

    with pytest.raises(
        PlanError, match=r"step 0 \(send OUTPUT\[0\] -> rank 1\): reads OUTPUT\[0\] before anything was"
    ):
        verify(write(C.ALL_REDUCE, 2, body))


def test_ranks_that_would_hold_different_bits() -> None:
    def body(w: Writer) -> None:
        others = [(w.rank + d) % 3 for d in (1, 2)]
        w.send(w.input(), *map(w.peer, others))
        w.fold([w.input(), *map(w.peer, others)], [w.output()])

    with pytest.raises(PlanError, match=r"rank 1: .*added up as .r1 . r2 . r0., at rank 0 as .*different bits"):
        verify(write(C.ALL_REDUCE, 3, body))


def test_order_is_found_out() -> None:
    def body(w: Writer, backwards: bool) -> None:
        w.send(w.input(), w.peer(other(w)))
        sources = [w.input(), w.peer(other(w))]
        w.fold(sources if (w.rank == 0) is not backwards else sources[::-1], [w.output()])

    assert verify(write(C.ALL_REDUCE, 2, lambda w: body(w, False))).order is Order.CANONICAL
    assert verify(write(C.ALL_REDUCE, 2, lambda w: body(w, True))).order is Order.FREE


def test_a_fold_of_rounded_sums_is_free() -> None:
    def body(w: Writer) -> None:  # ((r0 + r1) + r2), rounded in between
        if w.rank == 2:
            w.fold([w.peer(1, raw=False), w.input()], [w.output(), w.peer(0), w.peer(1)])
        elif w.rank == 1:
            w.fold([w.peer(0), w.input()], [w.peer(2)])
        else:
            w.send(w.input(), w.peer(1))
        if w.rank < 2:
            w.recv(w.peer(2, raw=False), w.output())

    assert verify(write(C.ALL_REDUCE, 3, body)).order is Order.FREE


# ---- raw flags


@pytest.mark.parametrize("source", [0, 1])
def test_a_raw_flag_that_is_wrong(source: int) -> None:
    good = list(DIRECT.build(C.ALL_REDUCE, 2).programs)
    p = good[1]
    fold = p.steps[1]
    sources = tuple(o._replace(raw=not o.raw) if i == source else o for i, o in enumerate(fold.sources))
    with pytest.raises(PlanError, match=r"rank 1, step 1 .*raw flag of .* is False, but it holds a raw contribution"):
        verify([good[0], replace(p, steps=(p.steps[0], Step(sources, fold.targets)))])


def test_a_sum_that_is_called_raw() -> None:
    good = list(RING.build(C.ALL_REDUCE, 3).programs)
    number = next(i for i, s in enumerate(good[0].steps) if not s.sources[0].raw)
    with pytest.raises(PlanError, match=r"raw flag of .* is True, but it holds a sum"):
        verify(swapped(good, 0, number, raw=True))


# ---- messages


def test_a_send_that_nobody_receives() -> None:
    def body(w: Writer) -> None:
        w.copy(w.input(), w.output(w.rank))
        if w.rank == 0:
            w.send(w.input(), w.peer(1))

    with pytest.raises(PlanError, match=r"rank 0, step 1 \(send INPUT\[0\] -> rank 1\): rank 1 never receives this"):
        verify(write(C.ALL_GATHER, 2, body))


def test_a_receive_that_nobody_sends() -> None:
    def body(w: Writer) -> None:
        if w.rank == 1:
            w.recv(w.peer(0), w.output())
        else:
            w.copy(w.input(), w.output())

    with pytest.raises(
        PlanError, match=r"rank 1, step 0 .*receives message number 1 on channel 0 from rank 0, which sends 0"
    ):
        verify(write(C.BROADCAST, 2, body))


def test_a_message_on_another_channel_does_not_match() -> None:
    def body(w: Writer) -> None:
        if w.rank == 0:
            w.send(w.input(), w.output(), w.peer(1, channel=1))
        else:
            w.recv(w.peer(0, channel=0), w.output())

    with pytest.raises(PlanError, match="receives message number 1 on channel 0"):
        verify(write(C.BROADCAST, 2, body, channels=2))


def test_a_message_of_another_length() -> None:
    def body(w: Writer) -> None:
        if w.rank == 0:
            w.send(w.input(span=2), w.output(span=2), w.peer(1))
        else:
            w.recv(w.peer(0), w.output(k=0))

    with pytest.raises(PlanError, match=r"rank 1, step 0 .*receives slots that are number 0 .*sends number 0, 1"):
        verify(write(C.BROADCAST, 2, body, slots=2))


def test_a_message_of_another_slot_size() -> None:
    def body(w: Writer) -> None:  # slots 0 and 1 differ in length where the block is not divisible
        if w.rank == 0:
            w.copy(w.input(span=2), w.output(span=2))
            for k in (0, 1):
                w.send(w.input(k=k), w.peer(1))
        else:
            for k in (1, 0):
                w.recv(w.peer(0), w.output(k=k))

    with pytest.raises(PlanError, match=r"receives slots that are number 1 .* sends number 0"):
        verify(write(C.BROADCAST, 2, body, slots=2))


def test_uneven_is_found_out() -> None:
    def body(w: Writer) -> None:  # through scratch as large as rank 0's block
        if w.rank == 0:
            passing = w.scratch(w.input())
            w.recv(w.peer(1), passing)
            w.copy(passing, w.output(1))
            w.send(w.input(), w.output(0), w.peer(1))
        else:
            w.send(w.input(), w.output(1), w.peer(0))
            w.recv(w.peer(0), w.output(0))

    assert not verify(write(C.ALL_GATHER, 2, body)).uneven
    assert verify(DIRECT.build(C.ALL_GATHER, 2).programs).uneven


# ---- coming to an end


def test_a_deadlock_names_who_waits_for_whom() -> None:
    def body(w: Writer) -> None:
        w.recv(w.peer(other(w)), w.output(other(w)))
        w.send(w.output(other(w)), w.peer(other(w)))
        w.copy(w.input(), w.output(w.rank))

    with pytest.raises(PlanError, match=r"deadlock: rank 0, step 0 .* waits for data from rank 1, step 1 .* waits for"):
        verify(write(C.ALL_GATHER, 2, body))


def _ring_in_one_step(w: Writer) -> None:
    """Receiving and sending on in one step: works for messages that a channel holds, and for no others."""
    n, p = w.world, w.rank
    w.send(w.input(), w.output(p), w.peer((p + 1) % n))
    for hop in range(1, n):
        onward = [w.peer((p + 1) % n)] if hop < n - 1 else []
        w.recv(w.peer((p - 1) % n), w.output((p - hop) % n), *onward)


def test_a_deadlock_of_full_channels() -> None:
    programs = write(C.ALL_GATHER, 4, _ring_in_one_step)
    with pytest.raises(PlanError, match=r"deadlock: .* waits for room at"):
        verify(programs)
    check(programs, count=2, in_place=False, segment=100)
    with pytest.raises(Stuck):
        check(programs, count=100, in_place=False, segment=2)


@pytest.mark.parametrize(("pairs", "right"), [(32, True), (64, False)])
def test_a_deadlock_by_the_window(pairs: int, right: bool) -> None:
    def body(w: Writer) -> None:  # all sends before all receives; twice as many steps as pairs
        for k in range(pairs):
            w.send(w.input(k=k), w.peer(other(w)))
        for k in range(pairs):
            w.fold([w.input(k=k), w.peer(other(w))][:: 1 - 2 * w.rank], [w.output(k=k)])

    programs = write(C.ALL_REDUCE, 2, body, slots=pairs)
    if right:
        verify(programs)
        return
    with pytest.raises(PlanError, match=r"deadlock: .* waits for a place in the window of 64 steps"):
        verify(programs)


# ---- in place


def test_in_place_input_that_is_overwritten() -> None:
    def body(w: Writer) -> None:  # by distance: block q is overwritten before it was sent
        w.copy(w.input(w.rank), w.output(w.rank))
        for d in range(1, w.world):
            to, back = (w.rank + d) % w.world, (w.rank - d) % w.world
            w.send(w.input(to), w.peer(to))
            w.recv(w.peer(back), w.output(back))

    programs = write(C.ALL_TO_ALL, 4, body)
    check(programs, count=3, in_place=False)
    with pytest.raises(AssertionError):
        check(programs, count=3, in_place=True)
    with pytest.raises(PlanError, match=r"in place, INPUT\[\d\] is overwritten before by rank \d, step \d \(recv"):
        verify(programs)


def test_in_place_ranges_that_are_shifted() -> None:
    def body(w: Writer) -> None:
        w.copy(w.input(0, span=2), w.output(1, span=2))

    with pytest.raises(PlanError, match=r"INPUT\[0..1\] and OUTPUT\[1..2\] overlap without being the same"):
        verify(write(C.ALL_TO_ALL, 3, body))


def test_overlap_in_scratch() -> None:
    def body(w: Writer) -> None:
        held = w.scratch(w.input(), w.input(), w.input())
        w.copy(w.input(), w.part(held, 0))
        w.copy(w.part(held, 0, 2), w.part(held, 1, 2))

    with pytest.raises(PlanError, match=r"SCRATCH\[0..1\] and SCRATCH\[1..2\] overlap without being the same"):
        verify(write(C.ALL_REDUCE, 1, body))


# ---- one step, one program


def operand(where: Where, slot: int = 0, span: int = 1, peer: int = 0, channel: int = 0) -> Operand:
    return Operand(where, where is not Where.SCRATCH, channel, peer, slot, span)


IN, OUT, PEER = operand(Where.INPUT), operand(Where.OUTPUT)._replace(raw=False), operand(Where.PEER, peer=1)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step((), (OUT,)), "needs a source and a target"),
        (Step((IN,), ()), "needs a source and a target"),
        (Step((PEER,), (PEER._replace(channel=1),)), "no local operand"),
        (Step((IN,), (OUT, operand(Where.SCRATCH))), "more than one local target"),
        (Step((IN,), (IN,)), "writes to INPUT"),
        (Step((IN, PEER), (PEER, operand(Where.PEER, peer=2))), "needs a local target to stand in"),
        (Step((IN,), (operand(Where.OUTPUT, slot=2),)), r"OUTPUT\[2\] is out of range: OUTPUT has 2 slots"),
        (Step((operand(Where.INPUT, slot=1, span=2),), (OUT,)), r"INPUT\[1..2\] is out of range"),
        (Step((operand(Where.SCRATCH, slot=9),), (OUT,)), "out of range: SCRATCH has 1 slots"),
        (Step((IN._replace(span=0),), (OUT,)), "0 slots"),
        (Step((IN._replace(slot=-1),), (OUT,)), "from slot -1"),
        (Step((operand(Where.PEER, peer=0),), (OUT,)), "rank 0 is not another rank"),
        (Step((operand(Where.PEER, peer=3),), (OUT,)), "rank 3 is not another rank"),
        (Step((operand(Where.PEER, peer=1, channel=2),), (OUT,)), "channel 2 of 2"),
        (Step((IN,), (OUT, operand(Where.PEER, peer=1, span=2))), "different numbers of slots"),
        (Step((IN,), (operand(Where.OUTPUT, slot=1),)), "operands of different sizes"),
        (Step((PEER, PEER), (OUT,)), "two messages of one channel in one step"),
    ],
)
def test_a_step_that_cannot_be(step: Step, why: str) -> None:
    program = Program(C.ALL_REDUCE, 3, 0, 0, 2, 1, 1, (ScratchSize(Where.INPUT, 0),), (step,), channels=2)
    rest = [replace(program, rank=rank, steps=()) for rank in (1, 2)]
    with pytest.raises(PlanError, match=f"rank 0, step 0 .*{why}"):
        verify([program, *rest])


def test_a_fold_where_nothing_is_reduced() -> None:
    def body(w: Writer) -> None:
        w.reduce([w.input(), w.input()], w.output())

    with pytest.raises(PlanError, match="a fold, but BROADCAST does not reduce"):
        verify(write(C.BROADCAST, 1, body))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"world": 3}, "says it is of rank 1 of 3"),
        ({"rank": 0}, "says it is of rank 0 of 2"),
        ({"root": 1}, "rank 1: root is 1, at rank 0 it is 0"),
        ({"slots_per_block": 2}, "slots_per_block is 2"),
        ({"channels": 2}, "channels is 2"),
        ({"one_round": False}, "one_round is False"),
        ({"shared_fold": True}, "shared_fold is True"),
        ({"collective": C.REDUCE}, "collective is "),
        ({"input_blocks": 2}, "2 blocks in, 1 out; ALL_REDUCE has 1 and 1"),
        ({"scratch": (ScratchSize(Where.INPUT, 1),)}, r"as large as INPUT\[1\]: there is no such slot"),
        ({"scratch": (ScratchSize(Where.SCRATCH, 0),)}, "there is no such slot"),
    ],
)
def test_programs_that_do_not_agree(changes: dict[str, object], why: str) -> None:
    first, second = DIRECT.build(C.ALL_REDUCE, 2).programs
    with pytest.raises(PlanError, match=why):
        verify([first, replace(second, **changes)])


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"slots_per_block": 0}, "at least one"), ({"channels": 0}, "at least one"), ({"root": 2}, "no such rank")],
)
def test_headers_that_cannot_be(changes: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        verify([replace(p, **changes) for p in DIRECT.build(C.ALL_REDUCE, 2).programs])


def test_worlds_that_are_not_verified() -> None:
    with pytest.raises(PlanError, match="needs at least one rank"):
        verify([])
    many = MAX_STEPS // MAX_WORLD
    programs = write(C.BARRIER, MAX_WORLD + 1, lambda w: [w.copy(w.input(), w.output()) for _ in range(many)])
    with pytest.raises(PlanError, match="65 ranks with 20280 steps: above 64 ranks, plans are verified rank by rank"):
        verify(programs)


# ---- one-round plans


def _broadcast_in_two_hops(w: Writer) -> None:
    if w.rank == 0:
        w.send(w.input(), w.output(), w.peer(1))
    elif w.rank == 1:
        w.recv(w.peer(0), w.output())
        w.send(w.output(), w.peer(2))
    else:
        w.recv(w.peer(1), w.output())


def test_one_round_is_not_believed() -> None:
    verify(write(C.BROADCAST, 3, _broadcast_in_two_hops))
    with pytest.raises(
        PlanError, match=r"rank 1, step 1 .*not a one-round plan: it sends something else than its INPUT"
    ):
        verify(write(C.BROADCAST, 3, _broadcast_in_two_hops, one_round=True))


def _gather_both(w: Writer) -> None:
    w.send(w.input(), w.output(w.rank), w.peer(other(w)))
    w.recv(w.peer(other(w)), w.output(other(w)))


def test_one_round_names_the_right_slot() -> None:
    def body(w: Writer) -> None:
        w.copy(w.input(w.rank), w.output(w.rank))
        w.send(w.input(other(w)), w.peer(other(w)))
        w.recv(w.peer(other(w), slot=other(w)), w.output(other(w)))  # the peer's INPUT slot for us is w.rank

    with pytest.raises(
        PlanError, match=r"not a one-round plan: it names INPUT\[1\] of the peer, which sends INPUT\[0\]"
    ):
        verify(write(C.ALL_TO_ALL, 2, body, one_round=True))


def test_a_shared_fold_is_not_believed() -> None:
    ring = RING.build(C.ALL_REDUCE, 3).programs
    with pytest.raises(PlanError, match="not for a shared fold: it is no all_reduce in canonical order"):
        verify([replace(program, shared_fold=True) for program in ring])
    gather = write(C.ALL_GATHER, 2, _gather_both)
    verify(gather)
    with pytest.raises(PlanError, match="not for a shared fold"):
        verify([replace(program, shared_fold=True) for program in gather])


# ---- barrier


def test_a_barrier_that_a_rank_leaves_too_early() -> None:
    def body(w: Writer) -> None:  # one token around a chain: only the last rank has heard of all
        if w.rank:
            w.recv(w.peer(w.rank - 1), w.output())
        if w.rank < 2:
            w.send(w.input(), w.peer(w.rank + 1))

    with pytest.raises(PlanError, match="rank 0 leaves the barrier without having heard of rank 2"):
        verify(write(C.BARRIER, 3, body))


def test_a_barrier_whose_empty_tokens_could_overtake() -> None:
    def body(w: Writer, spans: tuple[int, int]) -> None:  # dissemination over 4 ranks
        w.send(w.input(span=spans[0]), w.peer((w.rank + 1) % 4))
        w.recv(w.peer((w.rank - 1) % 4), w.output(span=spans[0]))
        w.send(w.output(span=spans[1]), w.peer((w.rank + 2) % 4))
        w.recv(w.peer((w.rank - 2) % 4), w.output(span=spans[1]))

    verify(write(C.BARRIER, 4, lambda w: body(w, (2, 1)), slots=2))
    with pytest.raises(PlanError, match="rank 0 leaves the barrier without having heard of rank 1"):
        verify(write(C.BARRIER, 4, lambda w: body(w, (2, 2)), slots=2))
