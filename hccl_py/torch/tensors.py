"""Tensors as plain memory: what the engine may read and write directly, and what goes through a copy.

The engine sees pointers and counts only. A tensor whose elements do not lie side by side, or whose values are not its
memory (lazy conjugates and negations), is copied in and out; what can be neither is refused before any byte moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hccl_py.core.errors import ConfigError

Copy = tuple[Tensor, Tensor]  # (to, from), made once the engine is done


def check(tensor: Tensor, call: str) -> None:
    """Refuse what the engine cannot serve at all.

    Args:
        call: name of the collective, for the message.

    Raises:
        ConfigError: for tensors that are not strided, not in host or GPU memory, or have no memory.
    """
    if tensor.layout is not torch.strided:
        raise ConfigError(f"{call}: {tensor.layout} tensors are not supported; convert with .to_dense() first")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ConfigError(
            f"{call}: the tensor is on {tensor.device}, and hccl_py serves CPU and CUDA tensors; use .cpu() first"
        )
    if tensor.numel() and not tensor.data_ptr():
        raise ConfigError(f"{call}: {type(tensor).__name__} has no memory of its own; pass the tensor that it wraps")


def is_plain(tensor: Tensor) -> bool:
    """True if the elements lie side by side and memory and values are the same."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def readable(tensor: Tensor) -> Tensor:
    """The same elements as plain memory: the tensor itself, or a copy."""
    if is_plain(tensor):
        return tensor
    with torch.no_grad():
        return tensor.resolve_conj().resolve_neg().contiguous()


def writable(tensor: Tensor, call: str) -> tuple[Tensor, tuple[Copy, ...]]:
    """Plain memory for results, and the copies that bring them home.

    Raises:
        ConfigError: if several elements of ``tensor`` share memory, so that it cannot hold results.
    """
    if is_plain(tensor):
        return tensor, ()
    refuse_overlap(tensor, call)
    staging = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return staging, ((tensor, staging),)


def refuse_overlap(tensor: Tensor, call: str) -> None:
    """Raise ConfigError if two elements may share memory: each stride must step over all smaller dimensions."""
    if not tensor.numel():
        return
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ConfigError(
                f"{call}: elements of the tensor share memory (expanded or overlapping view); use .clone()"
            )
        reach += stride * (size - 1)


def same_dtype(tensors: Sequence[Tensor], dtype: torch.dtype, call: str) -> None:
    """Raise ConfigError unless all tensors have ``dtype``."""
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise ConfigError(f"{call}: tensors of different types, {dtype} and {tensor.dtype}, in one call")


def read_blocks(tensors: Sequence[Tensor], call: str) -> Tensor:
    """One plain tensor that holds the given ones back to back; a copy unless they lie so already."""
    for tensor in tensors:
        check(tensor, call)
    same_dtype(tensors, tensors[0].dtype, call)
    if _back_to_back(tensors):
        return tensors[0]
    packed, parts = _split_like(tensors)
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            part.copy_(tensor)
    return packed


def write_blocks(tensors: Sequence[Tensor], call: str) -> tuple[Tensor, tuple[Copy, ...]]:
    """Plain memory for results back to back, and the copies that bring them to ``tensors``."""
    for tensor in tensors:
        check(tensor, call)
    same_dtype(tensors, tensors[0].dtype, call)
    if _back_to_back(tensors):
        return tensors[0], ()
    for tensor in tensors:
        if not is_plain(tensor):
            refuse_overlap(tensor, call)
    staging, parts = _split_like(tensors)
    return staging, tuple(zip(tensors, parts, strict=True))


def apart(source: Tensor, target: Tensor, target_bytes: int, offset_bytes: int) -> Tensor:
    """``source``, or a copy of it if writing the target would disturb it.

    Args:
        source: plain memory to be read.
        target: its ``data_ptr`` starts the ``target_bytes`` that will be written.
        offset_bytes: where in the target the source may lie (in place); outside that, any overlap needs a copy.
    """
    source_bytes = source.numel() * source.element_size()
    start, out = source.data_ptr(), target.data_ptr()
    if start == out + offset_bytes or start + source_bytes <= out or out + target_bytes <= start:
        return source
    with torch.no_grad():
        return source.clone()


def each_apart(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """``tensors``, or copies of all of them if two share memory."""
    spans = sorted((tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in tensors)
    if all(start + size_bytes <= after for (start, size_bytes), (after, _) in pairwise(spans)):
        return tensors
    with torch.no_grad():
        return [tensor.detach().clone() for tensor in tensors]


def copy_home(copies: Sequence[Copy]) -> None:
    """Bring staged results to their tensors, unseen by autograd as the engine's own writes are."""
    with torch.inference_mode():
        for target, staging in copies:
            target.copy_(staging)


def _split_like(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """New memory for all of ``tensors`` back to back, whole and in views of their shapes."""
    total, like = sum(tensor.numel() for tensor in tensors), tensors[0]
    whole = torch.empty(total, dtype=like.dtype, device=like.device)
    parts: list[Tensor] = []
    start = 0
    for tensor in tensors:
        parts.append(whole[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    return whole, parts


def _back_to_back(tensors: Sequence[Tensor]) -> bool:
    expected = tensors[0].data_ptr()
    for tensor in tensors:
        if not is_plain(tensor) or (tensor.numel() and tensor.data_ptr() != expected):
            return False
        expected += tensor.numel() * tensor.element_size()
    return True
