"""LabNetwork: a blueprint in the kernel, until it is taken down; its links can change rate, be cut and healed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import TracebackType

from hccl_py.core.errors import ConfigError
from hccl_py.lab import kernel
from hccl_py.lab.blueprint import Port, Wire, draw_up
from hccl_py.topology.config import parse_cluster

STATE = Path("/run/hccl-py-lab")
_STATE_FILE = "lab.json"
_CLUSTER_FILE = "cluster.yaml"
_NAMES_FILE = "hosts"  # /etc/hosts of all hosts
_HOSTS = "host"  # a folder for each host
# A host's ranks share its name, its IPC and its /dev/shm with each other, and with no other host.
_ENTER = 'mount --bind "$1" /dev/shm && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class LabNetwork:
    """A lab that is up, or is to be made. As a context manager it goes with the block, and with this process.

    Args:
        name: letters and digits; labs of different names don't meet.
        text: a cluster file, of which the lab keeps a copy.
        file: what errors and `hccl-py lab show` call it.

    Raises:
        ConfigError: the name, the text, or what `draw_up` refuses.
    """

    def __init__(self, name: str, text: str, file: str = "<text>") -> None:
        if not re.fullmatch(r"[A-Za-z0-9]{1,20}", name):
            raise ConfigError(f"lab name {name!r}: 1 to 20 letters and digits")
        self.name = name
        self.file = file
        self.blueprint = draw_up(parse_cluster(text, file))
        self._text = text

    @classmethod
    def of_file(cls, name: str, path: Path) -> LabNetwork:
        """From a cluster file. Raises ConfigError as the constructor, or if it cannot be read."""
        try:
            return cls(name, path.read_text(encoding="utf-8"), str(path.resolve()))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error

    @classmethod
    def found(cls, name: str) -> LabNetwork:
        """The lab of that name which somebody has made. Raises ConfigError if there is none."""
        try:
            state = json.loads((STATE / name / _STATE_FILE).read_text(encoding="utf-8"))
            return cls(name, (STATE / name / _CLUSTER_FILE).read_text(encoding="utf-8"), state["file"])
        except FileNotFoundError:
            known = ", ".join(names()) or "none is up"
            raise ConfigError(f"there is no lab {name!r} ({known}): hccl-py lab up CLUSTER.yaml") from None

    def __enter__(self) -> LabNetwork:
        sweep()
        self.up(owner=os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def cluster(self) -> Path:
        """The lab's copy of the cluster file, there while it is up."""
        return STATE / self.name / _CLUSTER_FILE

    # ---- life

    def up(self, owner: int | None = None) -> None:
        """Make it. What a crash has left of a lab of this name is removed first; a failure leaves nothing.

        Args:
            owner: the process with whose end it becomes rubbish for `sweep`; None: it stays until `down`.

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
            self._make(owner)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End the processes and remove the namespaces, whatever there is of them. Idempotent."""
        take_down(self.name)

    def _make(self, owner: int | None) -> None:
        place = STATE / self.name
        (place / _HOSTS).mkdir(mode=0o755, parents=True)
        (place / _STATE_FILE).write_text(json.dumps({"file": self.file, "owner": owner}), encoding="utf-8")
        self.cluster.write_text(self._text, encoding="utf-8")
        (place / _NAMES_FILE).write_text(self._names_file(), encoding="utf-8")
        for host in self.blueprint.hosts:
            kernel.add_namespace(self.namespace(host))
            kernel.add_host(place / _HOSTS / host, host)
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

    def _names_file(self) -> str:
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
        place = STATE / self.name / _HOSTS / host
        enter = [
            "ip",
            "netns",
            "exec",
            self.namespace(host),
            "nsenter",
            f"--uts={place / 'uts'}",
            f"--ipc={place / 'ipc'}",
        ]
        return [*enter, "sh", "-c", _ENTER, "sh", str(place / "shm"), str(STATE / self.name / _NAMES_FILE)]

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
    for host in place.glob(f"{_HOSTS}/*"):
        kernel.remove_host(host)
    shutil.rmtree(place, ignore_errors=True)


def names() -> list[str]:
    """The labs that are up."""
    return sorted(path.parent.name for path in STATE.glob(f"*/{_STATE_FILE}"))


def sweep() -> list[str]:
    """Take down the labs whose owners are no more; their names."""
    left = []
    for name in names():
        owner = _owner(name)
        if owner is not None and not Path(f"/proc/{owner}").exists():
            take_down(name)
            left.append(name)
    return left


def _owner(name: str) -> int | None:
    try:
        owner: int | None = json.loads((STATE / name / _STATE_FILE).read_text(encoding="utf-8")).get("owner")
    except (FileNotFoundError, ValueError):
        return None  # it is just going, or coming
    return owner


def _namespaces(name: str) -> list[str]:
    return [found for found in kernel.namespaces() if found.startswith(f"hccl-{name}-")]
