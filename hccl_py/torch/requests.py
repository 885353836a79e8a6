"""One call of c10d, ready for the engine: pointers and counts, and the tensors behind them.

Made by reductions.py and movements.py, which hold all checks; making one moves no byte. What they share is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.engine import Engine, Work
from hccl_py.torch.tensors import Copy, copy_home


@dataclass(slots=True)
class Request:
    """One collective, ready for the engine.

    ``count`` is in engine elements per block; ``in_counts`` and ``out_counts`` (one number a rank, or none where
    there is one block) replace it where blocks are uneven. ``result`` is what the future of the call holds.
    """

    collective: Collective
    dtype: DType
    in_ptr: int
    out_ptr: int
    count: int
    keep: tuple[Tensor, ...]
    result: list[Tensor]
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    copies: tuple[Copy, ...] = ()
    in_counts: list[int] | None = None
    out_counts: list[int] | None = None

    def run(self, engine: Engine) -> None:
        """Do it in the caller; return when the results are in place."""
        if self.in_counts is None or self.out_counts is None:
            engine.run(self.collective, self.op, self.dtype, self.root, self.in_ptr, self.out_ptr, self.count)
        else:
            engine.run_v(
                self.collective,
                self.op,
                self.dtype,
                self.root,
                self.in_ptr,
                self.in_counts,
                self.out_ptr,
                self.out_counts,
            )
        if self.copies:
            copy_home(self.copies)

    def start(self, engine: Engine) -> Work:
        """Begin; the engine holds the tensors until it is done, whoever waits for it makes the copies."""
        if self.in_counts is None or self.out_counts is None:
            return engine.start(
                self.collective, self.op, self.dtype, self.root, self.in_ptr, self.out_ptr, self.count, keep=self.keep
            )
        return engine.start_v(
            self.collective,
            self.op,
            self.dtype,
            self.root,
            self.in_ptr,
            self.in_counts,
            self.out_ptr,
            self.out_counts,
            keep=self.keep,
        )


def check_length(items: Sequence[object], size: int, name: str, call: str) -> None:
    """Raise ConfigError unless there is one item a rank."""
    if len(items) != size:
        raise ConfigError(f"{call}: {len(items)} {name} for {size} ranks")


def check_root(root: int, size: int, call: str) -> None:
    """Raise ConfigError unless ``root`` is a rank."""
    if not 0 <= root < size:
        raise ConfigError(f"{call}: root {root} is not a rank of this group of {size}")


def scatter_home(
    home: Tensor, copies: tuple[Copy, ...], output: Tensor, source_ptr: int, source_bytes: int, offset_bytes: int
) -> tuple[Tensor, tuple[Copy, ...]]:
    """Where to write ``output``: staged if it overlaps the source other than in place."""
    out = home.data_ptr()
    out_bytes = home.numel() * home.element_size()
    if out == source_ptr + offset_bytes or out + out_bytes <= source_ptr or source_ptr + source_bytes <= out:
        return home, copies
    staging = home.new_empty(home.shape)
    return staging, ((output, staging),)
