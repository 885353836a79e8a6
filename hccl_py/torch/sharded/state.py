"""State of an optimizer that is in shards, as the ordinary one that the others know: by parameter, whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.torch.ddp.parameters import Parameters
from hccl_py.torch.sharded.bucket import Bucket

_COUNTS = ("step", "mu", "eta", "mu_product")  # one number for all elements


def whole_state(optimizer: torch.optim.Optimizer, buckets: Sequence[Bucket], numbers: Sequence[int]) -> dict[str, Any]:
    """The state_dict() of the optimizer before it was cut. A collective.

    Args:
        numbers: by index of a parameter, its number in the state.
    """
    state: dict[int, dict[str, Any]] = {}
    for bucket in buckets:
        for key, value in optimizer.state.get(bucket.shard, {}).items():
            by_parameter = bucket.whole(value) if bucket.shards(value) else dict.fromkeys(bucket.order, value)
            for index, part in by_parameter.items():
                state.setdefault(numbers[index], {})[key] = part.clone() if isinstance(part, Tensor) else part
    groups = []
    for number, options in enumerate(optimizer.param_groups):
        members = sorted(numbers[i] for bucket in buckets if bucket.group == number for i in bucket.order)
        groups.append({**{key: value for key, value in options.items() if key != "params"}, "params": members})
    return {"state": state, "param_groups": groups}


def load_state(
    optimizer: torch.optim.Optimizer,
    buckets: Sequence[Bucket],
    numbers: Sequence[int],
    parameters: Parameters,
    state_dict: Mapping[str, Any],
) -> None:
    """Take this rank's part of what :func:`whole_state` gives.

    Raises:
        ConfigError: it does not fit.
    """
    sizes = [len(options["params"]) for options in state_dict["param_groups"]]
    ours = [sum(len(b.order) for b in buckets if b.group == n) for n in range(len(optimizer.param_groups))]
    if sizes != ours:
        raise ConfigError(f"ShardedStep: a state for groups of {sizes} parameters; this optimizer has {ours}")
    found = {bucket: _part(bucket, numbers, parameters, state_dict["state"]) for bucket in buckets}
    for options, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        options.update({key: value for key, value in saved.items() if key != "params"})
    for bucket, part in found.items():
        if part:
            optimizer.state[bucket.shard] = part
        else:
            optimizer.state.pop(bucket.shard, None)


def _part(bucket: Bucket, numbers: Sequence[int], parameters: Parameters, state: Mapping[int, Any]) -> dict[str, Any]:
    """This rank's state of one bucket; empty if there is none."""
    states = {index: state.get(numbers[index], {}) for index in bucket.order}
    keys = {frozenset(one) for one in states.values()}
    if len(keys) > 1:
        names = ", ".join(parameters.names[i] for i in bucket.order[:5])
        raise ConfigError(f"ShardedStep: a state that only some parameters have; one in all of {names} was expected")
    found: dict[str, Any] = {}
    for key, value in states[bucket.order[0]].items():
        by_parameter = {index: one[key] for index, one in states.items()}
        if isinstance(value, Tensor) and key not in _COUNTS:
            for index, one in by_parameter.items():
                if one.shape != parameters.tensors[index].shape:
                    raise ConfigError(
                        f"ShardedStep: {key!r} of {parameters.names[index]!r} has shape {tuple(one.shape)} in the "
                        f"state, the parameter {tuple(parameters.tensors[index].shape)}"
                    )
            found[key] = bucket.part(by_parameter)
        else:
            if any(bool(one != value) for one in by_parameter.values()):
                raise ConfigError(f"ShardedStep: a state in which {key!r} is not the same for all parameters")
            found[key] = value.clone() if isinstance(value, Tensor) else value
    return found
