"""Keeps the Python half of a work alive where torch keeps only the C++ half.

A work is a Python object with a C++ object inside. Torch's own process groups hand both to C++, but a Python caller who
stores a work in a C++ object stores only the inner one; when the outer is collected, ``wait`` becomes that of the C++
base class, which nobody ever ends. DDP does that in ``Join`` with ``divide_by_initial_world_size=False``.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch._C._distributed_c10d import Reducer


def keep_works_of_reducers() -> None:
    """Let each reducer hold, until the next one, the work whose result it will wait for."""
    kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    store = Reducer._set_forward_pass_work_handle

    def set_work(self: Any, work: Any, use_static_world_size: bool) -> None:
        kept[self] = work
        store(self, work, use_static_world_size)

    Reducer._set_forward_pass_work_handle = set_work  # type: ignore[method-assign]
