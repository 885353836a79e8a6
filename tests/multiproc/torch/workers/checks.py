"""What worker scripts share: a table of checks, run in the same order on all ranks, that says which one failed."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import hccl_py.torch  # noqa: F401  # registers the backend

Check = Callable[[], None]


def limit_run_time() -> None:
    """End this process, with all stacks on stderr, before the launch is ended from outside."""
    faulthandler.dump_traceback_later(float(os.environ.get("WORKER_TIMEOUT_S", "55")), exit=True)


def start(timeout_s: float = 40.0) -> tuple[int, int]:
    """Join the default group over hccl_py; rank and size."""
    limit_run_time()
    torch.set_num_threads(1)
    dist.init_process_group("hccl_py", timeout=timedelta(seconds=timeout_s))
    return dist.get_rank(), dist.get_world_size()


def run_all(checks: dict[str, Check]) -> None:
    """Run the checks; exit with status 1 at the first that fails (the ranks are out of step then)."""
    for name, check in checks.items():
        try:
            check()
        except BaseException:
            print(f"FAILED {name} on rank {dist.get_rank()}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            os._exit(1)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"PASSED {len(checks)}: {' '.join(checks)}", flush=True)


def refuses(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    """Assert that ``call`` raises ``kind`` with ``words`` in its message."""
    try:
        call()
    except kind as error:
        assert words in str(error), f"{error} does not say {words!r}"
    else:
        raise AssertionError(f"no {kind.__name__} about {words!r}")
