"""Which parameters a forward pass has used: a walk over the graph that autograd has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors in what a module returned: in lists, tuples, dictionaries and dataclasses."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple):
        for item in output:
            yield from tensors_in(item)
    elif isinstance(output, dict):
        for item in output.values():
            yield from tensors_in(item)
    elif is_dataclass(output) and not isinstance(output, type):
        for one in fields(output):
            yield from tensors_in(getattr(output, one.name))


def leaves_below(outputs: Iterable[Tensor]) -> set[int]:
    """The ``id`` of every leaf tensor that gets a gradient when all of ``outputs`` do."""
    leaves: set[int] = set()
    seen: set[Any] = set()  # the nodes themselves: their Python objects must live as long as we compare them
    stack: list[Any] = []
    for output in outputs:
        if output.grad_fn is not None:
            stack.append(output.grad_fn)
        elif output.requires_grad:
            leaves.add(id(output))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            leaves.add(id(node.variable))
        stack += [following for following, _ in node.next_functions if following is not None]
    return leaves
