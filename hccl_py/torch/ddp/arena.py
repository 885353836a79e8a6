"""Arena: all gradients of one element type, one after the other, in memory that the ranks of a host share.

A bucket is a range of an arena. So another partition in the same order moves nothing, and a gradient that is cut into
several buckets is one tensor all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hccl_py.core.types import DType
from hccl_py.engine import Engine
from hccl_py.torch.ddp.parameters import FLOATS, Parameters


class Arena:
    """Memory for these parameters' gradients, zeroed.

    Args:
        engine: whose ranks shall reach it.
        dtype: as which elements travel.
        order: indices of parameters, as they lie.
        multiple: room for a multiple of so many elements.
    """

    def __init__(
        self, engine: Engine, dtype: DType, order: Sequence[int], parameters: Parameters, multiple: int = 1
    ) -> None:
        self.dtype = dtype
        self.order = tuple(order)
        self.begins: dict[int, int] = {}
        at = 0
        for index in self.order:
            at += -at % parameters.units[index]  # a complex number begins at an even place
            self.begins[index] = at
            at += parameters.numel[index]
        self.numel = at + -at % multiple
        self.flat = torch.from_numpy(engine.allocate(self.numel * dtype.itemsize)).view(FLOATS[dtype])
        self.views = {index: self._view(parameters.tensors[index], self.begins[index]) for index in self.order}

    def _view(self, parameter: Tensor, begin: int) -> Tensor:
        """The gradient of ``parameter``; with its strides if they are without gaps, as autograd makes gradients."""
        flat = self.flat
        if parameter.is_complex():
            flat, begin = flat[: self.numel // 2 * 2].view(parameter.dtype), begin // 2
        if _is_dense(parameter):
            return flat.as_strided(parameter.size(), parameter.stride(), begin)
        return flat[begin : begin + parameter.numel()].view(parameter.size())


def _is_dense(tensor: Tensor) -> bool:
    """True if the elements fill their memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
