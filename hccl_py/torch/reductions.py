"""The collectives that add up, as requests: all_reduce, reduce, reduce_scatter. All checks, and no byte moved."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, ReduceOp
from hccl_py.torch import tensors as memory
from hccl_py.torch.dtypes import reduce_type
from hccl_py.torch.requests import Request, check_length, check_root, scatter_home
from hccl_py.torch.tensors import Copy


def all_reduce(tensor: Tensor, op: ReduceOp) -> Request:
    """``tensor``, of any shape, becomes the reduction over all ranks."""
    call = "all_reduce"
    memory.check(tensor, call)
    dtype, units = reduce_type(op, tensor.dtype, call)
    home, copies = _in_and_out(tensor, call)
    ptr = home.data_ptr()
    return Request(
        Collective.ALL_REDUCE, dtype, ptr, ptr, home.numel() * units, (home, tensor), [tensor], op, copies=copies
    )


def reduce(tensor: Tensor, op: ReduceOp, root: int, rank: int, size: int) -> Request:
    """``tensor`` of the root becomes the reduction over all ranks; elsewhere it is only read."""
    call = "reduce"
    memory.check(tensor, call)
    check_root(root, size, call)
    dtype, units = reduce_type(op, tensor.dtype, call)
    home, copies = _in_and_out(tensor, call) if rank == root else (memory.readable(tensor), ())
    ptr = home.data_ptr()
    out_ptr = ptr if rank == root else 0
    return Request(
        Collective.REDUCE, dtype, ptr, out_ptr, home.numel() * units, (home, tensor), [tensor], op, root, copies
    )


def reduce_scatter(output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, rank: int, size: int) -> list[Request]:
    """``output`` becomes the reduction of ``inputs[rank]`` over all ranks.

    Sizes may differ between blocks: then it is one reduce to each rank, so that each size is checked on its own.
    """
    call = "reduce_scatter"
    check_length(inputs, size, "inputs", call)
    memory.check(output, call)
    memory.same_dtype(inputs, output.dtype, call)
    if inputs[rank].numel() != output.numel():
        raise ConfigError(
            f"{call}: inputs[{rank}] has {inputs[rank].numel()} elements, but the output has {output.numel()}"
        )
    dtype, units = reduce_type(op, output.dtype, call)
    if any(block.numel() != output.numel() for block in inputs):
        return _reduce_to_each(output, inputs, op, rank, call)
    source = memory.read_blocks(inputs, call)
    home, copies = memory.writable(output, call)
    block_bytes = output.numel() * output.element_size()
    home, copies = scatter_home(home, copies, output, source.data_ptr(), block_bytes * size, block_bytes * rank)
    request = Request(
        Collective.REDUCE_SCATTER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        output.numel() * units,
        (source, home, output, *inputs),
        [output],
        op,
        copies=copies,
    )
    return [request]


def reduce_scatter_single(output: Tensor, tensor: Tensor, op: ReduceOp, rank: int, size: int) -> Request:
    """``output`` becomes the reduction of block ``rank`` of ``tensor``, which has ``size`` times as many elements."""
    call = "reduce_scatter_tensor"
    memory.check(output, call)
    memory.check(tensor, call)
    memory.same_dtype((tensor,), output.dtype, call)
    if tensor.numel() != output.numel() * size:
        raise ConfigError(
            f"{call}: an input of {tensor.numel()} elements does not make {size} outputs of {output.numel()}"
        )
    dtype, units = reduce_type(op, output.dtype, call)
    source = memory.readable(tensor)
    block_bytes = output.numel() * output.element_size()
    home, copies = memory.writable(output, call)
    home, copies = scatter_home(home, copies, output, source.data_ptr(), block_bytes * size, block_bytes * rank)
    return Request(
        Collective.REDUCE_SCATTER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        output.numel() * units,
        (source, home, output, tensor),
        [output],
        op,
        copies=copies,
    )


def _reduce_to_each(output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, rank: int, call: str) -> list[Request]:
    dtype, units = reduce_type(op, output.dtype, call)
    home, copies = memory.writable(output, call)
    size_bytes = output.numel() * output.element_size()
    calls = []
    for root, block in enumerate(inputs):
        memory.check(block, call)
        source = memory.apart(memory.readable(block), home, size_bytes, 0 if root == rank else size_bytes)
        calls.append(
            Request(
                Collective.REDUCE,
                dtype,
                source.data_ptr(),
                home.data_ptr() if root == rank else 0,
                block.numel() * units,
                (source, home, block, output),
                [output] if root == rank else [],
                op,
                root,
                copies if root == rank else (),
            )
        )
    return calls


def _in_and_out(tensor: Tensor, call: str) -> tuple[Tensor, tuple[Copy, ...]]:
    if memory.is_plain(tensor):
        return tensor, ()
    memory.refuse_overlap(tensor, call)
    home = memory.readable(tensor)
    return home, ((tensor, home),)
