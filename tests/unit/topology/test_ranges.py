"""Ranges: folding names and expanding them again gives the same names."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl_py.topology.names import expand_range
from hccl_py.topology.ranges import fold

NUMBERS = ["", "0", "00", "1", "2", "3", "01", "02", "9", "09", "10", "010", "011", "100"]
WORDS = st.sampled_from([f"{a}{n}{b}" for a in "ab" for n in NUMBERS for b in ("", "c")])


@pytest.mark.parametrize(
    ("names", "texts"),
    [
        (["b", "a"], ["a", "b"]),
        (["a1", "a2", "a3", "a9"], ["a[1-3,9]"]),
        (["a01", "a02", "a10"], ["a[01-02,10]"]),
        (["a8", "a9", "a10", "a08"], ["a[08,10]", "a[8-9]"]),
        (["a/a", "a"], ["a", "a/a"]),
        (["h1/x", "h2/x", "h2"], ["h2", "h[1-2]/x"]),
        (["h/x1", "h/x2"], ["h/x[1-2]"]),
        (["h1/x1", "h1/x2", "h2/x1", "h2/x2", "h3/x1", "h3/x2"], ["h[1-3]/x1", "h[1-3]/x2"]),
        ([f"n{i:03}" for i in range(128)], ["n[000-127]"]),
    ],
)
def test_examples(names: list[str], texts: list[str]) -> None:
    assert fold(names) == texts


@settings(max_examples=100, deadline=None)
@given(st.sets(st.one_of(WORDS, st.builds("{}/{}".format, WORDS, WORDS)), min_size=1, max_size=20))
def test_folded_names_expand_to_themselves(names: set[str]) -> None:
    expanded = list(chain.from_iterable(expand_range(text) for text in fold(names)))
    assert sorted(expanded) == sorted(names)
