"""Which optimizers and parameters can be in shards, and how they are cut into buckets."""

from __future__ import annotations

import torch
from torch import nn

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType
from hccl_py.engine import Engine
from hccl_py.torch.ddp.parameters import Parameters
from hccl_py.torch.sharded.bucket import Bucket

_MIB = 1 << 20
_BUCKETS, _LEAST_BUCKET_BYTES, _MOST_BUCKET_BYTES = 16, _MIB, 25 * _MIB
# What they do to an element depends on that element alone, and on numbers that are the same on all ranks.
ELEMENTWISE = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop,
    torch.optim.ASGD,
)  # fmt: skip


def all_parameters(optimizer: torch.optim.Optimizer, module: nn.Module) -> Parameters:
    """The optimizer's, in the order of the module.

    Raises:
        ConfigError: some are not the module's, not trained, empty, or not in host memory.
    """
    named = {id(p): name for name, p in module.named_parameters()}
    held = [p for options in optimizer.param_groups for p in options["params"]]
    strangers = [p for p in held if id(p) not in named or not p.requires_grad or not p.numel()]
    if strangers:
        raise ConfigError(
            f"ShardedStep: {len(strangers)} parameters of the optimizer are not the module's, are frozen or are empty: "
            f"the first is {named.get(id(strangers[0]), tuple(strangers[0].shape))}"
        )
    elsewhere = [p for p in held if not p.is_cpu]
    if elsewhere:
        raise ConfigError(
            f"ShardedStep: {named[id(elsewhere[0])]!r} is on {elsewhere[0].device}; it serves modules in host memory"
        )
    kept = {id(p) for p in held}
    return Parameters((name, p) for name, p in module.named_parameters() if id(p) in kept)


def cut(
    optimizer: torch.optim.Optimizer, parameters: Parameters, engine: Engine, bucket_cap_mb: float | None
) -> list[Bucket]:
    """Buckets of one group of options and one type, in the order in which backward completes them."""
    numbers = {id(p): n for n, options in enumerate(optimizer.param_groups) for p in options["params"]}
    num_bytes = [n * dtype.itemsize for n, dtype in zip(parameters.numel, parameters.dtype, strict=True)]
    most = min(max(sum(num_bytes) // _BUCKETS, _LEAST_BUCKET_BYTES), _MOST_BUCKET_BYTES)
    if bucket_cap_mb is not None:
        most = int(bucket_cap_mb * _MIB)
    open_: dict[tuple[int, DType], list[int]] = {}
    found: list[tuple[int, list[int]]] = []
    for index in reversed(range(len(parameters))):
        key = numbers[id(parameters.tensors[index])], parameters.dtype[index]
        members = open_.setdefault(key, [])
        if members and sum(num_bytes[i] for i in members) + num_bytes[index] > most:
            found.append((key[0], list(members)))
            members.clear()
        members.append(index)
    found += [(key[0], members) for key, members in open_.items() if members]
    found.sort(key=lambda one: -one[1][-1])
    return [Bucket(engine, members, parameters, number) for number, members in found]
