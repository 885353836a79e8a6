"""The sum of sparse tensors: every rank gets all ranks' entries, added up where they meet.

Sparse gradients (``nn.Embedding(sparse=True)``) come here. The numbers of entries differ between ranks, so they are
agreed on first; then entries travel as bytes, one broadcast from each rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine


def all_reduce(engine: Engine, tensor: Tensor, op: ReduceOp) -> None:
    """Replace ``tensor``, in COO layout and of one shape on all ranks, by the sum over the ranks. Blocks.

    Raises:
        ConfigError: for other operators, layouts and devices, before anything moves.
    """
    if op is not ReduceOp.SUM or tensor.layout is not torch.sparse_coo or not tensor.is_cpu:
        raise ConfigError(
            f"all_reduce: {tensor.layout} tensors on {tensor.device} have no {op.name}; sparse_coo tensors on the CPU "
            "have SUM, others must be converted with .to_dense() first"
        )
    own = tensor.detach().coalesce()
    shape = torch.tensor([own.sparse_dim(), *own.shape], dtype=torch.int64)
    _same_everywhere(engine, shape)
    counts = torch.zeros(engine.size, dtype=torch.int64)
    mine = torch.tensor([own._nnz()], dtype=torch.int64)
    engine.run(Collective.ALL_GATHER, ReduceOp.SUM, DType.INT64, 0, mine.data_ptr(), counts.data_ptr(), 1)
    indices, values = [], []
    for root, count in enumerate(counts.tolist()):
        index = torch.empty(own.sparse_dim(), count, dtype=torch.int64)
        value = own.values().new_empty((count, *own.shape[own.sparse_dim() :]))
        if root == engine.rank:
            index, value = own.indices().contiguous(), own.values().contiguous()
        for part in (index, value):
            _broadcast(engine, part, root)
        indices.append(index)
        values.append(value)
    total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), own.shape, check_invariants=False)
    with torch.no_grad():
        tensor.copy_(total.coalesce())


def _broadcast(engine: Engine, part: Tensor, root: int) -> None:
    ptr, count = part.data_ptr(), part.numel() * part.element_size()
    engine.run(Collective.BROADCAST, ReduceOp.SUM, DType.UINT8, root, ptr, ptr, count)


def _same_everywhere(engine: Engine, shape: Tensor) -> None:
    """The contract check of what only sparse tensors have: same length of the shape, and then the same shape."""
    low, high = shape.clone(), shape.clone()
    for copy, op in ((low, ReduceOp.MIN), (high, ReduceOp.MAX)):
        engine.run(Collective.ALL_REDUCE, op, DType.INT64, 0, copy.data_ptr(), copy.data_ptr(), copy.numel())
    if not torch.equal(low, high):
        raise ConfigError(
            f"all_reduce: sparse tensors of different shapes; {shape.tolist()[1:]} on rank {engine.rank}, "
            f"sizes from {low.tolist()[1:]} to {high.tolist()[1:]} elsewhere"
        )
