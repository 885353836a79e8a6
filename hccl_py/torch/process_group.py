# mypy: disable-error-code="override,assignment"
# Torch's stubs overload these methods by argument type; here one method takes all forms.
"""The process group: c10d's methods over the engine, in pure Python.

Calls become requests (reductions.py, movements.py), requests run in the caller or start in the engine
(group_base.py), and what comes back is a work (work.py), never None: C++ callers would crash on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor, strided
from torch._C._distributed_c10d import PrefixStore

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, ReduceOp
from hccl_py.engine import Engine
from hccl_py.torch import movements, reductions, sparse
from hccl_py.torch import tensors as memory
from hccl_py.torch.dtypes import PLAIN, multiplied, premul_factor, reduce_op, short_op
from hccl_py.torch.group_base import GROUPS_OWN
from hccl_py.torch.messages import MessagingGroup, one
from hccl_py.torch.requests import Request
from hccl_py.torch.store import StoreBootstrap
from hccl_py.torch.work import HcclWork, WorkGroup, to_seconds

_ALL_REDUCE, _SUM = int(Collective.ALL_REDUCE), int(ReduceOp.SUM)
_OPTIONS = dist.AllreduceOptions
_TORCHS_SUM: Any = dist.ReduceOp.SUM


class HcclProcessGroup(MessagingGroup):
    """A torch process group over the ranks of one engine.

    Args:
        engine: connected; the group owns it from now on.
        store: handed to those who ask the group for one.
        blocking: every collective is complete when the call returns, asynchronous ones too. Then callbacks of futures
            may issue collectives (PowerSGD does).
    """

    # Collectives. Each has the argument forms of torch's own methods: lists and options, or plain tensors.

    def allreduce(
        self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> HcclWork:
        """Reduce one tensor over all ranks, in place. ``opts`` may be the operator itself."""
        device = self._device
        if (
            device is not None
            and type(opts) is _OPTIONS
            and type(tensors) is list
            and len(tensors) == 1
            and tensors[0].is_cuda
            and self._coalescing is None
            and self._batch is None
            and self._agreement is None
            and self._close.alive
        ):
            asynchronous = opts.asyncOp and not self._blocking
            number = short_op(opts.reduceOp)
            quick = None if number is None else device.quick_all_reduce(tensors[0], number, asynchronous)
            if quick is not None:
                self._sequence += 1
                return quick  # type: ignore[return-value]  # a work all the same
        if timeout is None and op is None:
            work = self._all_reduce_shortly(tensors, opts)
            if work is not None:
                return work
        tensor = one(tensors, "all_reduce")
        if tensor.layout is not strided:
            self._check_caller("all_reduce")
            sparse.all_reduce(self._open(), tensor, _operator(opts, op))
            self._sequence += 1
            return HcclWork(None, [tensor], self._completer)
        return self._issue(self._all_reduce_request(tensor, opts, op), opts, timeout)

    def _all_reduce_request(self, tensor: Tensor, opts: Any, op: Any) -> Request:
        factor = _factor(opts, op)
        if factor is None:
            return reductions.all_reduce(tensor, _operator(opts, op))
        memory.check(tensor, "all_reduce")
        memory.refuse_overlap(tensor, "all_reduce")
        scaled = multiplied(tensor, factor, "all_reduce")
        request = reductions.all_reduce(scaled, ReduceOp.SUM)
        request.copies += ((tensor, scaled),)
        request.result = [tensor]
        return request

    def _all_reduce_shortly(self, tensors: Any, opts: Any) -> HcclWork | None:
        """The short way of a plain tensor: one look at each of its properties, and straight to the native group.

        None, and nothing done: take the long way.
        """
        if type(tensors) is not list or len(tensors) != 1 or not (opts is None or type(opts) is _OPTIONS):
            return None
        tensor = tensors[0]
        plain = PLAIN.get(tensor.dtype) if type(tensor) is Tensor else None
        if plain is None or tensor.layout is not strided or not tensor.is_cpu or self._coalescing is not None:
            return None
        if self._agreement is not None:
            return None
        if not tensor.is_contiguous() or tensor.is_neg() or self._completer.is_current():
            return None
        asynchronous, operator = True, _SUM
        if opts is not None:
            if opts.timeout != GROUPS_OWN:
                return None
            asynchronous, reduction = opts.asyncOp, opts.reduceOp
            if reduction != _TORCHS_SUM:  # most are; the comparison costs a third of the conversion
                number = short_op(reduction)
                if number is None:
                    return None
                operator = number
        (dtype, defined), ptr, count = plain, tensor.data_ptr(), tensor.numel()
        if not defined[operator] or (count and not ptr):
            return None
        engine = self._open()
        if asynchronous and not self._blocking:
            handle = engine.start_shortly(_ALL_REDUCE, operator, dtype, 0, ptr, ptr, count, tensor)
            if handle is False:
                return None
            self._sequence += 1
            return HcclWork(handle, tensors, self._completer)
        if not engine.run_shortly(_ALL_REDUCE, operator, dtype, 0, ptr, ptr, count):
            return None
        self._sequence += 1
        return HcclWork(None, tensors, self._completer) if asynchronous else self._finished

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> WorkGroup:
        """Reduce several tensors, in place. All are checked before the first moves."""
        given = memory.each_apart(tensors)
        calls = [self._all_reduce_request(tensor, opts, None) for tensor in given]
        for request, tensor, copy in zip(calls, tensors, given, strict=True):
            if copy is not tensor:  # the same memory is twice in the list: each gets what it had at first, reduced
                request.copies += ((tensor, copy),)
                request.result = [tensor]
        return self._issue_all(calls, opts)

    def reduce(
        self,
        tensors: Sequence[Tensor] | Tensor,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> HcclWork:
        """Reduce one tensor to the root's. ``opts`` may be the root itself."""
        where = _root(opts, root)
        tensor = one(tensors, "reduce")
        given, factor = tensor, _factor(opts, op)
        if factor is not None:
            memory.check(tensor, "reduce")
            memory.refuse_overlap(tensor, "reduce")
            given, op = multiplied(tensor, factor, "reduce"), dist.ReduceOp.SUM
        request = reductions.reduce(given, _operator(opts, op), where, self._rank, self._size)
        if given is not tensor:
            request.copies += ((tensor, given),) if where == self._rank else ()
            request.result = [tensor]
        return self._issue(request, opts, timeout)

    def broadcast(
        self,
        tensors: Sequence[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> HcclWork:
        """Send the root's tensor to all. ``opts`` may be the root itself."""
        request = movements.broadcast(one(tensors, "broadcast"), _root(opts, root), self._rank, self._size)
        return self._issue(request, opts, timeout)

    def allgather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> HcclWork | WorkGroup:
        """Gather everybody's tensor into a list of tensors."""
        blocks = output_tensors if isinstance(input_tensors, Tensor) else _one_list(output_tensors, "all_gather")
        calls = movements.all_gather(blocks, one(input_tensors, "all_gather"), self._rank, self._size)
        return self._issue_some(calls, opts, timeout)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> HcclWork:
        """Gather everybody's tensor into one large tensor."""
        return self._issue(movements.all_gather_single(output, input, self._rank, self._size), opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> WorkGroup:
        """Several :meth:`all_gather_single` at once."""
        pairs = _paired(outputs, tensors, "all_gather_into_tensor_coalesced")
        return self._issue_all(
            [movements.all_gather_single(out, own, self._rank, self._size) for out, own in pairs], opts
        )

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: Any = None
    ) -> WorkGroup:
        """Several :meth:`allgather` at once: ``output_lists[r][i]`` becomes ``tensors[i]`` of rank r."""
        if any(len(of_rank) != len(tensors) for of_rank in output_lists):
            raise ConfigError(f"all_gather_coalesced: each output list must have {len(tensors)} tensors, as the inputs")
        calls = []
        for index, tensor in enumerate(tensors):
            blocks = [of_rank[index] for of_rank in output_lists]
            calls += movements.all_gather(blocks, tensor, self._rank, self._size)
        return self._issue_all(calls, opts)

    def gather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> HcclWork:
        """Gather everybody's tensor into a list at the root."""
        blocks = output_tensors if isinstance(input_tensors, Tensor) else (output_tensors[0] if output_tensors else [])
        request = movements.gather(blocks, one(input_tensors, "gather"), _root(opts, root), self._rank, self._size)
        return self._issue(request, opts, timeout)

    def scatter(
        self,
        output_tensors: Sequence[Tensor] | Tensor,
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> HcclWork:
        """Give each rank one tensor of the root's list."""
        blocks = input_tensors if isinstance(output_tensors, Tensor) else (input_tensors[0] if input_tensors else [])
        request = movements.scatter(one(output_tensors, "scatter"), blocks, _root(opts, root), self._rank, self._size)
        return self._issue(request, opts, timeout)

    def reduce_scatter(
        self,
        output_tensors: Sequence[Tensor] | Tensor,
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> HcclWork | WorkGroup:
        """Reduce a list of tensors over all ranks; each rank keeps one of them."""
        blocks = input_tensors if isinstance(output_tensors, Tensor) else _one_list(input_tensors, "reduce_scatter")
        output = one(output_tensors, "reduce_scatter")
        factor = _factor(opts, op)
        if factor is not None:
            blocks, op = [multiplied(block, factor, "reduce_scatter") for block in blocks], dist.ReduceOp.SUM
        calls = reductions.reduce_scatter(output, blocks, _operator(opts, op), self._rank, self._size)
        return self._issue_some(calls, opts, timeout)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> HcclWork:
        """Reduce one large tensor over all ranks; each rank keeps its part."""
        return self._issue(self._reduce_scatter_request(output, tensor, opts), opts)

    def _reduce_scatter_request(self, output: Tensor, tensor: Tensor, opts: Any) -> Request:
        factor, op = _factor(opts, None), None
        if factor is not None:
            tensor, op = multiplied(tensor, factor, "reduce_scatter_tensor"), dist.ReduceOp.SUM
        return reductions.reduce_scatter_single(output, tensor, _operator(opts, op), self._rank, self._size)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> WorkGroup:
        """Several :meth:`reduce_scatter_single` at once."""
        pairs = _paired(outputs, tensors, "reduce_scatter_tensor_coalesced")
        return self._issue_all([self._reduce_scatter_request(out, own, opts) for out, own in pairs], opts)

    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> HcclWork:
        """Send a list of tensors, one to each rank."""
        return self._issue(movements.all_to_all(output_tensors, input_tensors, self._size), opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> HcclWork:
        """Send parts of one tensor, one to each rank."""
        request = movements.all_to_all_single(output, tensor, output_split_sizes, input_split_sizes, self._size)
        return self._issue(request, opts, timeout)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> HcclWork:
        """Return when all ranks have called."""
        return self._issue(movements.barrier(), opts, timeout)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> HcclProcessGroup | None:
        """A new group of ``ranks`` of this one; None, at once, on other ranks. Its members must all call.

        Args:
            group_name: by default one made of the ranks, which is good for one such group at a time.
        """
        members = sorted(ranks)
        if len(set(members)) != len(members) or not members or not 0 <= members[0] <= members[-1] < self._size:
            raise ConfigError(f"split_group: {list(ranks)} are not different ranks of this group of {self._size}")
        if self._rank not in members:
            return None
        name = group_name or f"{self._group_name}/split/" + "-".join(map(str, members))
        store = PrefixStore(f"{name}/", self.get_group_store())
        seconds = to_seconds(timeout) or self._open().timeout_s
        bootstrap = StoreBootstrap(store, members.index(self._rank), len(members), seconds)
        engine = Engine(bootstrap, env=self._engine.env, timeout_s=seconds)
        group = HcclProcessGroup(engine, store, blocking=self._blocking, exchange=bootstrap.allgather)
        group.setGroupName(name)
        group.setGroupDesc(group_desc or f"split of {self._group_name}")
        return group

    splitGroup = split_group

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _one_list(lists: Sequence[Sequence[Tensor]], call: str) -> Sequence[Tensor]:
    if len(lists) != 1:
        raise ConfigError(
            f"{call}: {len(lists)} lists of tensors given; a rank has one device and passes one list a call"
        )
    return lists[0]


def _paired(outputs: Sequence[Tensor], inputs: Sequence[Tensor], call: str) -> list[tuple[Tensor, Tensor]]:
    if len(outputs) != len(inputs):
        raise ConfigError(f"{call}: {len(outputs)} outputs for {len(inputs)} inputs")
    return list(zip(outputs, inputs, strict=True))


def _operator(opts: Any, op: Any) -> ReduceOp:
    """The engine's operator from options, from an operator in their place, or SUM."""
    if op is None:
        op = getattr(opts, "reduceOp", opts)
    return reduce_op(dist.ReduceOp.SUM if op is None or isinstance(op, int) else op)


def _factor(opts: Any, op: Any) -> Any:
    """The factor of PREMUL_SUM, or None."""
    return premul_factor(getattr(opts, "reduceOp", opts) if op is None else op)


def _root(opts: Any, root: int | None) -> int:
    if root is not None:
        return root
    return int(getattr(opts, "rootRank", opts) or 0)
