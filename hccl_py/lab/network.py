"""LabNetwork: a blueprint in the kernel, until it is taken down; its links can change rate, be cut and healed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hccl_py.core.errors import ConfigError
from hccl_py.lab import kernel
from hccl_py.lab.blueprint import Blueprint, Port, Wire, draw_up
from hccl_py.topology.config import load_cluster

STATE = Path("/run/hccl-py-lab")
_STATE_FILE = "lab.json"
# A host's ranks share its name, its IPC and its /dev/shm with each other, and with no other host.
_ENTER = 'mount --bind "$1" /dev/shm && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class LabNetwork:
    """A lab that is up, or is to be made.

    Args:
        name: letters and digits; labs of different names don't meet.
        blueprint: see `draw_up`.
        cluster: path of the cluster file, for ranks and for those who come later.
    """

    def __init__(self, name: str, blueprint: Blueprint, cluster: Path) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]{1,20}", name):
            raise ConfigError(f"lab name {name!r}: 1 to 20 letters and digits")
        self.name = name
        self.blueprint = blueprint
        self.cluster = cluster.resolve()

    @classmethod
    def found(cls, name: str) -> LabNetwork:
        """The lab of that name which somebody has made. Raises ConfigError if there is none."""
        state = STATE / name / _STATE_FILE
        try:
            cluster = Path(json.loads(state.read_text(encoding="utf-8"))["cluster"])
        except FileNotFoundError:
            known = ", ".join(names()) or "none is up"
            raise ConfigError(f"there is no lab {name!r} ({known}): hccl-py lab up CLUSTER.yaml") from None
        return cls(name, draw_up(load_cluster(cluster)), cluster)

    def __enter__(self) -> LabNetwork:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # ---- life

    def up(self) -> None:
        """Make it. What a crash has left of a lab of this name is removed first; a failure leaves nothing.

        Raises:
            ConfigError: this machine gives no labs, or processes of the old lab still run.
        """
        why = kernel.obstacle()
        if why is not None:
            raise ConfigError(f"no lab here: {why}")
        running = [process for namespace in _namespaces(self.name) for process in kernel.processes(namespace)]
        if running:
            raise ConfigError(f"lab {self.name!r} is up and runs processes {running}: hccl-py lab down {self.name}")
        self.down()
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End the processes and remove the namespaces, whatever there is of them. Idempotent."""
        take_down(self.name)

    def _make(self) -> None:
        place = STATE / self.name
        place.mkdir(mode=0o755, parents=True)
        (place / _STATE_FILE).write_text(json.dumps({"cluster": str(self.cluster)}), encoding="utf-8")
        (place / "hosts").write_text(self._hosts_file(), encoding="utf-8")
        for host in self.blueprint.hosts:
            kernel.add_namespace(self.namespace(host))
            kernel.add_host(place / host, host)
        kernel.add_namespace(self.namespace(""))
        for _, bridge in self.blueprint.bridges:
            kernel.run("ip", "-n", self.namespace(""), "link", "add", "name", bridge, "type", "bridge")
            kernel.set_up(self.namespace(""), bridge)
        for wire in self.blueprint.wires:
            a, b = self.namespace(wire.a.host), self.namespace(wire.b.host)
            kernel.add_veth(a, wire.a.device, b, wire.b.device)
            for port in (wire.a, wire.b):
                self._plug_in(port)
            self._shape(wire, wire.a_to_b_bps, wire.b_to_a_bps)

    def _hosts_file(self) -> str:
        lines = ["127.0.0.1 localhost"]
        for host in self.blueprint.hosts:
            lines += [f"{port.address.partition('/')[0]} {host}" for port in self.blueprint.ports(host)]
        return "\n".join(lines) + "\n"

    def _plug_in(self, port: Port) -> None:
        namespace = self.namespace(port.host)
        if port.host:
            kernel.run("ip", "-n", namespace, "addr", "add", port.address, "dev", port.device)
        else:
            bridge = dict(self.blueprint.bridges)[port.node]
            kernel.run("ip", "-n", namespace, "link", "set", port.device, "master", bridge)
        kernel.set_up(namespace, port.device)

    # ---- links

    def set_link(self, one: str, other: str, rate_bps: int) -> None:
        """Change the rate of a link, both directions, effective at once."""
        self._shape(self.wire(one, other), rate_bps, rate_bps)

    def cut(self, one: str, other: str) -> None:
        """Pull the plug: nothing arrives any more, and nobody is told. Of a host's link, the far end goes down."""
        self._switch(one, other, up=False)

    def heal(self, one: str, other: str) -> None:
        """Put the plug back."""
        self._switch(one, other, up=True)

    def _switch(self, one: str, other: str, up: bool) -> None:
        wire = self.wire(one, other)
        port = wire.a if not wire.a.host else wire.b  # a host sees no carrier loss of its own: the switch's end goes
        kernel.set_up(self.namespace(port.host), port.device, up)

    def wire(self, one: str, other: str) -> Wire:
        """The wire between two nodes; see `Blueprint.wire`."""
        return self.blueprint.wires[self.blueprint.wire(one, other)]

    def _shape(self, wire: Wire, a_to_b_bps: int, b_to_a_bps: int) -> None:
        kernel.shape(self.namespace(wire.a.host), wire.a.device, a_to_b_bps)
        kernel.shape(self.namespace(wire.b.host), wire.b.device, b_to_a_bps)

    # ---- hosts

    def namespace(self, host: str) -> str:
        """Name of a host's network namespace; "": that of the switches."""
        return f"hccl-{self.name}-h-{host}" if host else f"hccl-{self.name}-switches"

    def prefix(self, host: str) -> list[str]:
        """What to put in front of a command to run it on a host."""
        if host not in self.blueprint.hosts:
            raise ConfigError(f"lab {self.name!r} has no host {host!r}: {', '.join(self.blueprint.hosts)}")
        place = STATE / self.name / host
        enter = [
            "ip",
            "netns",
            "exec",
            self.namespace(host),
            "nsenter",
            f"--uts={place / 'uts'}",
            f"--ipc={place / 'ipc'}",
        ]
        return [*enter, "sh", "-c", _ENTER, "sh", str(place / "shm"), str(STATE / self.name / "hosts")]

    def processes(self) -> list[int]:
        """The ids of all processes on its hosts."""
        return [process for host in self.blueprint.hosts for process in kernel.processes(self.namespace(host))]

    def counters(self, host: str) -> kernel.Counters:
        """What all interfaces of a host have sent and received so far."""
        each = [kernel.counters(self.namespace(host), port.device) for port in self.blueprint.ports(host)]
        return kernel.Counters(sum(one.sent_bytes for one in each), sum(one.received_bytes for one in each))


def take_down(name: str) -> None:
    """End the processes of a lab and remove all there is of it, whoever has made it. Idempotent."""
    for namespace in _namespaces(name):
        kernel.remove_namespace(namespace)
    place = STATE / name
    for host in (path for path in place.glob("*") if path.is_dir()):
        kernel.remove_host(host)
    shutil.rmtree(place, ignore_errors=True)


def names() -> list[str]:
    """The labs that are up."""
    return sorted(path.parent.name for path in STATE.glob(f"*/{_STATE_FILE}"))


@contextmanager
def lab(cluster: Path, name: str) -> Iterator[LabNetwork]:
    """A lab from a cluster file for the time of a block."""
    with LabNetwork(name, draw_up(load_cluster(cluster)), cluster) as made:
        yield made


def _namespaces(name: str) -> list[str]:
    return [found for found in kernel.namespaces() if found.startswith(f"hccl-{name}-")]
