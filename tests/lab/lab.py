"""Lab: hosts made of network namespaces, on one switch, with links whose rate can change and that can be cut.

Root only; touches nothing outside its own namespaces. Their names hold the id of the process that made them, so two
test runs never meet, and what a killed run has left behind is taken down by the next one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

PREFIX = "hccl-lab"
_COMMAND_LIMIT_S = 30.0
_SET_HOST_NAME = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"

Rate = str | None  # as tc writes it: "200mbit"; None: as fast as it goes


@dataclass(frozen=True)
class Counters:
    """What has gone through a node's interface since it was made, headers included."""

    sent_bytes: int
    received_bytes: int

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(self.sent_bytes - earlier.sent_bytes, self.received_bytes - earlier.received_bytes)


class Lab:
    """``nodes`` hosts, each with one interface ``eth0`` on a common switch. A context manager.

    Args:
        name: unique among the labs of this process; letters and digits.
        nodes: 1 to 250.
        rates: of each node's link, both directions; one for all, or one a node.

    Raises:
        CalledProcessError: the kernel or the container does not allow it: see :func:`obstacle`.
    """

    def __init__(self, name: str, nodes: int, rates: Rate | Sequence[Rate] = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]+", name) or not 1 <= nodes <= 250:
            raise ValueError(f"a lab needs a name of letters and digits and 1 to 250 nodes, not {name!r} and {nodes}")
        self.nodes = nodes
        self._rates = [rates] * nodes if rates is None or isinstance(rates, str) else list(rates)
        if len(self._rates) != nodes:
            raise ValueError(f"{len(self._rates)} rates for {nodes} nodes")
        self._name = f"{PREFIX}-{os.getpid()}-{name}"

    def __enter__(self) -> Lab:
        sweep()
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def address(self, node: int) -> str:
        """The IPv4 address of a node, in 10.77.0.0/24."""
        return f"10.77.0.{node + 1}"

    def host(self, node: int) -> str:
        """The host name that processes of a node see."""
        return f"node{node}"

    def prefix(self, node: int) -> list[str]:
        """What to put in front of a command to run it on a node."""
        enter = ["ip", "netns", "exec", self._namespace(node), "unshare", "--uts"]
        return [*enter, sys.executable, "-c", _SET_HOST_NAME, self.host(node)]

    def rate(self, node: int, rate: Rate) -> None:
        """Change both directions of a node's link, effective at once."""
        for namespace, device in ((self._namespace(node), "eth0"), (self._switch, f"p{node}")):
            if rate is None:
                _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
                continue
            # Burst: at least one packet of 64 KiB, as the stack hands them over, and 1 ms; at most 10 ms wait in line.
            burst_bytes = max(bits_per_s(rate) // 8 // 1000, 131072)
            limit_bytes = max(bits_per_s(rate) // 8 // 100, 262144)
            shape = ["tbf", "rate", rate, "burst", str(burst_bytes), "limit", str(limit_bytes)]
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)

    def cut(self, node: int) -> None:
        """Pull a node's plug: nothing arrives any more, and nobody is told."""
        _run("ip", "-n", self._switch, "link", "set", f"p{node}", "down")

    def heal(self, node: int) -> None:
        """Put the plug back."""
        _run("ip", "-n", self._switch, "link", "set", f"p{node}", "up")

    def add_address(self, node: int, address: str) -> None:
        """Give ``eth0`` another address, with its prefix length: ``10.78.0.1/24`` or ``fd78::1/64``."""
        nodad = ["nodad"] if ":" in address else []
        _run("ip", "-n", self._namespace(node), "addr", "add", address, "dev", "eth0", *nodad)

    def counters(self, node: int) -> Counters:
        """What a node has sent and received so far."""
        shown = json.loads(_run("ip", "-n", self._namespace(node), "-s", "-j", "link", "show", "dev", "eth0"))
        stats = shown[0]["stats64"]
        return Counters(stats["tx"]["bytes"], stats["rx"]["bytes"])

    def processes(self, node: int) -> list[int]:
        """The ids of all processes that live on a node."""
        return _processes(self._namespace(node))

    def kill(self) -> None:
        """End every process of the lab."""
        for node in range(self.nodes):
            _kill_all(self._namespace(node))

    def down(self) -> None:
        """End the processes and remove the namespaces, whatever there is of them. Idempotent."""
        for namespace in _namespaces():
            if namespace.startswith(f"{self._name}-"):
                _remove(namespace)

    @property
    def _switch(self) -> str:
        return f"{self._name}-sw"

    def _namespace(self, node: int) -> str:
        if not 0 <= node < self.nodes:
            raise ValueError(f"node {node} is outside a lab of {self.nodes}")
        return f"{self._name}-n{node}"

    def _up(self) -> None:
        switch = self._switch
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for node, rate in enumerate(self._rates):
            namespace, port = self._namespace(node), f"p{node}"
            _run("ip", "netns", "add", namespace)
            pair = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
            _run("ip", "-n", switch, "link", "add", port, *pair)
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _run("ip", "-n", namespace, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _run("ip", "-n", namespace, "link", "set", "eth0", "up")
            if rate is not None:
                self.rate(node, rate)


def obstacle() -> str | None:
    """Why no lab can be made here, or None. Makes a small one to find out (a quarter of a second)."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {package}: there is no {program}"
    try:
        with Lab("probe", 1, "1gbit") as lab:
            lab.counters(0)
            _run(*lab.prefix(0), "true")
    except (subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"this kernel or container gives no network namespaces with veth, bridge and tbf: {said.strip()}"
    return None


def sweep() -> list[str]:
    """Take down what processes that are no more have left behind; return the names of it."""
    left = [name for name in _namespaces() if (owner := _owner(name)) is not None and not _exists(owner)]
    for namespace in left:
        _remove(namespace)
    return left


def bits_per_s(rate: str) -> int:
    """``"200mbit"`` as a number."""
    match = re.fullmatch(r"([0-9.]+)([kmg]?)bit", rate)
    if match is None:
        raise ValueError(f"{rate!r} is no rate such as 200mbit")
    return int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]])


def _owner(namespace: str) -> int | None:
    match = re.fullmatch(rf"{PREFIX}-(\d+)-[A-Za-z0-9]+-(?:sw|n\d+)", namespace)
    return None if match is None else int(match[1])


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _processes(namespace: str) -> list[int]:
    return [int(word) for word in _run("ip", "netns", "pids", namespace).split()]


def _kill_all(namespace: str) -> None:
    for process in _processes(namespace):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _remove(namespace: str) -> None:
    _kill_all(namespace)
    _run("ip", "netns", "del", namespace)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=True)
    return done.stdout
