"""How blocks are cut: as the engine cuts them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hccl_py.scheduler.slots import slot_bounds, slot_length

CALL = Path(__file__).parents[3] / "native/include/hccl_py/call.hpp"


@given(st.integers(0, 2**40), st.integers(1, 300))
def test_slots_cover_a_block_without_overlap(elements: int, slots: int) -> None:
    bounds = [slot_bounds(elements, slots, k) for k in range(slots)]
    assert bounds[0][0] == 0 and bounds[-1][1] == elements
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert all(begin <= end for begin, end in bounds)


@given(st.integers(0, 2**40), st.integers(1, 300))
def test_slots_of_large_blocks_begin_on_a_vector_boundary(elements: int, slots: int) -> None:
    length = slot_length(elements, slots)
    assert length * slots >= elements
    if elements >= 64 * slots:
        assert length % 16 == 0
        assert length < elements / slots + 16
    else:
        assert length == -(-elements // slots)


def test_examples() -> None:
    assert [slot_bounds(1, 4, k) for k in range(4)] == [(0, 1), (1, 1), (1, 1), (1, 1)]
    assert [slot_bounds(10, 4, k) for k in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert [slot_bounds(257, 4, k) for k in range(4)] == [(0, 80), (80, 160), (160, 240), (240, 257)]
    assert slot_bounds(0, 3, 2) == (0, 0)


def test_the_engine_has_the_same_formula() -> None:
    text = re.sub(r"\s+", " ", CALL.read_text())
    assert "even = (count + slots - 1) / slots" in text
    assert "count >= std::uint64_t{64} * slots ? (even + 15) / 16 * 16 : even" in text
