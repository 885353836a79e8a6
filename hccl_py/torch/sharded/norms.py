"""Norms of gradients that are in shards, and numbers in them that are not finite: by an all-reduced scalar."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.torch.process_group import HcclProcessGroup


def clip(grads: Sequence[Tensor], max_norm: float, norm_type: float, group: HcclProcessGroup) -> Tensor:
    """Scale this rank's shards so that the norm over all ranks is at most ``max_norm``; it as it was. A collective."""
    norms = torch.stack([torch.linalg.vector_norm(grad, norm_type, dtype=torch.float64) for grad in grads])
    if norm_type == float("inf"):
        total = norms.max()
        dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
    else:
        total = norms.pow(norm_type).sum()
        dist.all_reduce(total, group=group)
        total = total.pow(1.0 / norm_type)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.dtype))
    return total.to(torch.float32)


def spread_infinity(grads: Sequence[Tensor], group: HcclProcessGroup) -> None:
    """If a gradient is not finite on some rank, make one element of every rank's infinite. A collective."""
    finite = torch.tensor([float(all(bool(torch.isfinite(grad).all()) for grad in grads))])
    dist.all_reduce(finite, dist.ReduceOp.MIN, group=group)
    if not finite.item():
        grads[0][0] = float("inf")
