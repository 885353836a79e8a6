"""From settings to the native group's options: each transport checks its own."""

from __future__ import annotations

from typing import Any

from hccl_py.core.cpus import usable_cpus
from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError
from hccl_py.transports.registry import find
from hccl_py.transports.shm import ShmConfig
from hccl_py.transports.tcp import TcpConfig

_FAMILIES = {"any": "auto", "ipv4": "4", "ipv6": "6"}


def group_options(env: Env, timeout_s: float) -> dict[str, Any]:
    """Keyword arguments of ``_native.Group``.

    Raises:
        ConfigError: a transport is unknown or cannot be asked for, or an option of one is wrong.
    """
    for name in env.transports:
        find(name)
    if "loopback" in env.transports:
        raise ConfigError("HCCL_PY_TRANSPORTS: loopback is for the threads of one process; processes use shm and tcp")
    shm = ShmConfig(
        **_given(
            shm_ring_bytes=env.ring_bytes,
            shm_slot_bytes=env.slot_bytes,
            shm_shared_from_bytes=env.shared_from_bytes,
            shm_private_from_bytes=env.private_from_bytes,
        )
    )
    tcp = TcpConfig(
        **_given(
            tcp_interfaces=env.interfaces,
            tcp_port_range=env.port_range,
            tcp_connections=env.connections,
            tcp_congestion=env.congestion,
        ),
        tcp_family=_FAMILIES[env.family],
    )
    return {
        **shm.keywords(),
        **tcp.keywords(),
        **_given(segment_bytes=env.segment_bytes, spins=env.spin, host_id=env.host_id),
        "use_shm": "shm" in env.transports,
        "use_tcp": "tcp" in env.transports,
        "usable_cpus": usable_cpus(),
        "timeout_s": timeout_s,
        "strict": env.strict,
    }


def _given(**options: Any) -> dict[str, Any]:
    """Those that are set; the others keep their defaults."""
    return {name: value for name, value in options.items() if value is not None}
