"""Compressed gradients for DistributedDataParallel, as a communication hook::

model = DistributedDataParallel(module)
model.register_comm_hook(None, hccl_py.torch.compression_hook("int8"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.communicator import Communicator
from hccl_py.compression.codec import Codec
from hccl_py.compression.policy import Guard, Ramp, Switching
from hccl_py.compression.span import Span
from hccl_py.core.errors import ConfigError
from hccl_py.gradients import GradientReducer
from hccl_py.torch.hooks import group_of_hook, present_as_hook


class CompressionHook:
    """``hook(state, bucket)`` for ``register_comm_hook``; see :func:`compression_hook`. One for each module."""

    def __init__(
        self,
        compression: Codec | Switching | str = "auto",
        group: Any = None,
        parameters: Iterable[Tensor] = (),
        **options: Any,
    ) -> None:
        found = group_of_hook("compression_hook", group)
        present_as_hook(self, "compression_hook")
        self._group = found
        self._reducer = GradientReducer(Communicator(found._open()), compression, **options)
        self._numbers: dict[int, int] = {}
        self._known: list[Tensor] = []  # held, so that no other tensor gets the identity of one
        self._started: list[tuple[Any, Tensor, torch.futures.Future[Tensor]]] = []
        self._averages = cast(Any, dist.AllreduceOptions())
        self._averages.reduceOp = dist.ReduceOp.AVG
        self.step = 0
        for parameter in parameters:
            self._number(parameter)

    @property
    def reducer(self) -> GradientReducer:
        """What does the work."""
        return self._reducer

    def _number(self, parameter: Tensor) -> int:
        if id(parameter) not in self._numbers:
            self._numbers[id(parameter)] = len(self._known)
            self._known.append(parameter)
        return self._numbers[id(parameter)]

    def __call__(self, state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket over the group."""
        flat: Tensor = bucket.buffer()
        if flat.device.type != "cpu":
            raise ConfigError(f"compression_hook: gradients are on {flat.device}; they must be in host memory")
        if bucket.index() == 0:
            self._started.clear()  # of a backward that an error has ended
        step, self.step = self.step, self.step + bool(bucket.is_last())
        codec = self._reducer.codec(flat.numel() * 4, step) if self._group.size() > 1 else None
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if self._reducer.is_plain(codec):
            self._started.append((self._group.allreduce([flat], self._averages), flat, future))
        else:
            self._reducer.reduce(flat.detach(), self._spans(bucket, flat.numel()), step)
            future.set_result(flat)
        if bucket.is_last():
            # Backward is over but for this: waiting here spares a thread that would have to be woken for each bucket.
            started, self._started = self._started, []
            for work, tensor, waiting in started:
                work.wait()
                waiting.set_result(tensor)
        return future

    def _spans(self, bucket: Any, count: int) -> list[Span]:
        spans = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            whole = gradient.numel() == parameter.numel() and parameter.dim() > 1
            # A part of a parameter that was cut stays exact.
            number = self._number(parameter)
            spans.append(Span(number, gradient.numel(), rows=parameter.shape[0] if whole and gradient.numel() else 0))
        padding = count - sum(span.count for span in spans)
        return [*spans, Span(1 << 40, padding)] if padding else spans

    def state_dict(self) -> dict[str, Any]:
        """Of this rank: the step, the errors, and what the policy has seen. Save one a rank."""
        return {"next_step": self.step, **self._reducer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take :meth:`state_dict` up; all ranks at the same step.

        Raises:
            ConfigError: it is no such state.
        """
        self._check(state)
        self._reducer.load_state_dict(state)
        self.step = int(state["next_step"])

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take up the states of all ranks of a world of any size, by rank.

        Raises:
            ConfigError: they are no such states.
        """
        for state in states:
            self._check(state)
        self._reducer.load_states(states)
        self.step = int(states[0]["next_step"])

    @staticmethod
    def _check(state: Mapping[str, Any]) -> None:
        if "next_step" not in state:
            raise ConfigError(f'state of compression_hook: "next_step" is wanted, it has {list(state)}')


def compression_hook(
    compression: Codec | Switching | str = "auto",
    *,
    group: Any = None,
    parameters: Iterable[Tensor] = (),
    ramp: Ramp | None = None,
    guard: Guard | None = None,
    seed: int = 0,
    most_error: float | None = None,
) -> CompressionHook:
    """A hook for ``DistributedDataParallel.register_comm_hook`` that compresses gradients, with error feedback.

    Vectors and parameters of fewer than 1,024 elements stay exact; so does all while the gradient is not finite or
    errors are too large (``guard``). Steps under ``no_sync`` send nothing and change nothing.

    Args:
        compression: a codec or its text ("int8", "powersgd:4"), a :class:`Switching`, or "auto": exact unless a codec
            is measured to be faster.
        group: of backend "hccl_py" (None: the default one).
        parameters: of the module, in a fixed order, so that a saved state finds them again; without it they are
            numbered as they first appear.
        ramp, guard, seed, most_error: see :class:`~hccl_py.gradients.GradientReducer`.

    Raises:
        ConfigError: there is no such codec; the group is another's.
    """
    return CompressionHook(compression, group, parameters, ramp=ramp, guard=guard, seed=seed, most_error=most_error)
