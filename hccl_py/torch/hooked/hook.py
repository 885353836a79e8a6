"""The scheduler inside torch's own wrappers::

model = torch.nn.parallel.DistributedDataParallel(module)
model.register_comm_hook(None, hccl_py.torch.comm_hook())

fully_shard(module)
hccl_py.torch.comm_hook().serve(module)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, ReduceOp
from hccl_py.torch.dtypes import REDUCIBLE
from hccl_py.torch.dynamo import skip_frames
from hccl_py.torch.hooked.schedule import Schedule
from hccl_py.torch.hooks import group_of_hook, present_as_hook
from hccl_py.torch.sums import Started, start_sum

if TYPE_CHECKING:
    from hccl_py.torch.hooked.scatter import Scatters

_SUM, _AVG = int(ReduceOp.SUM), int(ReduceOp.AVG)
_now_s = time.perf_counter


class CommHook:
    """``hook(state, bucket)`` for ``register_comm_hook``, or :meth:`serve` for FSDP2; see :func:`comm_hook`."""

    def __init__(self, group: Any = None) -> None:
        found = group_of_hook("comm_hook", group)
        present_as_hook(self, "comm_hook")
        self._group = found
        self._schedule: Schedule | None = None
        self._started: list[tuple[Started | None, Tensor, torch.futures.Future[Tensor]]] = []
        self._scatters: Scatters | None = None

    @property
    def schedule(self) -> Schedule | None:
        """What decides how buckets travel; None: there was no bucket yet."""
        return self._schedule if self._scatters is None else self._scatters.schedule

    def __call__(self, state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket over the group."""
        flat: Tensor = bucket.buffer()
        if self._scatters is not None:
            raise ConfigError("comm_hook: it serves a module by FSDP2 already; make another one for this module")
        if flat.device.type != "cpu":
            raise ConfigError(f"comm_hook: gradients are on {flat.device}; they must be in host memory")
        if flat.dtype not in REDUCIBLE:
            raise ConfigError(f"comm_hook: gradients of {flat.dtype} are not averaged")
        if self._schedule is None:
            self._schedule = Schedule(self._group, Collective.ALL_REDUCE)
        if bucket.index() == 0:
            self._started.clear()  # of a pass that an error has ended
            self._schedule.abandon()
        dtype, _ = REDUCIBLE[flat.dtype]
        elements = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
        self._schedule.ready(elements.numel(), dtype)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        op = _AVG
        if dtype.itemsize < 4:  # the engine would divide before it rounds, torch rounds first
            op = _SUM
            elements.mul_(1.0 / self._group.size())
        work = start_sum(self._group, elements, dtype, op, self._schedule.tuning.chunk_bytes)
        self._started.append((work, flat, future))
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        """Backward is over but for this: waiting here spares a thread that would have to be woken for each bucket."""
        assert self._schedule is not None
        begin_s = _now_s()
        started, self._started = self._started, []
        ended_s = []
        for work, flat, future in started:
            if work is not None:
                work.wait()
            ended_s.append(getattr(work, "ended_s", 0.0) or _now_s())
            future.set_result(flat)
        self._schedule.over(_now_s() - begin_s, ended_s)

    def serve(self, module: nn.Module) -> CommHook:
        """Reduce the gradients of all parts of ``module`` that ``fully_shard`` has wrapped.

        Raises:
            ConfigError: there are none; they are not in host memory, or over another group; this hook is in use.
        """
        from hccl_py.torch.hooked.scatter import Scatters, ScheduledReduceScatter  # FSDP2 takes a while to import

        if self._scatters is not None or self._schedule is not None:
            raise ConfigError("comm_hook: it serves a module already; make another one for this module")
        parts = ScheduledReduceScatter.parts(module)
        if any(params._reduce_scatter_process_group is not self._group for _, params in parts):
            raise ConfigError("comm_hook: the module is sharded over another process group than the hook's: pass that")
        self._scatters = Scatters(self._group)
        for part, params in parts:
            part.set_custom_reduce_scatter(ScheduledReduceScatter(self._scatters, params))
        return self


def comm_hook(group: Any = None) -> CommHook:
    """A communication hook with the scheduler: for torch's DistributedDataParallel, or for FSDP2 by its ``serve``.

    Buckets are torch's. Inside them the scheduler changes plans with the network, pieces and connections, on all ranks
    at the same step, whether ``HCCL_PY_SCHEDULER`` asks for it elsewhere or not. One for each module.

    Args:
        group: of backend "hccl_py" (None: the default one).

    Raises:
        ConfigError: the group is another's.
    """
    return CommHook(group)


skip_frames(CommHook)

__all__ = ["CommHook", "comm_hook"]
