"""Ranges and patterns of names."""

from __future__ import annotations

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.topology.names import expand_range, pairs, select

NAMES = ("node0/eth0", "node0/eth1", "node1/eth0", "node1/eth1", "node10/eth0", "leaf0", "leaf1")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu", ("gpu",)),
        ("gpu[0-2]", ("gpu0", "gpu1", "gpu2")),
        ("n[08-10]x", ("n08x", "n09x", "n10x")),
        ("n[1-2, 7]", ("n1", "n2", "n7")),
        ("n[3]", ("n3",)),
    ],
)
def test_ranges(text: str, names: tuple[str, ...]) -> None:
    assert expand_range(text) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a[0-1][0-1]", "one range"),
        ("a[0", "one range"),
        ("a]", "one range"),
        ("a[]", "not a number or a range"),
        ("a[x]", "not a number or a range"),
        ("a[0-]", "not a number or a range"),
        ("a[3-1]", "runs backward"),
        ("a[0-65536]", "more than 65536"),
        ("a[0-40000,0-40000]", "more than 65536"),
        ("a[1,1]", "comes out twice"),
    ],
)
def test_bad_ranges_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        expand_range(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("leaf1", ("leaf1",)),
        ("leaf*", ("leaf0", "leaf1")),
        ("*", ("leaf0", "leaf1")),  # "*" does not cross "/"
        ("node*/eth1", ("node0/eth1", "node1/eth1")),
        ("node<h>/eth0", ("node0/eth0", "node1/eth0", "node10/eth0")),
        ("node<i>/eth<i>", ("node0/eth0", "node1/eth1")),
        ("node[1,10]/eth0", ("node1/eth0", "node10/eth0")),
        ("*/eth[1]", ("node0/eth1", "node1/eth1")),
    ],
)
def test_patterns(text: str, found: tuple[str, ...]) -> None:
    assert select(text, NAMES) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("leaf2", "did you mean 'leaf[01]'"),
        ("node<>/eth0", "not a variable"),
        ("node<1>/x", "not a variable"),
        ("lea.*", "no node matches"),
    ],
)
def test_patterns_that_match_nothing_or_are_malformed(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        select(text, NAMES)


def test_a_variable_in_both_ends_means_the_same_number() -> None:
    found = list(pairs("node<h>/eth<r>", "leaf<r>", NAMES, 99))
    assert found == [
        ("node0/eth0", "leaf0"),
        ("node0/eth1", "leaf1"),
        ("node1/eth0", "leaf0"),
        ("node1/eth1", "leaf1"),
        ("node10/eth0", "leaf0"),
    ]


def test_stars_make_all_pairs_but_no_node_with_itself() -> None:
    assert list(pairs("leaf*", "leaf*", NAMES, 99)) == [("leaf0", "leaf1"), ("leaf1", "leaf0")]


def test_pairs_refuse_what_makes_no_link_or_too_many() -> None:
    with pytest.raises(ConfigError, match="no two of their nodes go together"):
        list(pairs("leaf0", "leaf0", NAMES, 99))
    with pytest.raises(ConfigError, match="no node matches 'leaf7'"):
        list(pairs("leaf*", "leaf7", NAMES, 99))
    with pytest.raises(ConfigError, match="more than 9 links"):
        list(pairs("node*/*", "leaf*", NAMES, 9))
