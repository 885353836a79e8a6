from __future__ import annotations

import inspect
import sys
import types

from hccl_py.sites import call_site, describe


def test_the_line_of_the_caller() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    site = call_site()
    assert site is not None and site[1] == line
    assert describe(site) == f"{__file__}:{line} in test_the_line_of_the_caller"


def inside(name: str) -> types.ModuleType:
    """A module of this name that asks for the call site."""
    module = types.ModuleType(name)
    exec(
        "from hccl_py.sites import call_site\ndef ask(f=call_site): return f()\ndef through(f): return f()",
        module.__dict__,
    )
    return module


def test_frames_of_hccl_py_and_torch_do_not_count() -> None:
    def user() -> object:
        return inside("hccl_py.torch.anything").ask()

    for name in ("hccl_py", "hccl_py.engine", "torch.distributed"):
        site = inside(name).ask()
        assert site is not None and site[0].co_name == "test_frames_of_hccl_py_and_torch_do_not_count"
    site = inside("torch.nn.modules").through(user)
    assert site is not None and site[0].co_name == "user"


def test_names_that_only_begin_alike_are_the_users() -> None:
    site = inside("hccl_python").ask()
    assert site is not None and site[0].co_name == "ask"


def test_without_a_user_there_is_no_place() -> None:
    assert describe(None) == "an unknown place"
    assert sys._getframe().f_code.co_name in describe((sys._getframe().f_code, 7))
