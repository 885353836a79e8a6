"""The garbage collector rests where it is asked to, and only there."""

from __future__ import annotations

import gc

import pytest

from hccl_py.core.collector import collector_paused


def test_it_is_paused_inside_and_as_before_afterwards() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="x"), collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
        raise ValueError("x")
    assert gc.isenabled()
