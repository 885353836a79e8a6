"""Runs on each node of a lab: loads torch once, then forks the ranks of every launch that it reads from its input.

Torch takes seconds to load and a fork of it takes none, so each test can have ranks of its own. A line in is a
launch, a line out is an event; both are JSON. What ranks print goes to standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import hccl_py.torch  # noqa: F401  # registers the backend

TASKS = Path(sys.argv[1])  # a module whose functions are what ranks can do
sys.path.insert(0, str(TASKS.parent))
tasks = importlib.import_module(TASKS.stem)  # and with it all that ranks need


def main() -> None:
    """Serve launches until the input ends."""
    torch.set_num_threads(1)
    _say(sys.stdout.fileno(), ready=True)
    for line in sys.stdin:
        launch = json.loads(line)
        ranks = {_fork(launch, rank): rank["rank"] for rank in launch["ranks"]}
        while ranks:
            process, status = os.wait()
            _say(sys.stdout.fileno(), rank=ranks.pop(process), status=os.waitstatus_to_exitcode(status))


def _fork(launch: dict[str, Any], rank: dict[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        _become(launch, rank)
    finally:
        os._exit(1)


def _become(launch: dict[str, Any], rank: dict[str, Any]) -> None:
    """Be a rank: run its task, tell how it ended, and exit."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(launch["limit_s"], exit=True)
    out = os.dup(1)
    os.dup2(2, 1)
    os.environ.update(launch["environ"] | rank["environ"])
    number = rank["rank"]

    def tell(event: str) -> None:
        _say(out, rank=number, event=event, process=os.getpid())

    try:
        value = getattr(tasks, launch["task"])(tell, **launch["arguments"])
        _say(out, rank=number, returned=value)
    except Exception as error:
        traceback.print_exc()
        said = {name: value for name, value in vars(error).items() if isinstance(value, int | float | str)}
        kinds = [kind.__name__ for kind in type(error).__mro__]
        _say(out, rank=number, raised={"kinds": kinds, "text": str(error), "at_s": time.monotonic(), "has": said})
    sys.stderr.flush()
    os._exit(0)


def _say(descriptor: int, **event: Any) -> None:
    os.write(descriptor, (json.dumps(event) + "\n").encode())  # short enough to stay in one piece


if __name__ == "__main__":
    main()
