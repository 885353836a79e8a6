"""Every element type of torch with every operator, as the table of docs/COMPATIBILITY.md.

A cell is "yes" where the result is that of float64 (or of exact integers) rounded once, and "-" where the call was
refused before anything moved, by a ConfigError that names the type.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from checks import start

from hccl_py.core.errors import ConfigError

RANK, SIZE = start()
WORLD = dist.group.WORLD
NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
FACTOR = 0.5


def types() -> list[torch.dtype]:
    """All that torch has and of which memory can be made."""
    found = []
    for dtype in dict.fromkeys(value for _, value in sorted(vars(torch).items()) if isinstance(value, torch.dtype)):
        try:
            memory(0, dtype)
        except (RuntimeError, TypeError):
            continue
        found.append(dtype)
    return sorted(found, key=lambda dtype: (kind(dtype), dtype.itemsize, str(dtype)))


def kind(dtype: torch.dtype) -> int:
    """Floats, integers, bool, complex, others."""
    if dtype.is_floating_point:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype is torch.bool else 4 if "bits" in str(dtype) or "q" in str(dtype) else 1


def memory(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What ``rank`` gives: numbers that all types have, else bytes."""
    if "q" in str(dtype):
        return torch._empty_affine_quantized((4,), scale=1.0, zero_point=0, dtype=dtype)
    numbers = torch.tensor([1.0, 0.0, 2.0, 3.0]).roll(rank)
    try:
        return numbers.to(dtype)
    except (RuntimeError, NotImplementedError):
        return torch.full((4 * dtype.itemsize,), rank + 1, dtype=torch.uint8).view(dtype)


def expected(dtype: torch.dtype, name: str) -> torch.Tensor:
    """By float64, complex128 or int64."""
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    parts = [memory(rank, dtype).to(wide) for rank in range(SIZE)]
    if name in ("SUM", "AVG", "PREMUL_SUM"):
        scale = {"SUM": 1, "AVG": 1 / SIZE, "PREMUL_SUM": FACTOR}[name]
        return (sum(parts) * scale).to(dtype)  # type: ignore[union-attr]
    fold = {
        "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }[name]  # fmt: skip
    return functools.reduce(fold, parts).to(dtype)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).tolist()


def reduces(dtype: torch.dtype, name: str) -> str:
    """The cell of one operator."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(FACTOR) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)
    own = memory(RANK, dtype)
    try:
        WORLD.allreduce([own], options).wait()
    except ConfigError as error:
        assert str(dtype) in str(error), error
        assert "q" in str(dtype) or bits(own) == bits(memory(RANK, dtype))
        return "-"
    assert bits(own) == bits(expected(dtype, name)), (dtype, name, own, expected(dtype, name))
    return "yes"


def moves(dtype: torch.dtype) -> str:
    """The cell of broadcast."""
    own = memory(RANK, dtype)
    try:
        WORLD.broadcast([own], 1).wait()
    except ConfigError:
        return "-"
    assert bits(own) == bits(memory(1, dtype)), dtype
    return "yes"


rows = []
for each in types():
    rows.append((str(each).removeprefix("torch."), moves(each), *(reduces(each, name) for name in NAMES)))
if RANK == 0:
    head = ("type", "moves", *NAMES)
    lines = [head, ("---",) * len(head), *rows]
    print("\n".join("| " + " | ".join(row) + " |" for row in lines) + "\nEND OF TABLE", flush=True)
dist.barrier()
dist.destroy_process_group()
