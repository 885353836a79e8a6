"""ShardedStep: see :class:`ShardedStep`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes

from hccl_py.core.errors import ConfigError
from hccl_py.torch.dynamo import skip_frames
from hccl_py.torch.process_group import HcclProcessGroup
from hccl_py.torch.sharded.bucket import Bucket
from hccl_py.torch.sharded.cutting import ELEMENTWISE, all_parameters, cut
from hccl_py.torch.sharded.guard import check, guard
from hccl_py.torch.sharded.norms import clip, spread_infinity
from hccl_py.torch.sharded.state import load_state, whole_state


class ShardedStep:
    """Trains a module on all ranks of a process group, each of which steps a shard of the parameters.

    In place of DistributedDataParallel: gradients are reduce-scattered while backward runs, :meth:`step` updates this
    rank's shard, and the parameters are gathered while the next forward pass runs, which waits for each parameter when
    it reads it. The bytes are those of an all-reduce, but half of them travel under the forward pass, and each rank
    keeps 1/n of the optimizer's state::

        optimizer = torch.optim.AdamW(model.parameters())
        sharded = hccl_py.torch.ShardedStep(optimizer, model)
        for x, y in data:
            sharded.zero_grad()
            loss(model(x), y).backward()
            sharded.step()

    What comes out is what DistributedDataParallel and ``optimizer.step()`` give. All ranks make the same calls.

    * After backward ``.grad`` of the parameters is None, so ``torch.nn.utils.clip_grad_norm_`` finds nothing: averages
      exist by shard, for :meth:`clip_grad_norm_` of this object.
    * A ``torch.amp.GradScaler`` takes this object in place of the optimizer; schedulers of learning rates take the
      optimizer, whose groups keep their options but hold shards from now on.
    * One backward pass that is averaged for each step, in which every parameter of the optimizer gets a gradient; more
      passes before it under :meth:`no_sync`.
    * Read parameters as attributes of their modules, or by ``state_dict()``: who holds the tensors themselves calls
      :meth:`wait` first. A forward pass that reads them in other ways is an error in its backward pass.
    * Buffers are each rank's own after the start.

    Args:
        optimizer: of an element-wise kind: SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop, Rprop,
            ASGD. State that it has already is taken over.
        module: all parameters of the optimizer are this module's; they and its buffers become rank 0's.
        process_group: of the backend ``"hccl_py"``; None: the default one.
        bucket_cap_mb: size of buckets in MiB; None: a 16th of all parameters, 1 to 25 MiB.
        overlap: False: :meth:`step` waits until the parameters are there. Compiled and scripted modules need that, and
            modules that several objects of this kind serve.

    Raises:
        ConfigError: another optimizer; parameters that are not the module's, not trained, not in host memory; a
            compiled module with ``overlap``, or one that another ShardedStep serves.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        module: nn.Module,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        overlap: bool = True,
    ) -> None:
        if type(optimizer) not in ELEMENTWISE:
            known = ", ".join(one.__name__ for one in ELEMENTWISE)
            raise ConfigError(
                f"ShardedStep: {type(optimizer).__name__} is not known to be element-wise; there are {known}"
            )
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise ConfigError(f"ShardedStep: bucket_cap_mb is {bucket_cap_mb}, not above 0")
        group: Any = dist.group.WORLD if process_group is None else process_group
        if not isinstance(group, HcclProcessGroup):
            raise ConfigError("ShardedStep: the process group is not of the backend hccl_py")
        self.optimizer, self.module, self.process_group = optimizer, module, group
        self._parameters = all_parameters(optimizer, module)
        places = {id(p): n for n, p in enumerate(p for one in optimizer.param_groups for p in one["params"])}
        self._numbers = [places[id(p)] for p in self._parameters.tensors]  # in the state_dict, by index
        if overlap:
            check(module)
        full = optimizer.state_dict() if optimizer.state else None
        _verify_param_shape_across_processes(group, list(self._parameters.tensors))
        _sync_module_states(
            module=module, process_group=group, broadcast_bucket_size=250 << 20, src=0,
            params_and_buffers_to_ignore=(), broadcast_buffers=True,
        )  # fmt: skip
        self._buckets = cut(optimizer, self._parameters, group._open(), bucket_cap_mb)
        self._bucket_of = {i: bucket for bucket in self._buckets for i in bucket.order}
        self._addresses = [p.data_ptr() for p in self._parameters.tensors]
        for number, options in enumerate(optimizer.param_groups):
            options["params"] = [bucket.shard for bucket in self._buckets if bucket.group == number]
        self._num_groups = len(optimizer.param_groups)
        optimizer.state.clear()
        if full is not None:
            self.load_state_dict(full)
        self._syncs = True
        self._next = 0  # the bucket to be scattered next
        self._begun = self._scattered = self._told = self._steps = False
        self._on_the_way = 0  # buckets whose parameters are being gathered
        handles = [_on_gradient(p, self, i) for i, p in enumerate(self._parameters.tensors)]
        undo = self._guard(module) if overlap else None
        self._overlaps = overlap
        _refuse_steps(optimizer, self)
        self._detach = weakref.finalize(self, _detach, self._buckets, handles, undo)
        self._detach.atexit = False

    def _guard(self, module: nn.Module) -> Callable[[], None]:
        here = weakref.ref(self)
        index_of = {id(p): i for i, p in enumerate(self._parameters.tensors)}

        def arrive(parameter: nn.Parameter) -> None:
            sharded = here()
            if sharded is not None and sharded._on_the_way:
                index = index_of.get(id(parameter))
                if index is not None:
                    sharded._arrive(sharded._bucket_of[index])

        return guard(module, arrive)

    # Backward.

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes in this context stay this rank's own, until one outside of it averages."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def _gradient(self, index: int) -> None:
        """Called by autograd: ``.grad`` of this parameter is complete."""
        if self._on_the_way and (self._syncs or self._bucket_of[index].under_way):
            self._refuse_early_reads()
        if not self._syncs:
            return
        if not self._begun:
            self._begin()
        bucket, parameter = self._bucket_of[index], self._parameters.tensors[index]
        if index not in bucket.missing:
            raise ConfigError(
                f"ShardedStep: {self._parameters.names[index]!r} got a second gradient in one backward pass; after a "
                "backward pass that failed call zero_grad()"
            )
        grad, parameter.grad = parameter.grad, None
        assert grad is not None
        grad = grad.to_dense() if grad.is_sparse else grad
        torch.mul(grad.detach(), 1.0 / self.process_group.size(), out=bucket.gradients.views[index])
        bucket.missing.discard(index)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._buckets[self._next].scatter()
            self._next += 1

    def _refuse_early_reads(self) -> None:
        """Backward runs, so forward has read all parameters: whatever has not arrived was read without waiting."""
        late = [self._parameters.names[i] for bucket in self._buckets if bucket.under_way for i in bucket.order]
        self.wait()
        raise ConfigError(
            f"ShardedStep: forward has used {len(late)} parameters before they arrived ({_some(late)}): it does "
            "not read them as attributes of their modules, or does not use them; pass overlap=False, or call wait() "
            "before forward"
        )

    def _begin(self) -> None:
        if self._scattered or any(bucket.shard.grad is not None for bucket in self._buckets):
            raise ConfigError(
                "ShardedStep: the averages of the last backward pass were neither used nor dropped: call step() or "
                "zero_grad() after each pass, and accumulate under no_sync()"
            )
        for bucket in self._buckets:
            bucket.wait()  # a pass that failed has left them
        moved = [
            name
            for name, parameter, address in zip(
                self._parameters.names, self._parameters.tensors, self._addresses, strict=True
            )
            if parameter.data_ptr() != address
        ]
        if moved:
            raise ConfigError(
                f"ShardedStep: {len(moved)} parameters have other memory than at the start ({_some(moved)}): convert "
                "or move the module before ShardedStep takes it"
            )
        self._begun, self._scattered, self._told, self._next = True, False, False, 0
        for bucket in self._buckets:
            bucket.missing = set(bucket.order)
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._begun = False
        missing = [self._parameters.names[i] for bucket in self._buckets for i in sorted(bucket.missing)]
        if missing:
            raise ConfigError(
                f"ShardedStep: backward made no gradient for {len(missing)} parameters ({_some(missing)}); each must "
                "get one in every step"
            )
        self._scattered = True

    def _finish(self) -> None:
        """Wait for the averages of this rank's shards."""
        if self._scattered:
            for bucket in self._buckets:
                bucket.wait()
                bucket.shard.grad = bucket.average
            self._scattered = False

    # Step.

    def step(self, closure: None = None) -> None:
        """Update this rank's shards and begin to gather the parameters.

        Raises:
            ConfigError: a closure: it would run the forward pass in between; no backward pass has averaged gradients;
                the optimizer has got more parameters.
        """
        if closure is not None:
            raise ConfigError("ShardedStep: no closure; call backward before step()")
        if len(self.optimizer.param_groups) != self._num_groups:
            raise ConfigError(
                "ShardedStep: the optimizer has got another group of parameters; they are cut at the start"
            )
        self._averages("step()")
        self.wait()
        self._steps = True
        try:
            self.optimizer.step()
        finally:
            self._steps = False
        for bucket in self._buckets:
            bucket.shard.grad = None
        for bucket in reversed(self._buckets):  # what forward needs first
            bucket.gather()
        self._on_the_way = len(self._buckets)
        if not self._overlaps:
            self.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, averaged or not, also of a backward pass that failed. They become None in any case."""
        self._finish()
        self._begun = False
        for bucket in self._buckets:
            bucket.shard.grad = None
        for parameter in self._parameters.tensors:
            parameter.grad = None

    def wait(self) -> None:
        """Until all parameters are there; whoever reads one as its module's attribute waits for that one anyway."""
        if self._on_the_way:
            for bucket in self._buckets:
                bucket.wait()
            self._on_the_way = 0

    def _averages(self, who: str) -> list[Tensor]:
        """Of this rank's shards; for one that cannot do without."""
        self._finish()
        grads = [bucket.shard.grad for bucket in self._buckets if bucket.shard.grad is not None]
        if not grads:
            raise ConfigError(f"ShardedStep: {who} without averages: no backward pass outside of no_sync() has ended")
        return grads

    def _arrive(self, bucket: Bucket) -> None:
        if bucket.under_way:
            bucket.wait()
            self._on_the_way -= 1

    # Norms and scales.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's, with averaged gradients: for GradScaler. A collective between backward and step.

        A gradient that is not finite on one rank makes one element of every rank's infinite, so that all skip the step.
        """
        self._finish()
        grads = [bucket.shard.grad for bucket in self._buckets if bucket.shard.grad is not None]
        if grads and not self._told:
            self._told = True
            spread_infinity(grads, self.process_group)
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """As ``torch.nn.utils.clip_grad_norm_`` of all averages; returns their norm before. A collective.

        Raises:
            ConfigError: the norm is neither positive nor infinite, or is another than the second for complex
                parameters; no backward pass has averaged gradients.
        """
        if not norm_type > 0:
            raise ConfigError(f"ShardedStep: clip_grad_norm_ by norm {norm_type}; a positive one was expected")
        if norm_type != 2.0 and any(p.is_complex() for p in self._parameters.tensors):
            raise ConfigError(
                f"ShardedStep: clip_grad_norm_ by norm {norm_type} with complex parameters; 2 was expected"
            )
        return clip(self._averages("clip_grad_norm_()"), max_norm, norm_type, self.process_group)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """What the optimizer's state_dict() would be without shards: of all ranks together. A collective."""
        return whole_state(self.optimizer, self._buckets, self._numbers)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's part of a state_dict(), of this or of an ordinary optimizer of the same kind.

        Raises:
            ConfigError: it is for other groups of parameters, other shapes, or parameters that took different numbers
                of steps. Nothing has been taken then.
        """
        load_state(self.optimizer, self._buckets, self._numbers, self._parameters, state_dict)

    def close(self) -> None:
        """Wait for the parameters and leave the module as an ordinary one, the optimizer of no more use. Idempotent."""
        self.wait()
        self._detach()


def _on_gradient(parameter: Tensor, sharded: ShardedStep, index: int) -> Any:
    """Tell it about each gradient, as long as there is one."""
    found = weakref.ref(sharded)

    def tell(_: Tensor) -> None:
        alive = found()
        if alive is not None:
            alive._gradient(index)

    return parameter.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]


def _refuse_steps(optimizer: torch.optim.Optimizer, sharded: ShardedStep) -> None:
    """Whoever calls the optimizer's step() himself is told; it would change nothing."""
    found = weakref.ref(sharded)

    def check_caller(*_: Any) -> None:
        alive = found()
        if alive is None or not alive._steps:
            raise ConfigError(
                "ShardedStep: the optimizer's own step() would change nothing; call step() of ShardedStep"
            )

    optimizer.register_step_pre_hook(check_caller)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _detach(buckets: list[Bucket], handles: list[Any], undo: Callable[[], None] | None) -> None:
    for bucket in buckets:
        bucket.wait()
    for handle in handles:
        handle.remove()
    if undo is not None:
        undo()


skip_frames(ShardedStep)

__all__ = ["ELEMENTWISE", "ShardedStep"]
