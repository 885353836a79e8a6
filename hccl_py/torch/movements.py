"""The collectives that only move data, as requests: barrier, broadcast, gathers, scatter, all_to_all.

All checks, and no byte moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType
from hccl_py.torch import tensors as memory
from hccl_py.torch.dtypes import wire_type
from hccl_py.torch.requests import Request, check_length, check_root, scatter_home


def barrier() -> Request:
    """Nothing to move; nobody leaves before all have come."""
    return Request(Collective.BARRIER, DType.UINT8, 0, 0, 0, (), [])


def broadcast(tensor: Tensor, root: int, rank: int, size: int) -> Request:
    """``tensor`` of all ranks becomes that of the root."""
    call = "broadcast"
    memory.check(tensor, call)
    check_root(root, size, call)
    dtype, units = wire_type(tensor.dtype, call)
    home, copies = (memory.readable(tensor), ()) if rank == root else memory.writable(tensor, call)
    ptr = home.data_ptr()
    return Request(
        Collective.BROADCAST,
        dtype,
        ptr,
        ptr,
        home.numel() * units,
        (home, tensor),
        [tensor],
        root=root,
        copies=copies,
    )


def all_gather(outputs: Sequence[Tensor], tensor: Tensor, rank: int, size: int) -> list[Request]:
    """``outputs[r]`` becomes ``tensor`` of rank r.

    Sizes may differ between ranks, if all ranks know them: then it is one broadcast from each rank, so that each size
    is checked against that of its owner.
    """
    call = "all_gather"
    check_length(outputs, size, "outputs", call)
    memory.check(tensor, call)
    memory.same_dtype(outputs, tensor.dtype, call)
    if outputs[rank].numel() != tensor.numel():
        raise ConfigError(
            f"{call}: rank {rank} gives {tensor.numel()} elements, but outputs[{rank}] has {outputs[rank].numel()}"
        )
    if any(output.numel() != tensor.numel() for output in outputs):
        return _broadcast_from_each(outputs, tensor, rank, call)
    dtype, units = wire_type(tensor.dtype, call)
    home, copies = memory.write_blocks(outputs, call)
    block_bytes = tensor.numel() * tensor.element_size()
    source = memory.apart(memory.readable(tensor), home, block_bytes * size, block_bytes * rank)
    request = Request(
        Collective.ALL_GATHER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        tensor.numel() * units,
        (source, home, tensor, *outputs),
        list(outputs),
        copies=copies,
    )
    return [request]


def all_gather_single(output: Tensor, tensor: Tensor, rank: int, size: int) -> Request:
    """``output`` becomes the ``tensor`` of all ranks back to back; it has ``size`` times as many elements."""
    call = "all_gather_into_tensor"
    memory.check(output, call)
    memory.check(tensor, call)
    memory.same_dtype((output,), tensor.dtype, call)
    if output.numel() != tensor.numel() * size:
        raise ConfigError(
            f"{call}: {size} ranks of {tensor.numel()} elements do not make an output of {output.numel()}"
        )
    dtype, units = wire_type(tensor.dtype, call)
    home, copies = memory.writable(output, call)
    block_bytes = tensor.numel() * tensor.element_size()
    source = memory.apart(memory.readable(tensor), home, block_bytes * size, block_bytes * rank)
    return Request(
        Collective.ALL_GATHER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        tensor.numel() * units,
        (source, home, tensor, output),
        [output],
        copies=copies,
    )


def gather(outputs: Sequence[Tensor], tensor: Tensor, root: int, rank: int, size: int) -> Request:
    """``outputs[r]`` of the root becomes ``tensor`` of rank r; other ranks give no outputs. All of one size."""
    call = "gather"
    check_root(root, size, call)
    memory.check(tensor, call)
    dtype, units = wire_type(tensor.dtype, call)
    source = memory.readable(tensor)
    count = tensor.numel() * units
    if rank != root:
        if outputs:
            raise ConfigError(f"{call}: rank {rank} is not the root {root} and must not pass outputs")
        keep = (source, tensor)
        return Request(Collective.GATHER, dtype, source.data_ptr(), 0, count, keep, [tensor], root=root)
    check_length(outputs, size, "outputs", call)
    _check_even(outputs, tensor, call)
    home, copies = memory.write_blocks(outputs, call)
    block_bytes = tensor.numel() * tensor.element_size()
    source = memory.apart(source, home, block_bytes * size, block_bytes * rank)
    return Request(
        Collective.GATHER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        count,
        (source, home, tensor, *outputs),
        list(outputs),
        root=root,
        copies=copies,
    )


def scatter(output: Tensor, inputs: Sequence[Tensor], root: int, rank: int, size: int) -> Request:
    """``output`` of rank r becomes ``inputs[r]`` of the root; other ranks give no inputs. All of one size."""
    call = "scatter"
    check_root(root, size, call)
    memory.check(output, call)
    dtype, units = wire_type(output.dtype, call)
    home, copies = memory.writable(output, call)
    count = output.numel() * units
    if rank != root:
        if inputs:
            raise ConfigError(f"{call}: rank {rank} is not the root {root} and must not pass inputs")
        keep = (home, output)
        return Request(Collective.SCATTER, dtype, 0, home.data_ptr(), count, keep, [output], root=root, copies=copies)
    check_length(inputs, size, "inputs", call)
    _check_even(inputs, output, call)
    source = memory.read_blocks(inputs, call)
    block_bytes = output.numel() * output.element_size()
    home, copies = scatter_home(home, copies, output, source.data_ptr(), block_bytes * size, block_bytes * rank)
    return Request(
        Collective.SCATTER,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        count,
        (source, home, output, *inputs),
        [output],
        root=root,
        copies=copies,
    )


def all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> Request:
    """``outputs[r]`` becomes what rank r has in ``inputs[own rank]``. Sizes may differ, zero included."""
    call = "all_to_all"
    check_length(outputs, size, "outputs", call)
    check_length(inputs, size, "inputs", call)
    memory.same_dtype(outputs, inputs[0].dtype, call)
    dtype, units = wire_type(inputs[0].dtype, call)
    source = memory.read_blocks(inputs, call)
    home, copies = memory.write_blocks(outputs, call)
    total_bytes = sum(output.numel() * output.element_size() for output in outputs)
    if source.data_ptr() < home.data_ptr() + total_bytes and home.data_ptr() < _end(inputs, source):
        source = memory.read_blocks([block.clone() for block in inputs], call)
    return Request(
        Collective.ALL_TO_ALL,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        0,
        (source, home, *inputs, *outputs),
        list(outputs),
        copies=copies,
        in_counts=[block.numel() * units for block in inputs],
        out_counts=[block.numel() * units for block in outputs],
    )


def all_to_all_single(
    output: Tensor, tensor: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], size: int
) -> Request:
    """Part r of ``output`` becomes what rank r has in part ``own rank`` of ``tensor``.

    Parts are rows (dimension 0). Splits name the rows of each part; both empty means equal parts. All ranks must choose
    the same form, splits or none.
    """
    call = "all_to_all_single"
    memory.check(output, call)
    memory.check(tensor, call)
    memory.same_dtype((output,), tensor.dtype, call)
    dtype, units = wire_type(tensor.dtype, call)
    uneven = bool(out_splits) or bool(in_splits)
    out_counts = _split_counts(output, out_splits, size, units, "output", call)
    in_counts = _split_counts(tensor, in_splits, size, units, "input", call)
    if not uneven and out_counts != in_counts:
        raise ConfigError(f"{call}: {tensor.numel()} elements in but {output.numel()} out; pass split sizes")
    home, copies = memory.writable(output, call)
    total_bytes = output.numel() * output.element_size()
    in_place = 0 if not uneven else total_bytes
    source = memory.apart(memory.readable(tensor), home, total_bytes, in_place)
    request = Request(
        Collective.ALL_TO_ALL,
        dtype,
        source.data_ptr(),
        home.data_ptr(),
        in_counts[0],
        (source, home, tensor, output),
        [output],
        copies=copies,
    )
    if uneven:
        request.in_counts, request.out_counts = in_counts, out_counts
    return request


def _broadcast_from_each(outputs: Sequence[Tensor], tensor: Tensor, rank: int, call: str) -> list[Request]:
    dtype, units = wire_type(tensor.dtype, call)
    source = memory.readable(tensor)
    calls = []
    for root, output in enumerate(outputs):
        memory.check(output, call)
        home, copies = memory.writable(output, call)
        size_bytes = output.numel() * output.element_size()
        source = memory.apart(source, home, size_bytes, 0 if root == rank else size_bytes)
        calls.append((home, copies, output))
    return [
        Request(
            Collective.BROADCAST,
            dtype,
            source.data_ptr() if root == rank else home.data_ptr(),
            home.data_ptr(),
            output.numel() * units,
            (source, home, output, tensor),
            [output],
            root=root,
            copies=copies,
        )
        for root, (home, copies, output) in enumerate(calls)
    ]


def _split_counts(tensor: Tensor, splits: Sequence[int], size: int, units: int, name: str, call: str) -> list[int]:
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows * units if rows else 0
    if not splits:
        if rows % size:
            raise ConfigError(
                f"{call}: the {rows} rows of the {name} do not divide among {size} ranks; pass split sizes"
            )
        return [rows // size * row] * size
    check_length(splits, size, f"{name} split sizes", call)
    if sum(splits) != rows or min(splits) < 0:
        raise ConfigError(f"{call}: {name} split sizes {list(splits)} do not add up to the {rows} rows of the {name}")
    return [split * row for split in splits]


def _end(blocks: Sequence[Tensor], home: Tensor) -> int:
    return home.data_ptr() + sum(block.numel() * block.element_size() for block in blocks)


def _check_even(blocks: Sequence[Tensor], own: Tensor, call: str) -> None:
    memory.same_dtype(blocks, own.dtype, call)
    for index, block in enumerate(blocks):
        if block.numel() != own.numel():
            raise ConfigError(
                f"{call}: the block of rank {index} has {block.numel()} elements, the root's own has {own.numel()}"
            )
