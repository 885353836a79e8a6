"""DistributedDataParallel: torch's wrapper, on a reducer whose buckets are the scheduler's to change."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes

from hccl_py.compression.codec import Codec
from hccl_py.compression.policy import Switching
from hccl_py.core.errors import ConfigError
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import CODECS
from hccl_py.scheduler.timeline import Timeline
from hccl_py.torch.ddp.adaptation import Adaptation
from hccl_py.torch.ddp.compressor import Compressor
from hccl_py.torch.ddp.graph import tensors_in
from hccl_py.torch.ddp.hooks import CommHook
from hccl_py.torch.ddp.join import DdpJoinHook
from hccl_py.torch.ddp.parameters import Parameters
from hccl_py.torch.ddp.reducer import Reducer
from hccl_py.torch.dynamo import skip_frames, skip_only
from hccl_py.torch.process_group import HcclProcessGroup

_MIB = 1 << 20
_BUCKETS, _LEAST_BUCKET_BYTES, _MOST_BUCKET_BYTES = 32, _MIB, 25 * _MIB  # unless the user says how large they are
_BROADCAST_BYTES = 250 * _MIB  # at most so much of parameters or buffers in one broadcast


class DistributedDataParallel(nn.Module, Joinable):
    """Averages the gradients of ``module`` over the ranks of a process group of hccl_py, while backward runs.

    Arguments and behaviour are those of ``torch.nn.parallel.DistributedDataParallel``. What is different:

    * ``.grad`` of a parameter is a view of a bucket, in memory that the ranks of a host share, whatever
      ``gradient_as_bucket_view`` says; sparse gradients become dense.
    * Buckets can change between steps (:meth:`adopt`). After the first step they follow the order in which gradients
      became ready.
    * A parameter that is larger than a bucket is cut.

    Modules in host memory only.

    Args:
        module: what is trained.
        device_ids, output_device, dim: for modules in host memory None and 0.
        broadcast_buffers: rank 0's buffers go to all ranks before every forward pass (``forward_sync_buffers`` is the
            newer word for it).
        init_sync: parameters and buffers are those of rank 0 in the beginning, and their shapes are compared.
        process_group: of the backend ``"hccl_py"``; None: the default one.
        bucket_cap_mb: size of buckets in MiB; None: a 32nd of all gradients, 1 to 25 MiB, until the scheduler changes
            them (``HCCL_PY_SCHEDULER=1``: else never).
        find_unused_parameters: parameters may get no gradient in some steps; costs a walk over the graph each time.
        check_reduction: without effect, as in torch.
        gradient_as_bucket_view: gradients that lie in the bucket already are divided in torch's way; nothing else.
        static_graph: every step uses the same parameters, equally often.
        device_mesh: one-dimensional, in place of ``process_group``.
        compression: gradients travel encoded: a codec or its text ("int8", "powersgd:4"), a
            :class:`~hccl_py.compression.policy.Switching`, or "auto": exact unless a codec is measured to be faster.
            "scheduler": the scheduler sends those buckets as bfloat16 that would else be waited for (float32; no
            feedback).
            Errors are fed back; see docs/COMPRESSION.md. None: exact.
        compression_options: ``ramp``, ``guard``, ``seed`` and ``most_error`` of
            :class:`~hccl_py.gradients.GradientReducer`.

    Raises:
        ConfigError: an argument that is not served: modules on GPUs, native ``mixed_precision`` (use torch.autocast),
            delayed all_reduces, another backend's process group.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[int] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        compression: Codec | Switching | str | None = None,
        compression_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        for name, value in (
            ("delay_all_reduce_named_params", delay_all_reduce_named_params),
            ("param_to_hook_all_reduce", param_to_hook_all_reduce),
            ("mixed_precision", mixed_precision),
            ("skip_all_reduce_unused_params", skip_all_reduce_unused_params),
            ("bucket_cap_mb_list", bucket_cap_mb_list),
        ):
            if value:
                hint = "use torch.autocast" if name == "mixed_precision" else "leave it out"
                raise ConfigError(f"DistributedDataParallel: {name} is not served by hccl_py; {hint}")
        if device_ids or output_device is not None:
            raise ConfigError("DistributedDataParallel: device_ids and output_device are for modules on GPUs")
        self.process_group = _group(process_group, device_mesh)
        self.module = module
        self.dim = dim
        self.device_ids = None
        self.output_device = None
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            raise ConfigError("DistributedDataParallel: run the module once before, some parameters have no shape yet")
        parameters = Parameters(
            (name, p) for name, p in module.named_parameters() if name not in self.parameters_to_ignore
        )
        if not len(parameters):
            raise ConfigError("DistributedDataParallel: no parameter of the module is trained")
        self.device = parameters.tensors[0].device
        self.device_type = self.device.type
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.forward_sync_buffers = (
            broadcast_buffers is not False if forward_sync_buffers is None else (forward_sync_buffers)
        )
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.broadcast_bucket_size = _BROADCAST_BYTES
        self._divide_by_initial_size = True
        self._divisor_work: Any = None
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise ConfigError(f"DistributedDataParallel: bucket_cap_mb is {bucket_cap_mb}, not above 0")
        if bucket_cap_mb is None:
            total_bytes = sum(n * dtype.itemsize for n, dtype in zip(parameters.numel, parameters.dtype, strict=True))
            self._bucket_bytes = min(max(total_bytes // _BUCKETS, _LEAST_BUCKET_BYTES), _MOST_BUCKET_BYTES)
        else:
            self._bucket_bytes = max(16, int(bucket_cap_mb * _MIB))
        if init_sync:
            _verify_param_shape_across_processes(self.process_group, list(parameters.tensors))
            self.sync_module_states(0, forward_sync_buffers is not None or self.forward_sync_buffers)
        if compression is None and compression_options:
            raise ConfigError("DistributedDataParallel: compression_options without compression")
        self._compressor: Compressor | None = None
        self._codecs: tuple[str, ...] = CODECS if compression == "scheduler" else ("exact",)
        if compression == "scheduler":
            if compression_options or bucket_cap_mb is not None or not self.process_group._open().env.scheduler:
                raise ConfigError(
                    'DistributedDataParallel: compression="scheduler" needs HCCL_PY_SCHEDULER=1, and neither '
                    "bucket_cap_mb nor compression_options"
                )
        elif compression is not None:
            self._compressor = Compressor(self.process_group, parameters, compression, compression_options or {})
        self._arranged = find_unused_parameters and not static_graph  # no step shows the order of all gradients
        self.reducer = Reducer(
            parameters,
            self.process_group,
            self._fixed(parameters, range(len(parameters) - 1, -1, -1)),
            find_unused=find_unused_parameters and not static_graph,
            static=static_graph,
            divide_views=gradient_as_bucket_view,
            compressor=self._compressor,
        )
        # Whoever says how large buckets are, or cuts them, has them so; else the scheduler may change them.
        group = self.process_group
        self._adapts = bucket_cap_mb is None and group.size() > 1 and group._open().env.scheduler
        self._adaptation: Adaptation | None = None
        self.reducer.after = weakref.WeakMethod(self._reduced)
        handles = [_on_gradient(p, self.reducer, i) for i, p in enumerate(parameters.tensors)]
        self._unhook = weakref.finalize(self, _remove_all, handles)

    def _fixed(self, parameters: Parameters, order: Any) -> BucketPlan:
        whole = self._compressor is not None and not self._compressor.cuts
        return BucketPlan.fixed(parameters.numel, parameters.dtype, self._bucket_bytes, tuple(order), whole)

    # What torch's users know.

    @property
    def broadcast_buffers(self) -> bool:
        """The older word for ``forward_sync_buffers``."""
        return self.forward_sync_buffers

    def __getstate__(self) -> Any:
        raise ConfigError("DistributedDataParallel is not copied or pickled: do so with its .module, and wrap that")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forward passes in this context stay this rank's own, until a step outside of it averages."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What ``module`` returns."""
        with record_function("DistributedDataParallel.forward"):
            self._before_forward()
            output = self.module(*inputs, **kwargs)
            self._after_forward(output)
            return output

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Call ``hook(state, bucket)`` for each bucket, in place of its all_reduce; it returns a future.

        ``bucket`` has the methods of ``torch.distributed.GradBucket``. The hook divides by the number of ranks.
        """
        if not callable(hook):
            raise TypeError("a communication hook must be callable")
        self.reducer.set_hook(state, hook)

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Join:
        """A context in which ranks may have different numbers of steps: who is through takes part with zeros."""
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank that is through does for the others."""
        self._divide_by_initial_size = bool(kwargs.get("divide_by_initial_world_size", True))
        return DdpJoinHook(self)

    @property
    def join_device(self) -> torch.device:
        """Where :class:`Join` puts its tensors."""
        return self.device

    @property
    def join_process_group(self) -> Any:
        """Over which :class:`Join` counts."""
        return self.process_group

    # What the scheduler needs.

    @property
    def bucket_plan(self) -> BucketPlan:
        """The partition in use."""
        return self.reducer.plan

    def adopt(self, plan: BucketPlan) -> None:
        """Use another partition from the next step on. All ranks must do so between the same two steps.

        Gradients, and so the optimizer's view of them, stay what they are; in deterministic mode so does every bit of
        the training. The scheduler leaves the buckets alone from then on.

        Raises:
            ConfigError: a reduction is under way, or the plan is not one for these parameters.
        """
        self._arranged, self._adapts = True, False
        if self._adaptation is not None:
            self._adaptation.close()
            self._adaptation = None
        self.reducer.adopt(plan)

    @property
    def compressor(self) -> Compressor | None:
        """What compresses, and says what it chose; None: nothing does."""
        return self._compressor

    def compression_state(self) -> dict[str, Any]:
        """What compression has to remember on this rank, between steps: errors, and what its policy has seen.

        Save one for each rank, beside the ``state_dict()`` of module and optimizer.

        Raises:
            ConfigError: there is no compression.
        """
        return self._compressing().state_dict()

    def load_compression_state(self, state: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        """Take up this rank's :meth:`compression_state`, or (a list) those of all ranks of a world of any size.

        All ranks must do so between the same two steps. In a world of the same size training goes on with the same
        bits, whatever the buckets are.

        Raises:
            ConfigError: there is no compression, or the state is not one of this kind of it.
        """
        self._compressing().load(state)

    def _compressing(self) -> Compressor:
        if self._compressor is None:
            raise ConfigError("DistributedDataParallel: it was made without compression")
        return self._compressor

    def timeline(self) -> Timeline:
        """When the last averaged backward had each gradient on this rank, in seconds from the end of forward on."""
        return self.reducer.timeline()

    # Inside.

    def _before_forward(self) -> None:
        counted = Join.notify_join_context(self)
        self._divisor_work = None if self._join_config.enable and self._divide_by_initial_size else counted
        if torch.is_grad_enabled():
            self.arrange()
            if self._adaptation is not None:
                self._adaptation.adopt()
        if self.syncs_buffers():
            self.sync_buffers(self.common_rank(True) if self._join_config.enable else 0)
        if self._join_config.enable:
            self.asks_for_sync(self.require_backward_grad_sync)

    def _after_forward(self, output: Any) -> None:
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self.require_forward_param_sync = True
            self.reducer.prepare(list(tensors_in(output)) if self.find_unused_parameters or self.static_graph else [])
            if self._divisor_work is not None:
                self.reducer.set_divisor(float(self._divisor_work.get_future().wait()[0].item()))
        else:
            self.require_forward_param_sync = False

    def _reduced(self) -> None:
        """All ranks have the averages of a step."""
        if not self._adapts or not self._arranged or self._join_config.enable or self.reducer.has_hook:
            return
        if self._adaptation is None:
            free = not self.find_unused_parameters or self.static_graph
            if self._compressor is not None and not self._compressor.cuts:
                free = False  # the scheduler may cut parameters
            self._adaptation = Adaptation(self.reducer, self.process_group, free_buckets=free, codecs=self._codecs)
        self._adaptation.reduced()

    def arrange(self) -> None:
        """After the first step: buckets in the order in which the slowest ranks had the gradients. A collective."""
        if self._arranged or not self.reducer.reductions:
            return
        self._arranged = True
        ready_s = torch.tensor(self.reducer.timeline().ready_s, dtype=torch.float64)
        dist.all_reduce(ready_s, dist.ReduceOp.MAX, group=self.process_group)
        parameters = self.reducer.parameters
        merged = Timeline(tuple(ready_s.tolist()), parameters.numel, parameters.dtype)
        self.reducer.adopt(self._fixed(parameters, merged.order()))

    def syncs_buffers(self) -> bool:
        """True if this step begins with a broadcast of buffers."""
        return self.require_forward_param_sync and self.forward_sync_buffers and bool(self._buffers_to_sync())

    def _buffers_to_sync(self) -> list[Tensor]:
        ignored = self.parameters_to_ignore
        return [buffer for name, buffer in self.module.named_buffers() if name not in ignored]

    def sync_buffers(self, root: int) -> None:
        """Give all ranks the buffers of ``root``."""
        buffers = self._buffers_to_sync()
        keep: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
        with torch.no_grad(), keep(tuple(buffers)):
            dist._broadcast_coalesced(  # type: ignore[attr-defined]
                self.process_group, buffers, _BROADCAST_BYTES, root
            )

    def sync_module_states(self, root: int, buffers: bool) -> None:
        """Give all ranks the parameters, and the buffers, of ``root``."""
        _sync_module_states(
            module=self.module,
            process_group=self.process_group,
            broadcast_bucket_size=_BROADCAST_BYTES,
            src=root,
            params_and_buffers_to_ignore=self.parameters_to_ignore,
            broadcast_buffers=buffers,
        )

    def asks_for_sync(self, wanted: bool) -> bool:
        """Tell ranks that have joined whether there will be gradients; True if any rank says so."""
        flag = torch.ones(1) if wanted else torch.zeros(1)
        dist.all_reduce(flag, group=self.process_group)
        return bool(flag.item())

    def common_rank(self, candidate: bool) -> int:
        """The highest rank that is a candidate."""
        rank = torch.tensor([self.process_group.rank() if candidate else -1])
        dist.all_reduce(rank, dist.ReduceOp.MAX, group=self.process_group)
        return int(rank.item())


def _group(process_group: Any, device_mesh: Any) -> HcclProcessGroup:
    if device_mesh is not None:
        if process_group is not None:
            raise ConfigError("DistributedDataParallel: either process_group or device_mesh")
        if device_mesh.ndim != 1:
            raise ConfigError(
                f"DistributedDataParallel: a device_mesh of {device_mesh.ndim} dimensions; 1 was expected"
            )
        process_group = device_mesh.get_group(mesh_dim=0)
    group: Any = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, HcclProcessGroup):
        name = group.name() if hasattr(group, "name") else type(group).__name__
        raise ConfigError(
            f"DistributedDataParallel: the process group is {name}'s; make one with the backend hccl_py, "
            "or use torch.nn.parallel.DistributedDataParallel"
        )
    return group


def _on_gradient(parameter: Tensor, reducer: Reducer, index: int) -> Any:
    """Tell the reducer about each gradient, as long as there is one: a parameter must not keep it alive."""
    found = weakref.ref(reducer)

    def tell(_: Tensor) -> None:
        alive = found()
        if alive is not None:
            alive.gradient(index)

    return parameter.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]


def _remove_all(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


skip_frames(Reducer, DistributedDataParallel)
skip_only(vars(DistributedDataParallel)["forward"])

__all__ = ["DistributedDataParallel"]
