"""The backend ``"hccl_py"`` of torch.distributed: its name, its options, and how a group of it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError
from hccl_py.engine import Engine
from hccl_py.torch.dynamo import skip_frames
from hccl_py.torch.group_base import GroupBase
from hccl_py.torch.keep import keep_works_of_reducers
from hccl_py.torch.messages import MessagingGroup
from hccl_py.torch.mixed import MixedProcessGroup, all_backends, make_others
from hccl_py.torch.process_group import HcclProcessGroup
from hccl_py.torch.rendezvous import register_rendezvous
from hccl_py.torch.store import StoreBootstrap
from hccl_py.torch.work import WORK_CLASSES

BACKEND = "hccl_py"


@dataclass(frozen=True)
class Options:
    """What ``init_process_group`` and ``new_group`` take as ``pg_options``.

    Args:
        blocking: every collective is complete when its call returns, asynchronous ones too; it costs overlap, and
            allows callbacks of futures to issue collectives.
        env: settings of this group (None: those of the environment), the same on all ranks.
    """

    blocking: bool = False
    env: Env | None = None


def create(backend_options: Any, options: Options | None) -> HcclProcessGroup:
    """Make one process group; torch calls it on each member, and the members meet in it.

    Args:
        backend_options: torch's own: store, group_rank, group_size, and timeout, which is that of each operation.
        options: the ``pg_options`` of the user.
    """
    if options is not None and not isinstance(options, Options):
        raise ConfigError(f"pg_options is a {type(options).__name__}; {BACKEND} takes hccl_py.torch.Options")
    timeout_s = backend_options.timeout.total_seconds()
    bootstrap = StoreBootstrap(backend_options.store, backend_options.group_rank, backend_options.group_size, timeout_s)
    options = options or Options()
    engine = Engine(bootstrap, env=options.env, timeout_s=timeout_s)
    backends = all_backends()
    others = {device: backend for device, backend in backends.items() if backend != BACKEND}
    kind = MixedProcessGroup if others else HcclProcessGroup
    group = kind(engine, backend_options.store, blocking=options.blocking, exchange=bootstrap.allgather)
    if isinstance(group, MixedProcessGroup):
        group.own(make_others(others, backend_options), backends)
    return group


def register() -> None:
    """Make the backend and its rendezvous known to torch. Done once, by ``import hccl_py.torch``."""
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous()
    keep_works_of_reducers()
    skip_frames(GroupBase, MessagingGroup, HcclProcessGroup, MixedProcessGroup, *WORK_CLASSES)
