"""One rank a host, as fast as the machine goes: a look at the figures, printed by `pytest -s`. Not a benchmark."""

from __future__ import annotations

import pytest
from lab_nodes import Nodes

MIB = 1 << 20


def test_large_and_small_all_reduce(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    large = nodes.run("both_backends", (0, 1), size_bytes=16 * MIB, rounds=4)[0]
    small = nodes.run("both_backends", (0, 1), size_bytes=8, rounds=50)[0]
    with capsys.disabled():
        mb_per_s = ", ".join(f"{name} {16 * MIB / seconds / 1e6:.0f} MB/s" for name, seconds in large.items())
        us = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in small.items())
        print(f"\n  two hosts, all_reduce: 16 MiB {mb_per_s}; 8 B {us}")
    assert large.keys() == small.keys() == {"gloo", "hccl_py"}
    assert all(0 < seconds < 10 for seconds in (*large.values(), *small.values()))
