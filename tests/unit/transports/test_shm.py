"""Transport shm: its options, and what keeps it from working."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hccl_py.core.errors import ConfigError
from hccl_py.transports import shm


def test_available_here_and_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    found = shm.SPEC.availability()
    assert found.ok, found.reason
    assert set(os.listdir("/proc/self/fd")) == before


def test_unavailable_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    found = shm.SPEC.availability()
    assert not found.ok
    assert "no memfd_create" in found.reason


def test_unavailable_where_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "ftruncate", refuse)
    found = shm.SPEC.availability()
    assert not found.ok
    assert "File too large" in found.reason
    assert set(os.listdir("/proc/self/fd")) == before


def test_unavailable_without_abstract_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size_bytes: int) -> str:
        return "x" * 200  # longer than any socket's name

    monkeypatch.setattr(shm.secrets, "token_hex", refuse)
    found = shm.SPEC.availability()
    assert not found.ok
    assert "no abstract Unix socket" in found.reason


@pytest.mark.parametrize(
    ("scope", "root", "open_"), [("0", False, True), ("1", False, False), ("2", True, True), ("3", True, False)]
)
def test_private_memory_of_other_ranks(
    scope: str, root: bool, open_: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting of Yama decides, but for the superuser; the reason is in what the doctor prints."""
    setting = tmp_path / "proc/sys/kernel/yama/ptrace_scope"
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{scope}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    why = shm.why_private_memory_is_closed(str(tmp_path))
    assert (why == "") is open_
    assert open_ or f"ptrace_scope is {scope}" in why
    monkeypatch.setattr(shm, "why_private_memory_is_closed", lambda: why)
    assert why in shm.SPEC.availability().reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shm_ring_bytes": 2048}, "shm_ring_bytes is 2048; it may be a power of two from 4096"),
        ({"shm_ring_bytes": 5000}, "shm_ring_bytes is 5000"),
        ({"shm_ring_bytes": 1 << 31}, "shm_ring_bytes is 2147483648"),
        ({"shm_slot_bytes": 0}, "shm_slot_bytes is 0; it may be a multiple of 64 from 64"),
        ({"shm_slot_bytes": 100}, "shm_slot_bytes is 100"),
        ({"shm_slot_bytes": 1 << 27}, "shm_slot_bytes is 134217728"),
        ({"shm_shared_from_bytes": -1}, "shm_shared_from_bytes is -1; it may be 0"),
        ({"shm_private_from_bytes": -1}, "shm_private_from_bytes is -1; it may be 0"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shm.ShmConfig(**options)
    assert words in str(caught.value)


def test_keywords() -> None:
    options = {"shm_ring_bytes": 8192, "shm_slot_bytes": 128, "shm_shared_from_bytes": 64, "shm_private_from_bytes": 0}
    assert shm.ShmConfig(**options).keywords() == options
