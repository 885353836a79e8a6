"""mpi4py's forms of a buffer argument: what each means, and which are refused."""

from __future__ import annotations

import array
import mmap
from typing import Any

import numpy as np
import pytest

from hccl_py import MPI, ConfigError
from hccl_py.mpistyle.message import array_of, blocks_of, kind_in

TEN = np.arange(10.0)


@pytest.mark.parametrize(("spec", "want"), [
    (TEN, TEN),
    ([TEN], TEN),
    ([TEN, 4], TEN[:4]),
    ([TEN, MPI.DOUBLE], TEN),
    ([TEN, "d"], TEN),
    ([TEN, 4, MPI.DOUBLE], TEN[:4]),
    ([TEN, 4, 3, MPI.DOUBLE], TEN[3:7]),
    ([TEN, (4, 3), MPI.DOUBLE], TEN[3:7]),
    ([TEN, (4, 3)], TEN[3:7]),
    ([TEN, (4, None), "d"], TEN[:4]),
    ((TEN, None, MPI.DOUBLE), TEN),
    ([TEN, 6, MPI.FLOAT], TEN.view(np.float32)[:6]),
    ([TEN.reshape(2, 5).T, MPI.DOUBLE], TEN),
    ([array.array("d", TEN), 3, MPI.DOUBLE], TEN[:3]),
    ([array.array("d", TEN)], TEN),
    ([bytearray(TEN.tobytes()), MPI.DOUBLE], TEN),
    ([bytearray(b"123"), 0, MPI.BYTE], np.empty(0, np.uint8)),
    ([bytearray(), MPI.BYTE], np.empty(0, np.uint8)),
    ([None, 0, MPI.INT], np.empty(0, np.int32)),
    ([np.array(7.0), MPI.DOUBLE], np.array([7.0])),
    ([np.array([1 + 2j, 3]), 1, 1], np.array([3.0, 0.0])),
    (np.array([1 + 2j]), np.array([1.0, 2.0])),
])  # fmt: skip
def test_one_block(spec: Any, want: Any) -> None:
    got = array_of(spec, "buf")
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_they_are_views_not_copies() -> None:
    data = np.zeros(4)
    array_of([data, 2, 1, MPI.DOUBLE], "buf")[:] = 5
    memory = mmap.mmap(-1, 16)
    array_of([memory, 1, 1, MPI.DOUBLE], "buf")[:] = 5
    assert data.tolist() == [0, 5, 5, 0] and np.frombuffer(memory).tolist() == [0, 5]
    assert not array_of([b"12345678", MPI.DOUBLE], "buf").flags.writeable


@pytest.mark.parametrize(("spec", "message"), [
    ([TEN, 11, MPI.DOUBLE], "buf: 11 elements from 0 on are not within its 10"),
    ([TEN, -1], "-1 elements"),
    ([TEN, (4, 7), MPI.DOUBLE], "4 elements from 7 on"),
    ([TEN, (4, -1), MPI.DOUBLE], "from -1 on"),
    ([TEN, [1, 2, 3], [0, 1, 2], MPI.DOUBLE], "one count and one displacement"),
    ([TEN, 1, 2, 3, 4], "not one of"),
    ([], "not one of"),
    ([TEN, "no such type"], "not one of|one count|no datatype"),
    ([TEN[::2], MPI.DOUBLE], "not contiguous"),
    ([memoryview(bytes(8))[::2], MPI.BYTE], "not contiguous"),
    ([3.5, MPI.DOUBLE], "buf is a float"),
    ([MPI.BOTTOM, 1, MPI.DOUBLE], "MPI.BOTTOM cannot be used"),
    (MPI.IN_PLACE, "MPI.IN_PLACE cannot be used"),
])  # fmt: skip
def test_what_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        array_of(spec, "buf")


@pytest.mark.parametrize(("spec", "counts", "displs"), [
    (np.arange(9), [3, 3, 3], [0, 3, 6]),
    ([TEN, [1, 2, 3]], [1, 2, 3], [0, 1, 3]),
    ([TEN, (1, 2, 3)], [1, 2, 3], [0, 1, 3]),
    ([TEN, [1, 2, 3], MPI.DOUBLE], [1, 2, 3], [0, 1, 3]),
    ([TEN, ([1, 2, 3], [5, 3, 0]), MPI.DOUBLE], [1, 2, 3], [5, 3, 0]),
    ([TEN, [1, 2, 3], [5, 3, 0], MPI.DOUBLE], [1, 2, 3], [5, 3, 0]),
    ([TEN, (array.array("i", [1, 2, 3]), array.array("i", [5, 3, 0])), MPI.DOUBLE], [1, 2, 3], [5, 3, 0]),
    ([TEN, (np.array([1, 2, 3]), None), MPI.DOUBLE], [1, 2, 3], [0, 1, 3]),
    ([TEN, 2, MPI.DOUBLE], [2, 2, 2], [0, 2, 4]),
    ([np.zeros(4, np.complex64), [1, 0, 2]], [2, 0, 4], [0, 2, 2]),
])  # fmt: skip
def test_blocks(spec: Any, counts: list[int], displs: list[int]) -> None:
    blocks = blocks_of(spec, 3, "buf")
    assert (blocks.counts, blocks.displs) == (counts, displs)
    assert blocks.packed == (displs == sorted(displs))


@pytest.mark.parametrize(("spec", "message"), [
    (TEN, "10 elements are not 3 equal blocks"),
    ([TEN, [1, 2]], "2 counts"),
    ([TEN, ([1, 2, 3], [0, 1]), MPI.DOUBLE], "2 displacements"),
    ([TEN, [5, 5, 5]], "5 elements from 10 on"),
    ([TEN, ([5, 5, 5], [0, 6, 5]), MPI.DOUBLE], "5 elements from 6 on"),
])  # fmt: skip
def test_blocks_that_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        blocks_of(spec, 3, "buf")


def test_the_kind_of_an_argument() -> None:
    assert kind_in([TEN, MPI.INT]) == np.int32 and kind_in(TEN) == np.float64 and kind_in(None) is None
    assert kind_in([array.array("i"), 3]) == np.int32 and kind_in(np.zeros(1, np.complex64)).kind == "c"


def test_names() -> None:
    assert MPI.INT.Get_size() == 4 and MPI.DOUBLE.Get_extent() == (0, 8) and repr(MPI.INT) == "MPI.INT"
    assert MPI.BOOL is MPI.C_BOOL and MPI.SUM(2, 3) == 5 and MPI.MAXLOC((1, 5), (1, 2)) == (1, 2)
    assert MPI.MINLOC((1, 5), (0, 7)) == (0, 7) and MPI.LXOR(3, 4) is False and MPI.BXOR(6, 3) == 5
    assert MPI.Op.Create(lambda x, y: x - y)(5, 3) == 2 and {"SUM", "DOUBLE", "COMM_WORLD"} <= set(dir(MPI))


@pytest.mark.parametrize("name", ["Win", "File", "Cartcomm", "Intercomm", "NoSuchThing"])
def test_what_is_left_out_says_so(name: str) -> None:
    assert not hasattr(MPI, name)
    with pytest.raises(AttributeError, match=r"hccl_py.MPI has no .*docs/MPI4PY.md"):
        getattr(MPI, name)
    with pytest.raises(AttributeError, match="looked at before"):
        MPI.COMM_SELF.Iprobe()
    with pytest.raises(AttributeError, match="basic datatypes only"):
        MPI.INT.Create_vector(1, 2, 3)


def test_a_count_is_that_of_each_block() -> None:
    np.testing.assert_array_equal(array_of([TEN, 3, MPI.DOUBLE], "buf", blocks=3), TEN[:9])
    np.testing.assert_array_equal(array_of([TEN, MPI.DOUBLE], "buf", blocks=3), TEN)
    with pytest.raises(ConfigError, match="12 elements"):
        array_of([TEN, 4, MPI.DOUBLE], "buf", blocks=3)
