"""Bucket: parameters of one type and one group of options, and of them the shard that this rank steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine
from hccl_py.torch.ddp.arena import Arena
from hccl_py.torch.ddp.parameters import Parameters


class Bucket:
    """Values and gradients of these parameters, one after the other; both padded to equal shards for all ranks.

    The parameters' ``data`` become views of the values.

    Args:
        order: their indices, in the order in which backward makes their gradients.
        group: number of the optimizer's group of options that they belong to.
    """

    def __init__(self, engine: Engine, order: Sequence[int], parameters: Parameters, group: int) -> None:
        self.order, self.group = tuple(order), group
        self.dtype: DType = parameters.dtype[order[0]]
        self._engine = engine
        self.values = Arena(engine, self.dtype, order, parameters, multiple=2 * engine.size)
        self.gradients = Arena(engine, self.dtype, order, parameters, multiple=2 * engine.size)
        for index in self.order:
            view = self.values.views[index]
            view.copy_(parameters.tensors[index].detach())
            parameters.tensors[index].data = view
        count = self.values.numel // engine.size
        self._count = count
        mine = slice(engine.rank * count, (engine.rank + 1) * count)
        self.shard = nn.Parameter(self.values.flat[mine])
        self.average = torch.zeros_like(self.shard)  # of the shard's gradients, by all ranks
        self.missing = set(self.order)  # have no gradient yet in this backward
        self._work: Any = None

    def scatter(self) -> None:
        """Start adding up the gradients; each rank gets the sum of its shard."""
        self._start(Collective.REDUCE_SCATTER, self.gradients.flat, self.average)

    def gather(self) -> None:
        """Start giving all ranks all shards."""
        self._start(Collective.ALL_GATHER, self.shard, self.values.flat)

    @property
    def under_way(self) -> bool:
        """True between a start and :meth:`wait`."""
        return self._work is not None

    def shards(self, value: Any) -> bool:
        """True if ``value`` is a state of the optimizer with an element for each of the shard's."""
        return isinstance(value, Tensor) and value.shape == self.shard.shape

    def wait(self) -> None:
        """Until what was started is over."""
        if self._work is not None:
            work, self._work = self._work, None
            work.wait()

    def whole(self, of_shard: Tensor) -> dict[int, Tensor]:
        """Give all ranks what each has for its shard, by parameter. A collective."""
        flat = torch.empty_like(self.values.flat)
        gather, dtype = Collective.ALL_GATHER, self.dtype
        shard = of_shard.detach().to(flat.dtype).contiguous()
        self._engine.run(gather, ReduceOp.SUM, dtype, 0, shard.data_ptr(), flat.data_ptr(), self._count)
        return {index: self._like(flat, index).clone() for index in self.order}

    def part(self, whole: dict[int, Tensor]) -> Tensor:
        """This rank's shard of what is given by parameter; zeros between."""
        flat = torch.zeros_like(self.values.flat)
        for index, value in whole.items():
            self._like(flat, index).copy_(value)
        return flat[self._engine.rank * self._count :][: self._count].clone()

    def _like(self, flat: Tensor, index: int) -> Tensor:
        """The part of ``flat`` that lies as the parameter does in the values."""
        view = self.values.views[index]
        typed = flat.view(view.dtype)
        return typed.as_strided(view.size(), view.stride(), view.storage_offset())

    def _start(self, collective: Collective, source: Tensor, target: Tensor) -> None:
        self._work = self._engine.start(
            collective, ReduceOp.SUM, self.dtype, 0, source.data_ptr(), target.data_ptr(), self._count,
            keep=(source, target),
        )  # fmt: skip
