"""Keeps torch.compile out of our methods.

C++ code calls them in the middle of a compiled region (the DDP reducer rebuilding its buckets), and Dynamo would try to
trace them. Marking the code objects costs nothing per call and does not import torch._dynamo.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import torch


def skip_frames(*classes: type) -> None:
    """Tell Dynamo to run all functions of ``classes``, and what they call, as they are."""
    for owner in classes:
        for name, member in list(vars(owner).items()):
            function = member.fget if isinstance(member, property) else member
            if not isinstance(function, FunctionType):
                continue
            if not _skip(function.__code__) and function is member:
                setattr(owner, name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


def skip_only(function: FunctionType) -> None:
    """Tell Dynamo to run ``function`` as it is, but to compile what it calls: it breaks the graph there."""
    vars(function)["_torchdynamo_disable"] = True  # a caller that is traced stops here
    _skip(function.__code__, recursive=False)


def _skip(code: CodeType, recursive: bool = True) -> bool:
    """Mark one code object; False where this torch has no such mark."""
    try:
        evaluator: Any = torch._C._dynamo.eval_frame
        action = evaluator._FrameAction
        below = action.SKIP if recursive else action.DEFAULT
        evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, below))
    except AttributeError:
        return False
    return True
