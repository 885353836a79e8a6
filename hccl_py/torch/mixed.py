# mypy: disable-error-code="override"
# Torch's stubs overload these methods by argument type; here one method takes all forms.
"""``cpu:hccl_py,cuda:nccl``: one group whose tensors of some devices go to other backends.

Torch takes a Python process group as the whole group and never makes the others, so ours owns a plain process group
that has them, and hands on each call whose tensors are on one of their devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

from hccl_py.torch.process_group import HcclProcessGroup

_HANDED_ON = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "all_gather_single",
    "all_gather_single_coalesced", "allgather_coalesced", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "all_to_all_single", "send", "recv",
    "recv_anysource", "_allgather_base", "allgather_into_tensor_coalesced", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall_base", "recvAnysource",
)  # fmt: skip


def all_backends() -> dict[str, str]:
    """The backends by device type that the user's string names; called from the maker of a group.

    Torch does not hand the string to the maker, but it is a local variable of the function that calls it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if isinstance(config, dist.distributed_c10d.BackendConfig):
            return {device: str(backend) for device, backend in config.get_device_backend_map().items()}
        frame = frame.f_back  # type: ignore[assignment]
    return {}


def make_others(backends: dict[str, str], options: Any) -> ProcessGroup:
    """A plain process group, unknown to torch's registry, that has ``backends``.

    Args:
        options: what torch hands to the maker of a group.
    """
    c10d = dist.distributed_c10d
    words = ",".join(f"{device}:{backend}" for device, backend in backends.items())
    name = c10d.GroupName(f"{options.group_id}/others")
    group, _ = c10d._new_process_group_helper(
        options.group_size,
        options.group_rank,
        options.global_ranks_in_group,
        words,
        PrefixStore("others", options.store),
        group_name=name,
        timeout=options.timeout,
    )
    world = c10d._world  # ours is the only owner
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table.pop(group, None)
    for groups in world.tags_to_pg.values():
        if group in groups:
            groups.remove(group)
    return group  # type: ignore[no-any-return]


def _device_of(arguments: tuple[Any, ...]) -> str:
    """Type of the device of the first tensor in (lists of) arguments."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            return argument.device.type
        if isinstance(argument, (list, tuple)):
            found = _device_of(tuple(argument))
            if found:
                return found
    return ""


def _handing_on(name: str) -> Callable[..., Any]:
    ours = getattr(HcclProcessGroup, name)

    def call(self: MixedProcessGroup, *arguments: Any, **named: Any) -> Any:
        if _device_of(arguments) in self._other_devices:
            return getattr(self._of_others(), name)(*arguments, **named)
        return ours(self, *arguments, **named)

    call.__name__ = name
    call.__doc__ = ours.__doc__
    return call


def _hands_on(group: type[MixedProcessGroup]) -> type[MixedProcessGroup]:
    """Give ``group`` the calls that look at the device first."""
    for name in _HANDED_ON:
        setattr(group, name, _handing_on(name))
    return group


@_hands_on
class MixedProcessGroup(HcclProcessGroup):
    """A group of hccl_py that hands calls on tensors of some devices to ``others``."""

    _others: ProcessGroup
    _other_devices: frozenset[str]
    _own_devices: tuple[str, ...]

    def own(self, others: ProcessGroup, backends: dict[str, str]) -> None:
        """Take ``others`` for the devices of other backends, of all ``backends`` by device type."""
        self._others = others
        self._own_devices = tuple(device for device, backend in backends.items() if backend == self.getBackendName())
        self._other_devices = frozenset(backends) - frozenset(self._own_devices)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in (*self._own_devices, *sorted(self._other_devices))]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type in self._other_devices:
            return self._of_others()._get_backend(device)
        return self

    def _of_others(self) -> ProcessGroup:
        self._open()  # raises if all is over
        return self._others

    def _start_coalescing(self, device: torch.device | None = None) -> Any:
        if device is not None and torch.device(device).type in self._other_devices:
            return self._of_others()._start_coalescing(device)
        return super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device | None = None) -> Any:
        if device is not None and torch.device(device).type in self._other_devices:
            return self._of_others()._end_coalescing(device)
        return super()._end_coalescing(device)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """The other backends' barrier if their device is named, else ours."""
        device = getattr(opts, "device", None)
        if device is not None and torch.device(device).type in self._other_devices:
            return self._of_others().barrier(opts)
        return super().barrier(opts, timeout)

    def shutdown(self) -> None:
        """Both groups end."""
        others = self.__dict__.pop("_others", None)
        if others is not None:
            others.shutdown()
        super().shutdown()

    def abort(self) -> None:
        """Both groups end at once."""
        others = self.__dict__.pop("_others", None)
        if others is not None:
            others.abort()
        super().abort()
