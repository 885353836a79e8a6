"""Bytes through one TCP connection between two hosts of a lab, and the seconds they took."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    while connection.recv(1 << 20):
        pass
"""
_SOURCE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[3])) as connection:
    start_s = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # until the other side has read all and closes
    print(time.monotonic() - start_s)
"""


def transfer_s(source: Sequence[str], sink: Sequence[str], address: str, nbytes: int, timeout_s: float) -> float:
    """Send ``nbytes`` and wait until all are read.

    Args:
        source, sink: what stands in front of a command to run it on the host, see `LabNetwork.prefix`.
        address: of the sink's host.

    Raises:
        CalledProcessError: it did not arrive.
    """
    server = subprocess.Popen([*sink, sys.executable, "-c", _SINK, address], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline() == "listening\n"
        command = [*source, sys.executable, "-c", _SOURCE, address, str(nbytes), str(timeout_s)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s + 10, check=True)
        return float(done.stdout)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
