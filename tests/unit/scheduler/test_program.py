"""Program: its bytes are those of native/include/hccl_py/program.hpp, and come back equal."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_matrix import cases, plans

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.scheduler.program import MAGIC, VERSION, WINDOW, Lends, Operand, Program, ScratchSize, Step, Where
from hccl_py.scheduler.writer import Writer

HEADER = Path(__file__).parents[3] / "native/include/hccl_py/program.hpp"

EXAMPLE = Program(
    collective=Collective.ALL_TO_ALL,
    world=5,
    rank=3,
    root=1,
    slots_per_block=2,
    input_blocks=5,
    output_blocks=5,
    scratch=(ScratchSize(Where.OUTPUT, 7),),
    steps=(
        Step(
            (Operand(Where.PEER, True, 1, 4, 6, 2), Operand(Where.INPUT, True, 0, 0, 8, 2)),
            (Operand(Where.OUTPUT, False, 0, 0, 0, 2),),
        ),
        Step((Operand(Where.SCRATCH, False, 0, 0, 0, 1),), (Operand(Where.PEER, False, 0, 2, 0, 1),)),
    ),
    channels=2,
    one_round=True,
    order=Order.FREE,
    digest=0x0102030405060708,
)  # fmt: skip


def test_flags_do_not_disturb_each_other() -> None:
    for one_round in (False, True):
        for shared_fold in (False, True):
            for lends in Lends:
                program = replace(EXAMPLE, one_round=one_round, shared_fold=shared_fold, lends=lends)
                assert Program.from_bytes(program.to_bytes()) == program


def test_bytes_field_by_field() -> None:
    data = EXAMPLE.to_bytes()
    assert len(data) == 64 + 8 + 2 * 16 + 5 * 16
    assert data[:4] == b"HPLN"
    assert struct.unpack_from("<HBB", data, 4) == (1, 5, 1)  # version, collective, order
    fields = struct.unpack_from("<12I", data, 8)
    #         world rank root slots in out scratch steps operands channels flags reserved
    assert fields == (5, 3, 1, 2, 5, 5, 1, 2, 5, 2, 1, 0)
    assert data[56:64] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert struct.unpack_from("<II", data, 64) == (1, 7)
    assert struct.unpack_from("<IHHII", data, 72) == (0, 2, 1, 0, 0)
    assert struct.unpack_from("<IHHII", data, 88) == (3, 1, 1, 0, 0)
    assert struct.unpack_from("<BBHIII", data, 104) == (3, 1, 1, 4, 6, 2)
    assert struct.unpack_from("<BBHIII", data, 120) == (0, 1, 0, 0, 8, 2)


def test_numbers_are_those_of_the_engine() -> None:
    text = HEADER.read_text()
    constants = dict(re.findall(r"constexpr \S+ (k\w+) = (\w+);", text))
    assert int(constants["kProgramMagic"], 0) == MAGIC
    assert int(constants["kProgramVersion"], 0) == VERSION
    assert int(constants["kWindow"], 0) == WINDOW
    where = re.search(r"enum class Where[^{]*{([^}]*)}", text)
    assert where is not None
    found = {name.upper(): int(number) for name, number in re.findall(r"(\w+) = (\d+)", where[1])}
    assert found == {w.name: w.value for w in Where}


@pytest.mark.parametrize(
    ("algorithm", "collective", "world"),
    [c for c in cases() if c[2] in (3, 4)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_round_trip(algorithm, collective, world) -> None:  # type: ignore[no-untyped-def]
    for plan in plans(algorithm, collective, world):
        for rank in range(world):
            program = plan.program(rank)
            assert Program.from_bytes(program.to_bytes()) == program
    assert Program.from_bytes(EXAMPLE.to_bytes()) == EXAMPLE


@pytest.mark.parametrize("length", [0, 3, 63, 64, 71, 100, 183])
def test_bytes_that_are_cut_off(length: int) -> None:
    with pytest.raises(PlanError, match=f"these {length} bytes are no program"):
        Program.from_bytes(EXAMPLE.to_bytes()[:length])


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, b"X", "magic"),
        (4, b"\x02", "version 2; expected"),
        (6, b"\x63", "99 is not a valid Collective"),
        (7, b"\x05", "5 is not a valid Order"),
        (36, b"\x09", "do not fill them exactly"),
        (64, b"\x07", "7 is not a valid Where"),
        (72, b"\x01", "steps do not use the operands in order"),
        (76, b"\x03", "steps do not use the operands in order"),
        (92, b"\x02", "operands|IndexError"),
        (104, b"\x09", "9 is not a valid Where"),
    ],
)
def test_bytes_that_are_wrong(offset: int, value: bytes, why: str) -> None:
    data = bytearray(EXAMPLE.to_bytes())
    data[offset : offset + 1] = value
    try:
        program = Program.from_bytes(bytes(data))
    except PlanError as error:
        assert re.search(why, str(error))
    else:
        pytest.fail(f"accepted as {program}")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 183))
def test_random_bytes_never_crash(noise: bytes, at: int) -> None:
    data = EXAMPLE.to_bytes()
    try:
        Program.from_bytes(data[:at] + noise + data[at + len(noise) :])
    except PlanError:
        return


@pytest.mark.parametrize(
    ("sources", "targets", "word"),
    [
        ("i", "p", "send"),
        ("p", "o", "recv"),
        ("ip", "o", "recv_reduce"),
        ("i", "o", "copy"),
        ("ii", "o", "reduce"),
        ("p", "op", "fold"),
        ("i", "op", "fold"),
        ("ip", "op", "fold"),
        ("pp", "o", "recv_reduce"),
    ],
)
def test_words(sources: str, targets: str, word: str) -> None:
    kinds = {"i": Where.INPUT, "o": Where.OUTPUT, "p": Where.PEER}
    row = [tuple(Operand(kinds[c], True, 0, i, 0, 1) for i, c in enumerate(side)) for side in (sources, targets)]
    assert Step(*row).word == word


def test_writer_marks_sums() -> None:
    w = Writer(Collective.ALL_REDUCE, 3, 0, 0, 2)
    held = w.scratch(w.input(span=2))
    w.copy(w.input(span=2), held)
    w.reduce([w.input(k=0), w.peer(1)], w.part(held, 0))
    w.send(w.part(held, 0), w.peer(2))
    w.send(w.part(held, 1), w.peer(2))
    assert [step.sources[0].raw for step in w.program().steps] == [True, True, False, True]
    with pytest.raises(PlanError, match=r"rank 0, step 4: SCRATCH\[0..1\] holds raw contributions and sums"):
        w.send(held, w.peer(1))
    w.copy(w.input(k=0), w.part(held, 0))
    w.send(held, w.peer(1))
    assert w.program().steps[-1].sources[0].raw
    assert w.program().steps[-1].targets[0].span == 2


def test_writer_refuses_scratch_like_scratch() -> None:
    w = Writer(Collective.ALL_REDUCE, 3, 0, 0, 2)
    with pytest.raises(PlanError, match="name slots of INPUT or OUTPUT"):
        w.scratch(w.scratch(w.input()))


def test_programs_are_values() -> None:
    assert replace(EXAMPLE) == EXAMPLE
    assert hash(replace(EXAMPLE)) == hash(EXAMPLE)
    with pytest.raises(AttributeError):
        EXAMPLE.world = 4  # type: ignore[misc]
