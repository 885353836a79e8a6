"""Lab: hosts on one switch, for the tests: node numbers in place of names, links whose rate can change, and cuts."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import TracebackType

from hccl_py.core.units import parse_bandwidth
from hccl_py.lab import kernel
from hccl_py.lab.network import LabNetwork

UNLIMITED = "100Gbit/s"
Rate = str | None  # "200Mbit/s"; None: as fast as it goes

_HOST_TYPE = """version: 1
host_types:
  one:
    devices: {cpu0: {kind: cpu}}
    nics: {eth0: }
    links:
      - {between: [cpu0, host], kind: memory, bandwidth: 12GB/s, latency: 1us}
      - {between: [eth0, host], kind: memory, bandwidth: 12GB/s, latency: 1us}
switches: {switch: }
"""


class Lab:
    """``nodes`` hosts, each with one interface ``eth0`` on a common switch. A context manager.

    Args:
        name: unique among the labs of this process; letters and digits.
        nodes: 1 to 250.
        rates: of each node's link, both directions; one for all, or one a node.
    """

    def __init__(self, name: str, nodes: int, rates: Rate | Sequence[Rate] = None) -> None:
        self.nodes = nodes
        each = [rates] * nodes if rates is None or isinstance(rates, str) else list(rates)
        if len(each) != nodes:
            raise ValueError(f"{len(each)} rates for {nodes} nodes")
        hosts = "".join(f"  {self.host(node)}: {{type: one}}\n" for node in range(nodes))
        link = "  - {{between: [{}/eth0, switch], kind: ethernet, bandwidth: {}, latency: 1us}}\n"
        links = "".join(link.format(self.host(node), rate or UNLIMITED) for node, rate in enumerate(each))
        self.network = LabNetwork(f"{os.getpid()}{name}", f"{_HOST_TYPE}hosts:\n{hosts}links:\n{links}", name)

    def __enter__(self) -> Lab:
        self.network.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.network.down()

    def address(self, node: int) -> str:
        """The IPv4 address of a node, in 10.77.0.0/24."""
        return self.network.blueprint.address(self.host(node))

    def host(self, node: int) -> str:
        """The host name that processes of a node see."""
        return f"node{node}"

    def prefix(self, node: int) -> list[str]:
        """What to put in front of a command to run it on a node."""
        return self.network.prefix(self.host(node))

    def rate(self, node: int, rate: Rate) -> None:
        """Change both directions of a node's link, effective at once."""
        self.network.set_link(self.host(node), "switch", round(parse_bandwidth(rate or UNLIMITED) * 8))

    def cut(self, node: int) -> None:
        """Pull a node's plug: nothing arrives any more, and nobody is told."""
        self.network.cut(self.host(node), "switch")

    def heal(self, node: int) -> None:
        """Put the plug back."""
        self.network.heal(self.host(node), "switch")

    def add_address(self, node: int, address: str) -> None:
        """Give ``eth0`` another address, with its prefix length: ``10.78.0.1/24`` or ``fd78::1/64``."""
        nodad = ["nodad"] if ":" in address else []
        kernel.run("ip", "-n", self._namespace(node), "addr", "add", address, "dev", "eth0", *nodad)

    def counters(self, node: int) -> kernel.Counters:
        """What a node has sent and received so far."""
        return self.network.counters(self.host(node))

    def processes(self, node: int) -> list[int]:
        """The ids of all processes that live on a node."""
        return kernel.processes(self._namespace(node))

    def kill(self) -> None:
        """End every process of the lab."""
        for process in self.network.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _namespace(self, node: int) -> str:
        return self.network.namespace(self.host(node))
