"""Communication hooks: what a user's function gets in place of a bucket's all_reduce, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.torch.ddp.layout import Bucket, Layout
from hccl_py.torch.ddp.parameters import Parameters

CommHook = Callable[[Any, Any], Any]


class GradBucket:
    """What a hook gets: the methods of ``torch.distributed.GradBucket``.

    Gradients that are cut into several buckets come as vectors, the part that is in this one.
    """

    def __init__(self, bucket: Bucket, layout: Layout, parameters: Parameters) -> None:
        self._bucket, self._layout, self._parameters = bucket, layout, parameters
        self._buffer = bucket.flat

    def index(self) -> int:
        """Place in the order of sending."""
        return self._bucket.index

    def buffer(self) -> Tensor:
        """All elements of the bucket, one after the other: this rank's gradients, not divided yet."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Put another tensor of the same length in the place of :meth:`buffer`."""
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """Views of :meth:`buffer` as the bucket has it at first."""
        return [piece for _, piece in self._layout.pieces(self._bucket)]

    def parameters(self) -> list[Tensor]:
        """The parameters of :meth:`gradients`."""
        return [self._parameters.tensors[index] for index in self._bucket.parameters]

    def is_last(self) -> bool:
        """True for the bucket that is sent last."""
        return self._bucket.index == len(self._layout.buckets) - 1


class HookWork:
    """A bucket that a hook has taken care of.

    Args:
        future: what the hook returned.
        flat: where the result belongs.
    """

    def __init__(self, future: Any, flat: Tensor) -> None:
        if not hasattr(future, "wait"):
            raise ConfigError(f"the communication hook returned a {type(future).__name__}, not a torch.futures.Future")
        self._future, self._flat = future, flat

    def done(self) -> bool:
        """True once there is a result."""
        return bool(self._future.done())

    def wait(self) -> None:
        """Block until there is a result, and bring it home."""
        result = self._future.wait()
        if isinstance(result, list | tuple):
            result = result[0]
        if result.data_ptr() != self._flat.data_ptr():
            self._flat.copy_(result.view_as(self._flat))
