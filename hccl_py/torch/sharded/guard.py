"""Guard: whoever asks a module for a parameter waits until that parameter has arrived.

``nn.Module`` finds a parameter by ``self._parameters[name]``, also where one module reads another's (as
``nn.MultiheadAttention`` does with ``out_proj.weight``, which it never calls). So the dictionaries are where to wait: a
hook on each module's call would come too late for such reads, or so early that nothing is hidden. Modules that keep
their parameters in a list of their own (``nn.RNNBase``) wait when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hccl_py.core.errors import ConfigError

Arrive = Callable[[nn.Parameter], None]  # wait for this parameter


class GuardedParameters(dict[str, Any]):
    """A module's ``_parameters``; ``arrive`` is called for what is taken out."""

    def __init__(self, parameters: dict[str, Any], arrive: Arrive) -> None:
        super().__init__(parameters)
        self._arrive = arrive

    def __getitem__(self, name: str) -> Any:
        return self._arrived(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return self._arrived(super().get(name, default))

    def values(self) -> Any:
        """As of a dictionary; all of them have arrived."""
        return [self._arrived(value) for value in super().values()]

    def items(self) -> Any:
        """As of a dictionary; all of them have arrived."""
        return [(name, self._arrived(value)) for name, value in super().items()]

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)  # copies and pickles of a module have nothing to wait for

    def _arrived(self, value: Any) -> Any:
        if value is not None:
            self._arrive(value)
        return value


def check(module: nn.Module) -> None:
    """Find what cannot be guarded.

    Raises:
        ConfigError: a part of the module is compiled or scripted, and reads its parameters past Python; or is guarded.
    """
    for name, part in module.named_modules():
        if isinstance(part, _opaque()) or getattr(part, "_compiled_call_impl", None) is not None:
            raise ConfigError(
                f"ShardedStep: {name or 'the module'} is compiled or scripted, so nobody can tell when it reads its "
                "parameters: pass overlap=False"
            )
        if isinstance(part._parameters, GuardedParameters):
            raise ConfigError(
                f"ShardedStep: {name or 'the module'} is served by another ShardedStep: close() that, or pass "
                "overlap=False to both"
            )


def guard(module: nn.Module, arrive: Arrive) -> Callable[[], None]:
    """Let all readers of ``module``'s parameters wait; returns what undoes it."""
    handles = []
    for part in module.modules():
        part.__dict__["_parameters"] = GuardedParameters(part._parameters, arrive)
        if isinstance(part, nn.RNNBase):
            handles.append(part.register_forward_pre_hook(_read_all))

    def undo() -> None:
        for handle in handles:
            handle.remove()
        for part in module.modules():
            if isinstance(part._parameters, GuardedParameters):
                part.__dict__["_parameters"] = dict(part._parameters.items())

    return undo


def _read_all(module: nn.Module, _: Any) -> None:
    module._parameters.values()


def _opaque() -> tuple[type, ...]:
    import torch

    return (torch.jit.ScriptModule, torch._dynamo.eval_frame.OptimizedModule)
