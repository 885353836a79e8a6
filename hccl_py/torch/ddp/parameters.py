"""Parameters: what gets a gradient, in the order of the module, with sizes and types as they travel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.torch.dtypes import REDUCIBLE

# Arenas hold these; complex gradients travel as pairs of floats.
FLOATS: dict[DType, torch.dtype] = {
    DType.FLOAT64: torch.float64,
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
}


class Parameters:
    """The parameters that are trained, each once.

    Args:
        named: names and parameters; frozen ones and those without elements are left out.

    Raises:
        ConfigError: a parameter that is not in host memory, or of a type that is not averaged.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, parameter in named:
            if parameter.requires_grad and parameter.numel():
                found.setdefault(id(parameter), (name, parameter))
        self.names = tuple(name for name, _ in found.values())
        self.tensors = tuple(parameter for _, parameter in found.values())
        kinds = [self._kind(name, parameter) for name, parameter in found.values()]
        self.units = tuple(units for _, units in kinds)  # elements that travel for one of the tensor
        self.dtype = tuple(dtype for dtype, _ in kinds)
        self.numel = tuple(p.numel() * units for p, units in zip(self.tensors, self.units, strict=True))

    def __len__(self) -> int:
        return len(self.tensors)

    @staticmethod
    def _kind(name: str, parameter: Tensor) -> tuple[DType, int]:
        if not parameter.is_cpu:
            raise ConfigError(
                f"parameter {name!r} is on {parameter.device}: hccl_py.torch.DistributedDataParallel serves host "
                "memory; for modules on GPUs use torch.nn.parallel.DistributedDataParallel over the backend hccl_py"
            )
        dtype, units = REDUCIBLE.get(parameter.dtype, (DType.UINT8, 0))
        if dtype not in FLOATS:
            raise ConfigError(f"parameter {name!r} has type {parameter.dtype}, gradients of which are not averaged")
        return dtype, units
