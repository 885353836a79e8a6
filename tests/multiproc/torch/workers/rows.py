"""What was measured on gloo as wrong, fatal or silent, row by row: here the right value, or an error that says who."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import refuses, run_all, start

from hccl_py.core.env import Env
from hccl_py.core.errors import CollectiveTimeoutError, ConfigError, DesyncError
from hccl_py.torch import Options

RANK, SIZE = start(timeout_s=30.0)
LAST = RANK == SIZE - 1
OPS = dist.ReduceOp


def goes_on() -> None:
    """The default group still works and is in step."""
    x = torch.ones(5)
    dist.all_reduce(x)
    assert (x == SIZE).all()


def not_contiguous() -> None:
    base = torch.full((3, 4), -7.0)
    base[:, 1] = RANK + 1
    dist.all_reduce(base[:, 1])
    assert (base[:, 1] == SIZE * (SIZE + 1) / 2).all()
    assert (base[:, [0, 2, 3]] == -7).all()  # the neighbours


def operators_differ() -> None:
    x = torch.full((4,), RANK + 1.0)
    refuses(DesyncError, "rows.py", lambda: dist.all_reduce(x, OPS.MAX if LAST else OPS.SUM))
    assert (x == RANK + 1).all()
    goes_on()


def order_differs_with_shapes() -> None:
    """Same number of elements, other shape: torch's own word for a thorough check turns ours on."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(dist.DebugLevel.OFF)
    wide, high = torch.ones(2, 3), torch.ones(3, 2)
    first, second = (wide, high) if LAST else (high, wide)
    refuses(DesyncError, "[3, 2]", lambda: dist.all_reduce(first, group=group))
    refuses(DesyncError, "[2, 3]", lambda: dist.all_reduce(second, group=group))
    assert (wide == 1).all() and (high == 1).all()
    dist.all_reduce(wide, group=group)  # the group can be used again
    assert (wide == SIZE).all()


def order_differs_with_equal_shapes() -> None:
    """Nothing but the line of the call tells them apart."""
    group = dist.new_group(pg_options=Options(env=dataclasses.replace(Env.from_environ(), check_sites=True)))
    one, two = torch.ones(4), torch.full((4,), 10.0)

    def reduce_one() -> None:
        dist.all_reduce(one, group=group)

    def reduce_two() -> None:
        dist.all_reduce(two, group=group)

    for call in (reduce_one, reduce_two) if LAST else (reduce_two, reduce_one):
        refuses(DesyncError, "in reduce_", call)
    assert (one == 1).all() and (two == 10).all()
    reduce_one()
    assert (one == SIZE).all()


def dtypes_differ() -> None:
    x = torch.full((4,), RANK + 1, dtype=torch.int32 if LAST else torch.float32)
    refuses(DesyncError, "rows.py", lambda: dist.all_reduce(x))
    assert (x == RANK + 1).all()
    goes_on()


def sizes_differ() -> None:
    x = torch.full((997 if LAST else 1000,), RANK + 1.0)
    refuses(DesyncError, "rows.py", lambda: dist.all_reduce(x))
    assert (x == RANK + 1).all()
    goes_on()


def average_of_integers() -> None:
    for dtype in (torch.int32, torch.uint8):
        x = torch.full((4,), RANK + 1, dtype=dtype)
        refuses(ConfigError, "AVG", lambda tensor=x: dist.all_reduce(tensor, OPS.AVG))  # type: ignore[misc]
        assert (x == RANK + 1).all()
    goes_on()


def average_beyond_the_range_of_the_sum() -> None:
    x = torch.full((3,), 60000.0, dtype=torch.float16)
    dist.all_reduce(x, OPS.AVG)
    assert (x == 60000).all()


def not_a_number() -> None:
    for op in (OPS.MAX, OPS.MIN):
        x = torch.tensor([float("nan") if LAST else 1.0, 2.0])
        dist.all_reduce(x, op)
        assert torch.isnan(x[0]) and x[1] == 2


def types_that_gloo_lacks() -> None:
    for dtype in (torch.int16, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.full((6,), RANK + 1).to(dtype)
        dist.all_reduce(x)
        assert (x.float() == SIZE * (SIZE + 1) / 2).all(), dtype


def a_failure_names_the_rank() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if not LAST:
        refuses(CollectiveTimeoutError, f"rank {SIZE - 1} ", lambda: dist.all_reduce(torch.ones(4), group=group))
    dist.barrier()


run_all(
    {
        check.__name__: check
        for check in (
            not_contiguous, operators_differ, order_differs_with_shapes, order_differs_with_equal_shapes, dtypes_differ,
            sizes_differ, average_of_integers, average_beyond_the_range_of_the_sum, not_a_number,
            types_that_gloo_lacks, a_failure_names_the_rank,
        )
    }
)  # fmt: skip
dist.destroy_process_group()
