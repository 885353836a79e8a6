"""Every setting changes what it says: each is compared with its default, or with another value."""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import CollectiveTimeoutError, ConfigError, DesyncError, HcclError, TransportUnavailableError
from hccl_py.bootstrap import SingleBootstrap
from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.core.types import Collective, Order
from hccl_py.engine import Engine

CONFIGS = Path(__file__).parents[2] / "cluster_configs"


def open_files() -> dict[str, Any]:
    """What each open descriptor of this process is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def tcp_sockets(before: dict[str, Any]) -> list[socket.socket]:
    """Copies of the connected TCP sockets that were opened since ``before``."""
    found = []
    for name, what in open_files().items():
        if before.get(name) == what or not what.startswith("socket:"):
            continue
        copy = socket.socket(fileno=os.dup(int(name)))
        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
            found.append(copy)
        else:
            copy.close()
    return found


def local_addresses(settings: dict[str, Any], size: int = 2) -> list[Any]:
    """(family, address, port) of all TCP connections of a group with these settings."""
    before = open_files()
    with Ranks("tcp", size, settings) as ranks:
        ranks.run(lambda comm: comm.barrier())
        sockets = tcp_sockets(before)
        names = [(one.family, *one.getsockname()[:2]) for one in sockets]
        for one in sockets:
            one.close()
    return names


def memory_bytes(settings: dict[str, Any]) -> int:
    """Size of the shared memory of a group of two."""
    before = open_files()
    with Ranks("shm", 2, settings):
        sizes = {
            os.stat(f"/proc/self/fd/{name}").st_size
            for name, what in open_files().items()
            if "memfd:hccl_py" in what
            and before.get(name) != what
            and stat.S_ISREG(os.stat(f"/proc/self/fd/{name}").st_mode)
        }
    assert len(sizes) == 1
    return sizes.pop()


def test_transports() -> None:
    for transport in ("shm", "tcp"):
        with Ranks(transport, 2) as ranks:
            assert ranks.comms[0].engine.transport_to(1) == transport
            assert ranks.comms[0].engine.transport_to(0) == "self"
    with Ranks("shm", 2, {"transports": ("shm", "tcp")}) as ranks:  # memory is preferred
        assert ranks.comms[0].engine.transport_to(1) == "shm"


@pytest.mark.parametrize("names", [("smh",), ("shm", "rdma"), ("loopback",)])
def test_transports_that_nobody_knows_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(HcclError, match=names[-1]):
        Engine(SingleBootstrap(), env=Env(transports=names))


def test_host_id() -> None:
    with Ranks("shm", 4, lambda rank: {"transports": ("shm", "tcp"), "host_id": f"h{rank % 2}"}) as ranks:
        kinds = [[comm.engine.transport_to(peer) for peer in range(4)] for comm in ranks.comms]
        assert kinds[0] == ["self", "tcp", "shm", "tcp"] and kinds[3] == ["tcp", "shm", "tcp", "self"]
    with (
        pytest.raises(TransportUnavailableError, match="another host and tcp is off"),
        Ranks("shm", 2, lambda rank: {"host_id": f"h{rank}"}),
    ):
        pass


@pytest.mark.parametrize("timeout_s", [0.3, 1.2])
def test_timeout_s(timeout_s: float) -> None:
    with Ranks("shm", 2, {"timeout_s": timeout_s}) as ranks:

        def late(comm: Communicator) -> float:
            if comm.rank == 1:
                return timeout_s
            began = time.monotonic()
            with pytest.raises(CollectiveTimeoutError, match=rf"timed out after {timeout_s}"):
                comm.barrier()
            return time.monotonic() - began

        waited = ranks.run(late)[0]
        assert timeout_s <= waited < timeout_s + 1.0


def test_algorithm_and_deterministic() -> None:
    def plans(**settings: Any) -> tuple[set[str], set[Order]]:
        with Ranks("shm", 3, settings) as ranks:
            rows = ranks.comms[0].engine.planner.table(Collective.ALL_REDUCE).entries
            ranks.run(lambda comm: comm.all_reduce(np.ones(100_000)))
            return {row.plan.algorithm for row in rows}, {row.plan.order for row in rows}

    assert plans(algorithm=(("all_reduce", "ring"),))[0] == {"ring"}
    assert plans(algorithm=(("*", "tree"),))[0] == {"tree"}
    assert plans(deterministic=True)[1] == {Order.CANONICAL}


def test_topology() -> None:
    path = str(CONFIGS / "single_host_4cpu.yaml")
    with Ranks("shm", 4, {"topology": path}) as described, Ranks("shm", 4) as found:
        digests = [ranks.comms[0].engine.planner.topology.digest() for ranks in (described, found)]
        assert digests[0] != digests[1]
        described.run(lambda comm: comm.barrier())
    with (
        pytest.raises(ConfigError, match=r"four_hosts_uneven\.yaml"),
        Ranks("shm", 4, {"topology": str(CONFIGS / "four_hosts_uneven.yaml")}),
    ):
        pass


def test_ranks_with_different_settings_are_told_which() -> None:
    with (
        pytest.raises(ConfigError, match=r"HCCL_PY_DETERMINISTIC is '[01]' here and '[01]' there"),
        Ranks("shm", 2, lambda rank: {"deterministic": rank == 1}),
    ):
        pass


def test_interfaces() -> None:
    loopback = local_addresses({"interfaces": "127.0.0.0/8"})
    assert loopback and {address for _, address, _ in loopback} == {"127.0.0.1"}
    by_name = {address for _, address, _ in local_addresses({"interfaces": "lo", "family": "ipv4"})}
    assert by_name == {"127.0.0.1"}
    with pytest.raises(HcclError, match=r"nosuch0.*\blo\b"), Ranks("tcp", 2, {"interfaces": "nosuch0"}):
        pass


def test_family() -> None:
    assert {family for family, _, _ in local_addresses({"family": "ipv4", "interfaces": "lo"})} == {socket.AF_INET}
    if not Path("/proc/net/if_inet6").exists() or " lo\n" not in Path("/proc/net/if_inet6").read_text():
        pytest.skip("no IPv6 on lo")
    assert {family for family, _, _ in local_addresses({"family": "ipv6", "interfaces": "lo"})} == {socket.AF_INET6}


def test_port_range() -> None:
    with socket.socket() as probe:  # some free port, likely with free ones after it
        probe.bind(("", 0))
        low = min(probe.getsockname()[1], 65_500)
    ports = {port for _, _, port in local_addresses({"port_range": (low, low + 30)}, size=3)}
    assert len([port for port in ports if low <= port <= low + 30]) >= 2  # where ranks were connected to


def test_a_port_range_that_is_in_use_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HcclError, match=str(port)), Ranks("tcp", 2, {"port_range": (port, port), "family": "ipv4"}):
            pass


@pytest.mark.parametrize("connections", [1, 2, 5])
def test_connections(connections: int) -> None:
    """So many for collectives, and one for messages; both ends are in this process."""
    assert len(local_addresses({"connections": connections})) == 2 * (connections + 1)


def congestion(settings: dict[str, Any]) -> set[str]:
    """The congestion controls of the TCP connections of a group of two."""
    before = open_files()
    with Ranks("tcp", 2, settings) as ranks:
        ranks.run(lambda comm: comm.barrier())
        sockets = tcp_sockets(before)
        names = {one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") for one in sockets}
        for one in sockets:
            one.close()
    return {name.decode() for name in names}


def test_congestion() -> None:
    """reno is always there. Unset: on a way as short as this one nothing that paces."""
    assert congestion({"congestion": "reno"}) == {"reno"}
    usual = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    assert congestion({}) <= ({"cubic", "reno"} if usual == "bbr" else {usual})
    with pytest.raises(ConfigError, match="tcp_congestion is nosuch"), Ranks("tcp", 2, {"congestion": "nosuch"}):
        pass


def test_a_channel_has_the_pace_it_was_given() -> None:
    data = np.zeros(1 << 21, "float32")
    took_s: dict[float, list[float]] = {0.0: [], 20e6: []}

    def paced(comm: Communicator) -> None:
        for most_Bps in (0.0, 20e6, 0.0, 0.0, 0.0, 0.0):
            for channel in range(2):
                assert comm.engine.pace(1 - comm.rank, channel, most_Bps)
            comm.barrier()
            start_s = time.perf_counter()
            comm.all_reduce(data.copy())
            if comm.rank == 0:
                took_s[most_Bps].append(time.perf_counter() - start_s)
        with pytest.raises(ConfigError, match="no channel 2 to rank 1"):
            comm.engine.pace(1, 2, 0)
        with pytest.raises(ConfigError, match="cannot be paced"):
            comm.engine.pace(1 - comm.rank, 0, -1)

    with Ranks("tcp", 2, {"congestion": "reno"}) as ranks:
        ranks.run(paced)
    # 8 MiB take 0.4 s at that pace, less what the buffers take at once. A quiet try without is fast.
    assert took_s[20e6][0] > 0.1
    assert min(took_s[0.0]) < took_s[20e6][0] / 2
    with Ranks("shm", 2) as ranks:
        assert ranks.run(lambda comm: comm.engine.pace(1 - comm.rank, 0, 1e6)) == [False, False]


def test_ring_bytes_and_slot_bytes() -> None:
    usual = memory_bytes({"ring_bytes": 1 << 19, "slot_bytes": 1 << 16})
    assert memory_bytes({}) == usual
    rings = 2 * 2 * 3  # ordered pairs, itself included, and channels
    assert memory_bytes({"ring_bytes": 1 << 20}) - usual == rings * ((1 << 20) - (1 << 19))
    more_slots = memory_bytes({"slot_bytes": 1 << 20}) - usual
    assert abs(more_slots - 2 * 2 * ((1 << 20) - (1 << 16))) <= 4096
    with Ranks("shm", 2, {"slot_bytes": 128}) as ranks:

        def both_sides(comm: Communicator) -> bool:
            good = True
            for count in (1, 16, 17, 1000):  # 128 bytes go by slots, more do not
                data = np.ones(count)
                comm.all_reduce(data)
                good &= bool((data == 2).all())
            return good

        assert ranks.run(both_sides) == [True, True]


@pytest.mark.parametrize(
    ("setting", "wrong", "message"),
    [
        ("ring_bytes", 5000, "power of two"),
        ("slot_bytes", 100, "multiple of 64"),
        ("segment_bytes", 100, "multiple of 64"),
    ],
)
def test_sizes_that_cannot_be_are_refused(setting: str, wrong: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message), Ranks("shm", 2, {setting: wrong}):
        pass


@pytest.mark.parametrize(
    ("transport", "size"), [("shm", 64), ("shm", 4096), ("shm", 1 << 20), ("tcp", 64), ("tcp", 1 << 20)]
)
def test_segment_bytes(transport: str, size: int) -> None:
    """Any size gives right results; ranks must have the same one."""
    with Ranks(transport, 3, {"segment_bytes": size, "ring_bytes": 4096 if size == 4096 else None}) as ranks:

        def reduce(comm: Communicator) -> bool:
            data = np.arange(50_001.0)
            comm.all_reduce(data)
            return bool((data == 3 * np.arange(50_001.0)).all())

        assert ranks.run(reduce) == [True] * 3
    with (
        pytest.raises(ConfigError, match="HCCL_PY_SEGMENT_BYTES"),
        Ranks(transport, 2, lambda rank: {"segment_bytes": size * (1 + rank)}),
    ):
        pass


def test_spin() -> None:
    """A million polls are seen in the CPU time of the thread that waits."""

    def burnt_s(spin: int) -> float:
        with Ranks("shm", 2, {"spin": spin, "timeout_s": 0.5}) as ranks:

            def wait(comm: Communicator) -> float:
                if comm.rank == 1:
                    return 0.0
                began = time.thread_time()
                with pytest.raises(CollectiveTimeoutError):
                    comm.barrier()
                return time.thread_time() - began

            return ranks.run(wait)[0]

    assert burnt_s(1_000_000) > 4 * burnt_s(0)


def test_strict() -> None:
    """Two roots that only send: without it the next call notices, with it this one."""

    def first_error(strict: bool) -> list[str]:
        with Ranks("tcp", 2, {"strict": strict}) as ranks:

            def call(comm: Communicator) -> str:
                try:
                    comm.broadcast(np.ones(10), root=comm.rank)
                except DesyncError:
                    return "first"
                with pytest.raises(DesyncError):
                    comm.barrier()
                return "second"

            return ranks.run(call)

    assert first_error(True) == ["first", "first"] and first_error(False) == ["second", "second"]


def test_log_level() -> None:
    logger = logging.getLogger("hccl_py")
    before = logger.level
    try:
        for word in ("error", "debug", "info", "warning"):
            Engine(SingleBootstrap(), env=Env(log_level=word)).close()
            assert logger.level == getattr(logging, word.upper())
    finally:
        logger.setLevel(before)
