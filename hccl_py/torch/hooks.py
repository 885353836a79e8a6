"""What our communication hooks have in common: torch looks at their name and signature, they at the group."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from hccl_py.core.errors import ConfigError
from hccl_py.torch.process_group import HcclProcessGroup


def group_of_hook(name: str, group: Any) -> HcclProcessGroup:
    """The group that a hook serves; None: the default one. Raises ConfigError if it is not ours."""
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, HcclProcessGroup):
        raise ConfigError(f'{name}: the process group is a {type(found).__name__}; it must be one of backend "hccl_py"')
    return found


def present_as_hook(hook: Any, name: str) -> None:
    """Torch asks for a name, and for a signature whose annotations, if any, are its own."""
    hook.__name__ = hook.__qualname__ = name
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hook.__signature__ = inspect.Signature([inspect.Parameter(word, either) for word in ("state", "bucket")])
