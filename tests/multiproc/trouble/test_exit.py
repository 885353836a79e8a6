"""How a process ends: without close, in mid-work, by an error, as a forked child. Never a hang, never a crash."""

from __future__ import annotations

import sys

import pytest

from hccl_py.core.env import child_environ
from hccl_py.launch import run

TWO_RANKS = """
import sys, threading
threading.excepthook = lambda args: None  # a daemon thread that prints while Python ends is fatal to Python
import numpy as np
from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.engine import Engine

meeting = ThreadBootstrap.Meeting(2)
comms = [None, None]

def connect(rank):
    env = Env(transports=(sys.argv[1],), timeout_s=30.0)
    comms[rank] = Communicator(Engine(ThreadBootstrap(meeting, rank), env=env))

threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
first, second = comms
data, out = np.ones(100_000), np.zeros(100_000)
"""

# Its end lets the GIL go for two seconds, when other threads may have it no more.
SLOW_END = """
import time
class Slow:
    def __del__(self, sleep=time.sleep): sleep(2)
slow = Slow()
"""

ENDINGS = {  # code, exit status
    "without close": ("first.isend(data[:3], 1).wait()", 0),
    "with works that nobody waits for": (
        "works = [first.iall_reduce(data), first.irecv(out, 1), first.isend(data, 1)]",
        0,
    ),
    "with works under way on both sides": ("works = [c.iall_reduce(np.ones(3_000_000)) for c in comms]", 0),
    "after close": ("first.iall_reduce(data); second.close(); first.close()", 0),
    "while a daemon thread is blocked in a collective": (
        "threading.Thread(target=first.barrier, daemon=True).start(); threading.Event().wait(0.3)",
        0,
    ),
    "while a daemon thread waits for a work": (
        "w = first.iall_reduce(data); threading.Thread(target=w.wait, daemon=True).start()\n"
        "threading.Event().wait(0.3)",
        0,
    ),
    "while a daemon thread wants the GIL of an interpreter that ends": (
        f"{SLOW_END}from functools import partial\n"
        "from hccl_py import _native\nfrom hccl_py.core.types import DType\n"
        "big = np.zeros(1 << 20, np.float32)\n"
        "lies = big.ctypes.data\n"
        "long = partial(_native.fold, 0, DType.FLOAT32, lies, [lies] * 300, big.size, 1.0, '')\n"
        "threading.Thread(target=long, daemon=True).start()",
        0,
    ),
    "while a daemon thread raises": (
        f"{SLOW_END}from hccl_py.core import errors\n"
        "names = {'Base': errors.BrokenGroupError}\n"
        "exec('import time\\nclass Slow(Base):\\n def __init__(self, a): time.sleep(1); super().__init__(a)', names)\n"
        "errors.BrokenGroupError = names['Slow']; del names\n"
        "w = first.iall_reduce(data); threading.Thread(target=w.wait, daemon=True).start()\n"
        "threading.Event().wait(0.3)",
        0,
    ),
    "by an error": ("raise SystemExit(7)", 7),
    "by an error in the block": ("with first:\n    first.irecv(out, 1)\n    raise SystemExit(5)", 5),
    "with the group in a cycle": (
        "class Knot: pass\nk = Knot(); k.me = k; k.comms = comms; first.iall_reduce(data)",
        0,
    ),
    "by a forked child that does nothing": ("import os\npid = os.fork()\nif pid: assert os.waitpid(pid, 0)[1] == 0", 0),
    "by a forked child, and the parent goes on": (
        "import os\npid = os.fork()\nif pid == 0: sys.exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n"
        "works = [c.iall_reduce(np.ones(50_000)) for c in comms]\n[w.wait() for w in works]",
        0,
    ),
    "by a forked child that closes": (
        "import os\nfirst.iall_reduce(data); w = second.iall_reduce(out); w.wait()\npid = os.fork()\n"
        "if pid == 0:\n    [c.close() for c in comms]\n    sys.exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n"
        "works = [c.iall_reduce(np.ones(50_000)) for c in comms]\n[w.wait() for w in works]",
        0,
    ),
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends(ending: str, transport: str) -> None:
    code, status = ENDINGS[ending]
    job = run([sys.executable, "-X", "faulthandler", "-c", f"{TWO_RANKS}\n{code}\n", transport], 30.0, child_environ())
    assert job.status == status, job.output
    assert job.output == ""


def test_a_forked_child_cannot_use_its_parents_group() -> None:
    code = """
import os
from hccl_py import HcclError
pid = os.fork()
if pid == 0:
    try:
        first.iall_reduce(data).wait(5.0)
    except HcclError as error:
        print(type(error).__name__, error)
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
works = [c.iall_reduce(np.ones(50_000)) for c in comms]
[w.wait() for w in works]
"""
    job = run([sys.executable, "-X", "faulthandler", "-c", f"{TWO_RANKS}\n{code}\n", "shm"], 30.0, child_environ())
    assert job.status == 0 and "Error" in job.output and "fork" in job.output, job.output
