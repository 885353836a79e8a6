"""The kernel's tools (iproute2): namespaces, veth pairs, bridges, rates. Each function is one or two commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hccl_py.core.errors import ConfigError

_LIMIT_S = 30.0
MAX_SHAPED_BPS = 34_000_000_000  # tc keeps rates in bytes in 32 bits


@dataclass(frozen=True)
class Counters:
    """What has gone through an interface since it was made, headers included."""

    sent_bytes: int
    received_bytes: int

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(self.sent_bytes - earlier.sent_bytes, self.received_bytes - earlier.received_bytes)


def run(*command: str) -> str:
    """Run a command; its output. Raises ConfigError with what it said."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{' '.join(command)}: {error.stderr.strip() or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{' '.join(command)}: {error}") from error


def obstacle() -> str | None:
    """Why no lab can be made here, or None. Makes a namespace with a shaped link to find out."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {package}: there is no {program}"
    name = f"hccl-probe-{os.getpid()}"
    try:
        add_namespace(name)
        run("ip", "-n", name, "link", "add", "name", "br0", "type", "bridge")
        add_veth(name, "a", name, "b")
        shape(name, "a", 1_000_000_000)
        run("ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "true")
    except ConfigError as error:
        return f"this kernel or container gives no network namespaces with veth, bridge and tbf: {error}"
    finally:
        with suppress(ConfigError):  # there may be none
            remove_namespace(name)
    return None


def namespaces() -> list[str]:
    """All that have a name."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]


def add_namespace(name: str) -> None:
    """Make a network namespace with its loopback up."""
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")


def remove_namespace(name: str) -> None:
    """End the processes of a namespace and remove it, with its interfaces."""
    for process in processes(name):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run("ip", "netns", "del", name)


def add_host(place: Path, name: str) -> None:
    """Make what a host has apart from its network, under the folder ``place``: host name, IPC, /dev/shm."""
    (place / "shm").mkdir(parents=True)
    run("mount", "-t", "tmpfs", "tmpfs", str(place / "shm"))
    for kind in ("uts", "ipc"):
        (place / kind).touch()
    own = [f"--uts={place / 'uts'}", f"--ipc={place / 'ipc'}"]
    set_name = "import socket, sys; socket.sethostname(sys.argv[1])"
    run("unshare", *own, sys.executable, "-c", set_name, name)


def remove_host(place: Path) -> None:
    """Undo `add_host`, whatever there is of it."""
    for part in ("uts", "ipc", "shm"):
        while _is_mounted(place / part):
            run("umount", str(place / part))


def _is_mounted(path: Path) -> bool:
    """True if there is a mount at this path, or a namespace bound to this file."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        return any(line.split()[4] == str(path) for line in mounts)


def processes(namespace: str) -> list[int]:
    """The ids of the processes that live there."""
    return [int(word) for word in run("ip", "netns", "pids", namespace).split()]


def add_veth(namespace: str, device: str, other_namespace: str, other_device: str) -> None:
    """Make a pair of joined interfaces."""
    peer = ["type", "veth", "peer", "name", other_device, "netns", other_namespace]
    run("ip", "-n", namespace, "link", "add", "name", device, *peer)


def set_up(namespace: str, device: str, up: bool = True) -> None:
    """Bring an interface up or down."""
    run("ip", "-n", namespace, "link", "set", device, "up" if up else "down")


def shape(namespace: str, device: str, rate_bps: int) -> None:
    """Limit what an interface sends, effective at once; a rate above 34 Gbit/s is no limit."""
    on_device = ["dev", device, "root"]
    if rate_bps > MAX_SHAPED_BPS:
        if "qdisc tbf" in run("tc", "-n", namespace, "qdisc", "show", *on_device):
            run("tc", "-n", namespace, "qdisc", "del", *on_device)
        return
    # Burst: at least one packet of 64 KiB, as the stack hands them over, and 1 ms; at most 10 ms wait in line.
    burst_bytes = max(rate_bps // 8 // 1000, 131072)
    limit_bytes = max(rate_bps // 8 // 100, 262144)
    kind = ["tbf", "rate", f"{rate_bps}bit", "burst", str(burst_bytes), "limit", str(limit_bytes)]
    run("tc", "-n", namespace, "qdisc", "replace", *on_device, *kind)


def counters(namespace: str, device: str) -> Counters:
    """What an interface has sent and received so far."""
    stats = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", device))[0]["stats64"]
    return Counters(stats["tx"]["bytes"], stats["rx"]["bytes"])
