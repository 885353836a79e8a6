"""Watching the processes of peers."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hccl_py.core.env import Env
from hccl_py.gpu.watch import PeerWatch


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_the_end_of_a_process_is_told() -> None:
    one, other = sleeper(), sleeper()
    told: list[int] = []
    heard = threading.Event()

    def lost(rank: int) -> None:
        told.append(rank)
        heard.set()

    watch = PeerWatch({3: one.pid, 5: other.pid}, lost)
    try:
        other.kill()
        assert heard.wait(30)
        assert told == [5]
    finally:
        one.kill()
        one.wait()
        other.wait()
        watch.close()
        watch.close()


def test_closing_tells_nothing() -> None:
    one = sleeper()
    told: list[int] = []
    PeerWatch({1: one.pid}, told.append).close()
    PeerWatch({1: 2**22 + 1}, told.append).close()  # no such process
    one.kill()
    one.wait()
    assert not told


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("HCCL_PY_GPU_SMS", "16", "gpu_sms", 16),
        ("HCCL_PY_GPU_WIRE", "bf16", "gpu_wire", "bf16"),
        ("HCCL_PY_CACHE", "/tmp/x", "cache", "/tmp/x"),
    ],
)
def test_settings(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(Env.from_environ({name: value}), field) == expected
    assert str(Env(cache="/tmp/x").cache_folder()) == "/tmp/x"
