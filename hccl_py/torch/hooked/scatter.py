"""FSDP2's reduce-scatters by the engine: in the background of backward where FSDP2 leaves their results alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.torch.dtypes import reduce_op, reduce_type
from hccl_py.torch.hooked.schedule import Schedule
from hccl_py.torch.process_group import HcclProcessGroup
from hccl_py.torch.sums import Several, Started

_now_s = time.perf_counter


class Scatters:
    """What is under way in one backward pass, over all parts of a module."""

    def __init__(self, group: HcclProcessGroup) -> None:
        self.group = group
        self.schedule = Schedule(group, Collective.REDUCE_SCATTER)
        self._started: list[Started] = []
        self._task: int | None = None  # the backward pass in which it is
        self.deferred = 0  # how many reduce-scatters backward did not wait for, so far

    def start(self, out: Tensor, source: Tensor, dtype: DType, op: ReduceOp, deferred: bool) -> None:
        """Start one; wait for it unless it is ``deferred`` to the end of backward."""
        task = torch._C._current_graph_task_id()
        if self._task is None or task not in (self._task, -1):  # another one: an error has ended the last
            self._task = task
            self._started = []
            self.schedule.abandon()
            Variable._execution_engine.queue_callback(self._over)
        self.schedule.ready(out.numel(), dtype)
        started = self._pieces(out, source, dtype, op)
        self._started.append(started)
        self.deferred += deferred
        if not deferred:
            started.wait()

    def _pieces(self, out: Tensor, source: Tensor, dtype: DType, op: ReduceOp) -> Started:
        chunk = self.schedule.tuning.chunk_bytes // dtype.itemsize
        if not chunk or out.numel() <= chunk:
            return self._start(out, source, dtype, op)
        rows = source.view(self.group.size(), -1)
        parts = [
            self._start(out[at : at + chunk], rows[:, at : at + chunk].contiguous(), dtype, op)
            for at in range(0, out.numel(), chunk)
        ]
        return Several(parts)

    def _start(self, out: Tensor, source: Tensor, dtype: DType, op: ReduceOp) -> Started:
        engine = self.group._open()
        self.group._sequence += 1
        return engine.start(
            Collective.REDUCE_SCATTER, op, dtype, 0, source.data_ptr(), out.data_ptr(), out.numel(), (source, out)
        )

    def _over(self) -> None:
        self._task = None
        begin_s = _now_s()
        started, self._started = self._started, []
        ended_s = []
        for work in started:
            work.wait()
            ended_s.append(getattr(work, "ended_s", 0.0) or _now_s())
        self.schedule.over(_now_s() - begin_s, ended_s)


class ScheduledReduceScatter(ReduceScatter):
    """That of one part that ``fully_shard`` has wrapped.

    Args:
        scatters: of the module that it belongs to.
        params: FSDP2's group of parameters.
    """

    def __init__(self, scatters: Scatters, params: Any) -> None:
        self._scatters, self._params = scatters, params

    @staticmethod
    def parts(module: nn.Module) -> list[tuple[FSDPModule, Any]]:
        """The wrapped parts of ``module``, each with its group of parameters.

        Raises:
            ConfigError: there are none; one is not in host memory.
        """
        found: list[tuple[FSDPModule, Any]] = []
        for part in module.modules():
            if isinstance(part, FSDPModule):
                found += [(part, params) for params in part._get_fsdp_state()._fsdp_param_groups]
        if not found:
            raise ConfigError("comm_hook: no part of the module is wrapped by fully_shard")
        elsewhere = [params for _, params in found if params.device.type != "cpu"]
        if elsewhere:
            raise ConfigError(f"comm_hook: parameters are on {elsewhere[0].device}; they must be in host memory")
        return found

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent, or for what comes."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Reduce ``input_tensor`` and leave this rank's part in ``output_tensor``, then or at the end of backward."""
        kind = reduce_op(op)
        dtype, _ = reduce_type(kind, output_tensor.dtype, "reduce_scatter")
        deferred = kind is ReduceOp.AVG and not async_op and self._left_alone(output_tensor.dtype)
        self._scatters.start(output_tensor, input_tensor, dtype, kind, deferred)

    def _left_alone(self, dtype: torch.dtype) -> bool:
        """True if FSDP2 only makes views of the result before backward ends."""
        params = self._params
        if params._is_hsdp or params._all_reduce_hook is not None or params._orig_dtype != dtype:
            return False
        return not any(
            one.offload_to_cpu
            or one.sharded_param.grad is not None
            or getattr(one.sharded_param, "_post_accumulate_grad_hooks", None)
            for one in params.fsdp_params
        )
