"""What the progress thread drops last must not want the GIL: whoever holds it may be waiting for that thread to end."""

from __future__ import annotations

import sys

from hccl_py.core.env import child_environ
from hccl_py.launch import run

GROUPS = """
import faulthandler
import time
import numpy as np
from hccl_py import _native

faulthandler.dump_traceback_later(60, exit=True)  # its thread needs no GIL
buffer = np.zeros(8, np.uint8)

def connected():
    group = _native.Group(0, 1, hub=_native.Hub(1))
    group.connect([group.join([group.address()], 10.0)], 10.0)
    group.start_recv(buffer.ctypes.data, 8, 0, 5)  # never sent: the progress thread keeps the group meanwhile
    return group

"""

DROPPED = """
for i in range(TIMES):
    groups = [connected() for _ in range(3)]
    for group in groups: group.close()
    del group
    for _ in range(i % 400): pass
    groups.clear()
    if i % 20 == 0: time.sleep(0.01)  # descriptors are given back
print("done")
"""


def run_groups(times: int) -> None:
    job = run([sys.executable, "-c", GROUPS + DROPPED.replace("TIMES", str(times))], 100.0, child_environ())
    assert job.status == 0 and job.output == "done\n", job.output


def test_groups_can_be_dropped_while_the_progress_thread_lets_go_of_others() -> None:
    run_groups(12_000)


def test_the_process_may_end_while_the_progress_thread_lets_go() -> None:
    for _ in range(10):
        run_groups(40)
