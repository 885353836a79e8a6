"""Engine: one rank's connected group with its plans. Buffers are addresses here; Communicator and torch build on it."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from hccl_py import _native
from hccl_py.bootstrap import Bootstrap, ThreadBootstrap
from hccl_py.core.env import Env
from hccl_py.core.errors import CollectiveTimeoutError, ConfigError, DesyncError, HcclError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.options import group_options
from hccl_py.planner import Planner, allowed_interfaces
from hccl_py.scheduler.select import PlanTable
from hccl_py.sites import Site, call_site, describe
from hccl_py.topology.config import ClusterConfig, load_cluster
from hccl_py.topology.graph import Topology

_PENDING_BEFORE_SWEEP = 32
_SITE_WAIT_S = 1.0  # for the other side to say where it called
_log = logging.getLogger("hccl_py")


class Work:
    """An operation under way. Keeps its buffers alive until it is over."""

    def __init__(self, engine: Engine, native: _native.Work, site: Site | None, keep: Any) -> None:
        self._engine = engine
        self._native = native
        self._site = site
        self._keep = keep

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until it is over; raise what went wrong.

        Raises:
            CollectiveTimeoutError: ``timeout_s`` passed first; the operation goes on.
        """
        try:
            over = self._native.wait(timeout_s)
        except DesyncError as error:
            self._keep = None
            raise self._engine._with_sites(error, self._site) from None
        except HcclError:
            self._keep = None
            raise
        if not over:
            rank, waited_s = self._engine.rank, timeout_s or 0.0
            raise CollectiveTimeoutError(f"rank {rank}: still under way after {waited_s} s", rank, waited_s=waited_s)
        self._keep = None

    def done(self) -> bool:
        """True once it is over, well or not."""
        return self._native.done()

    @property
    def ended_s(self) -> float:
        """When it was done on this rank, on the clock of ``time.perf_counter``; 0: not yet, or failed."""
        return self._native.ended_s

    @property
    def source(self) -> int:
        """The rank that sent, of a receive that is over."""
        return self._native.source

    @property
    def tag(self) -> int:
        """The tag of the message, of a receive that is over."""
        return self._native.tag

    @property
    def num_bytes(self) -> int:
        """How long the message was, of a receive that is over."""
        return self._native.num_bytes


class ConnectionTrace(NamedTuple):
    """One TCP connection since it was made; the kernel counts time in ticks of 1 to 10 ms, exact on the average.

    Attributes:
        peer: the rank at its other end.
        connection: 0 for messages, 1 + channel for plans.
        acked_bytes: what the peer's kernel has acknowledged, headers of ours included.
        busy_us: while something was under way.
        peer_full_us: of that, while the peer had no room: it was late, or had no CPU.
        self_full_us: of that, while our own send buffer was too small.
        resent_bytes: what had to be sent again.
        rate_Bps: of the latest delivery.
        min_rtt_us: the shortest round trip.
    """

    peer: int
    connection: int
    acked_bytes: int
    busy_us: int
    peer_full_us: int
    self_full_us: int
    resent_bytes: int
    rate_Bps: int
    min_rtt_us: int


class Engine:
    """One rank's membership in a group of ranks that are connected and agree on their settings.

    Args:
        bootstrap: how the ranks find each other; used during construction and by :meth:`resync`.
        env: settings (None: from the environment).
        timeout_s: of each operation and of connecting (None: as the settings say).
        hub: the ranks are threads of this process and use the reference transport.

    Raises:
        ConfigError: ranks have different settings, or one of them failed; the message names it.
        TransportUnavailableError, CollectiveTimeoutError: ranks cannot reach each other.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        env: Env | None = None,
        timeout_s: float | None = None,
        hub: _native.Hub | None = None,
    ) -> None:
        self.rank = bootstrap.rank
        self.size = bootstrap.size
        self._env = Env.from_environ() if env is None else env
        self._timeout_s = self._env.timeout_s if timeout_s is None else timeout_s
        self._pending: deque[Work] = deque()  # perhaps not over: a Work that is dropped must not take its buffers along
        self._pending_lock = threading.RLock()  # threads may start work at once, and buffers let go may call back
        self._sweep_at = _PENDING_BEFORE_SWEEP
        self._tables: set[tuple[Collective, int, bool]] = set()  # (collective, root, uneven) that were loaded
        self._programs: dict[bytes, int] = {}  # by the digest of the plan, its number in the group
        _log.setLevel(self._env.log_level.upper())
        self._cluster: ClusterConfig | None = None
        self._bootstrap, self._hub = bootstrap, hub
        self._disagreed_at = ""  # where the latest call was whose ranks disagreed
        self._enter(bootstrap, hub)
        self.hosts = tuple(self._connect(bootstrap, hub))  # by rank, a word; equal: they share memory
        slot_bytes = self._group.slot_bytes if len(set(self.hosts)) == 1 else 0
        self._planner = Planner(self.hosts, self._env, slot_bytes, self._cluster)
        self._agree(bootstrap, "settings", self._planner.digest())
        if self._group.warning:
            _log.warning("%s; these ranks use tcp among themselves", self._group.warning)
        wires = {peer: self.transport_to(peer) for peer in range(self.size)}
        _log.info("rank %d of %d is connected: %s", self.rank, self.size, wires)

    def _enter(self, bootstrap: Bootstrap, hub: _native.Hub | None) -> None:
        """Make this rank's native group, not yet connected."""
        self._group: _native.Group = self._together(bootstrap, "configure", lambda: self._make(hub))
        # At exit too: peers that wait for this rank hear at once that it is gone.
        self._close = weakref.finalize(self, self._group.close)
        self._run: Callable[..., bool] = self._group.run

    def _make(self, hub: _native.Hub | None) -> _native.Group:
        if self._env.topology is not None:
            self._cluster = load_cluster(self._env.topology)
            if self._env.interfaces is None:  # the file's policy may say which ones this rank may use
                self._env = replace(self._env, interfaces=allowed_interfaces(self._cluster, self.rank))
        return _native.Group(self.rank, self.size, hub=hub, **group_options(self._env, self._timeout_s))

    def _connect(self, bootstrap: Bootstrap, hub: _native.Hub | None) -> list[str]:
        """Connect; return for each rank a word for its host."""
        group, timeout_s = self._group, self._timeout_s
        if hub is None:
            addresses = bootstrap.allgather(group.address())
            report = self._together(bootstrap, "join", lambda: group.join(addresses, timeout_s))
            reports = bootstrap.allgather(report)
            self._together(bootstrap, "connect", lambda: group.connect(reports, timeout_s))
        word = f"{socket.gethostname()}-{group.local_ranks[0]}"
        return [host.decode() for host in bootstrap.allgather(word.encode())]

    def _together(self, bootstrap: Bootstrap, stage: str, step: Callable[[], Any]) -> Any:
        """Do ``step`` on all ranks; where one fails, all raise."""
        failed: Exception | None = None
        result = None
        try:
            result = step()
        except HcclError as error:
            failed = error
        outcomes = bootstrap.allgather(str(failed).encode() if failed else b"")
        if failed is not None:
            raise failed
        for rank, outcome in enumerate(outcomes):
            if outcome:
                raise ConfigError(f"rank {rank} could not {stage}: {outcome.decode()}")
        return result

    def _agree(self, bootstrap: Bootstrap, what: str, ours: str) -> None:
        """Raise unless all ranks have the same settings."""
        table = {setting.name: setting.value for setting in self._env.table()}
        for rank, data in enumerate(bootstrap.allgather(json.dumps([ours, table]).encode())):
            theirs, their_table = json.loads(data)
            if theirs == ours:
                continue
            found = [
                f"{name} is {value!r} here and {their_table.get(name)!r} there"
                for name, value in table.items()
                if their_table.get(name) != value
            ]
            reason = "; ".join(found) or "they see different clusters"
            raise ConfigError(f"ranks {self.rank} and {rank} have different {what}: {reason}")

    @property
    def env(self) -> Env:
        """The settings."""
        return self._env

    @property
    def timeout_s(self) -> float:
        """Of each operation."""
        return self._timeout_s

    # Collectives

    def run(
        self, collective: Collective, op: ReduceOp, dtype: DType, root: int, in_ptr: int, out_ptr: int, count: int
    ) -> None:
        """Run a collective in the caller, without the GIL.

        ``count`` is in elements per block (see :class:`Collective`). In place: the addresses overlap exactly as the
        collective has it. What this rank alone can judge is refused before any byte moves.

        Raises:
            ConfigError, DesyncError, PeerLostError, CollectiveTimeoutError, BrokenGroupError
        """
        try:
            if self._run(collective, op, dtype, root, in_ptr, out_ptr, count):
                return
            self._load_table(collective, root, False)
            self._run(collective, op, dtype, root, in_ptr, out_ptr, count)
        except DesyncError as error:
            raise self.explain(error) from None

    def run_shortly(
        self, collective: int, op: int, dtype: int, root: int, in_ptr: int, out_ptr: int, count: int
    ) -> bool:
        """:meth:`run`, by numbers; False, and nothing done, if a plan table is still to be loaded."""
        try:
            return self._run(collective, op, dtype, root, in_ptr, out_ptr, count)
        except DesyncError as error:
            raise self.explain(error) from None

    def start_shortly(
        self, collective: int, op: int, dtype: int, root: int, in_ptr: int, out_ptr: int, count: int, keep: Any
    ) -> Work | Literal[False] | None:
        """:meth:`start`, by numbers; None if it is over already; False as :meth:`run_shortly`."""
        native = self._group.start(collective, op, dtype, root, in_ptr, out_ptr, count)
        if native is None:
            return False
        return None if native.done() and not native.failed() else self._track(native, keep)

    @property
    def native(self) -> _native.Group:
        """The native group, for calls that must cost no more than one call."""
        return self._group

    def prepare(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        out_ptr: int,
        count: int,
        keep: Any = None,
    ) -> _native.Prepared:
        """A call as :meth:`run` makes it, to be made again and again; it keeps ``keep`` alive."""
        site = call_site()
        arguments = (collective, op, dtype, root, in_ptr, out_ptr, count, keep)
        prepared = self._group.prepare(*arguments, explain=lambda error: self._with_sites(error, site))
        if prepared is None:
            self._load_table(collective, root, False)
            prepared = self._group.prepare(*arguments, explain=lambda error: self._with_sites(error, site))
            assert prepared is not None
        return prepared

    def start(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        out_ptr: int,
        count: int,
        keep: Any = None,
    ) -> Work:
        """As :meth:`run`, but return at once. ``keep`` is held until the work is over."""
        return self._start(collective, op, dtype, root, in_ptr, out_ptr, count, None, keep)

    def run_v(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        in_counts: Sequence[int],
        out_ptr: int,
        out_counts: Sequence[int],
    ) -> None:
        """As :meth:`run`, with blocks of different sizes: elements for each rank; an empty list for a single block."""
        self.start_v(collective, op, dtype, root, in_ptr, in_counts, out_ptr, out_counts).wait()

    def start_v(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        in_counts: Sequence[int],
        out_ptr: int,
        out_counts: Sequence[int],
        keep: Any = None,
    ) -> Work:
        """As :meth:`run_v`, but return at once."""
        single = {Collective.ALL_GATHER: out_counts, Collective.GATHER: out_counts}.get(
            collective, in_counts if collective in (Collective.REDUCE_SCATTER, Collective.SCATTER) else ()
        )
        count = single[self.rank] if single else 0
        counts = (list(in_counts), list(out_counts))
        return self._start(collective, op, dtype, root, in_ptr, out_ptr, count, counts, keep)

    def _start(
        self,
        collective: Collective,
        op: ReduceOp,
        dtype: DType,
        root: int,
        in_ptr: int,
        out_ptr: int,
        count: int,
        counts: tuple[list[int], list[int]] | None,
        keep: Any,
    ) -> Work:
        native = self._group.start(collective, op, dtype, root, in_ptr, out_ptr, count, counts)
        if native is None:
            self._load_table(collective, root, counts is not None)
            native = self._group.start(collective, op, dtype, root, in_ptr, out_ptr, count, counts)
        return self._track(native, keep)

    # Memory

    def allocate(self, num_bytes: int) -> Any:
        """New zeroed memory, as an array of bytes, that all ranks of this host can reach.

        Raises:
            ConfigError: there is not enough memory.
        """
        return self._group.allocate(num_bytes)

    def adopt(self, ptr: int, num_bytes: int) -> _native.Segment:
        """Make ordinary memory reachable in the same way, where it is, until the segment is dropped.

        Raises:
            ConfigError: it is not ordinary memory of this process: a mapped file, read-only, or shared already.
        """
        return self._group.adopt(ptr, num_bytes)

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Bytes that this rank read, wrote, and wrote into rings or staging memory, in its last large collective."""
        return self._group.traffic

    @property
    def no_pulls(self) -> str:
        """Why this rank cannot read the private memory of its host's other ranks; empty if it can."""
        return self._group.no_pulls

    # Point to point

    def send(self, ptr: int, nbytes: int, dst: int, tag: int) -> None:
        """Send; a large message waits for its receiver."""
        self.start_send(ptr, nbytes, dst, tag).wait()

    def recv(self, ptr: int, nbytes: int, src: int, tag: int) -> int:
        """Receive exactly ``nbytes`` from ``src`` (-1: from anybody); return who sent."""
        work = self.start_recv(ptr, nbytes, src, tag)
        work.wait()
        return work.source

    def start_send(self, ptr: int, nbytes: int, dst: int, tag: int, keep: Any = None) -> Work:
        """As :meth:`send`, but return at once."""
        return self._track(self._group.start_send(ptr, nbytes, dst, tag), keep)

    def start_recv(
        self, ptr: int, nbytes: int, src: int, tag: int, keep: Any = None, wild: int = 0, shorter: bool = False
    ) -> Work:
        """As :meth:`recv`, but return at once; the work knows the source.

        ``wild``: bits of the tag that may be anything. ``shorter``: a message of fewer bytes will do, too.
        """
        return self._track(self._group.start_recv(ptr, nbytes, src, tag, wild, shorter), keep)

    def _track(self, native: _native.Work | None, keep: Any) -> Work:
        assert native is not None
        work = Work(self, native, call_site(), keep)
        with self._pending_lock:
            pending = self._pending
            while pending and pending[0].done():
                pending.popleft()
            if len(pending) >= self._sweep_at:  # one that is never matched must not keep the others
                self._pending = pending = deque(work for work in pending if not work.done())
                self._sweep_at = max(_PENDING_BEFORE_SWEEP, 2 * len(pending))  # a start costs O(1), however many wait
            pending.append(work)
        return work

    # Plans

    def load(self, collective: Collective, root: int = 0) -> None:
        """Choose and load the plans of a collective, which its first call would do. Moves nothing."""
        if (collective, root, False) not in self._tables:
            self._load_table(collective, root, False)

    def _load_table(self, collective: Collective, root: int, uneven: bool) -> None:
        self._set_table(collective, root, uneven, self._planner.table(collective, root, uneven))
        self._tables.add((collective, root, uneven))

    def _set_table(self, collective: Collective, root: int, uneven: bool, table: PlanTable) -> None:
        rows, loaded = table.entries, self._programs
        for row in rows:
            if row.plan.digest not in loaded:
                loaded[row.plan.digest] = self._group.load_program(row.plan.program(self.rank).to_bytes())
        programs = [loaded[row.plan.digest] for row in rows]
        self._group.set_table(collective, root, uneven, [row.upto_bytes for row in rows], programs)

    def replan(self, topology: Topology, tables: Mapping[Collective, PlanTable] | None = None) -> None:
        """Choose plans for a graph with other figures from now on; what has been started ends by its old plan.

        All ranks must do so between the same two calls, with equal graphs: each call's fingerprint names its plan, so
        ranks that do not are told (DesyncError). Prepared calls keep their plans: prepare them anew.

        Args:
            topology: the group's own graph with other bandwidths and latencies.
            tables: of collectives whose table has been made already, for equal blocks.

        Raises:
            ConfigError: nodes or links are not those of the group's graph.
        """
        self._planner.adopt(topology)
        made = {(collective, 0, False): table for collective, table in (tables or {}).items()}
        self._tables |= set(made)
        for collective, root, uneven in sorted(self._tables):
            table = made.get((collective, root, uneven))
            if table is None:
                table = self._planner.table(collective, root, uneven)
            self._set_table(collective, root, uneven, table)

    @property
    def planner(self) -> Planner:
        """Which plans are used, and the graph they come from."""
        return self._planner

    def transport_to(self, peer: int) -> str:
        """``"shm"``, ``"tcp"``, ``"loopback"``, or ``"self"``."""
        return self._group.transport_to(peer)

    def trace(self) -> list[ConnectionTrace]:
        """What the kernel has counted of each TCP connection of this rank so far; costs a system call for each.

        Nothing is counted on the data path for it. Empty where all ranks share a host.
        """
        return [ConnectionTrace(*row) for row in self._group.trace()]

    def pace(self, peer: int, channel: int, most_Bps: float) -> bool:
        """Send to ``peer`` by one of the plans' channels at most so many bytes a second; 0: as many as go.

        Of shared links each channel can so be given its share. Takes effect at once. False: this transport cannot.

        Raises:
            ConfigError: no such channel, or a negative rate.
        """
        return self._group.pace(peer, channel, most_Bps)

    # The end, and a new beginning

    def resync(self) -> list[str]:
        """Go on after an error: all ranks leave the group and connect anew, with an empty queue. Collective.

        What was under way anywhere fails (who waits for a rank that is here already gets PeerLostError, and comes here,
        too); prepared calls must be prepared anew, plans and settings stay. Also for groups that are not broken, whose
        ranks are no longer at the same place of their program.

        Returns:
            by rank, the line of its latest call at which ranks disagreed; "" where there was none.

        Raises:
            TransportUnavailableError, CollectiveTimeoutError: ranks cannot reach each other, or do not come (how long
                that takes is up to the bootstrap).
        """
        bootstrap = self._bootstrap
        self.close()
        # Nobody connects before all have left, so that nobody takes an old peer's wires for a new one's.
        places = [place.decode() for place in bootstrap.allgather(self._disagreed_at.encode())]
        self._disagreed_at = ""
        if isinstance(bootstrap, ThreadBootstrap) and self._hub is not None:
            self._hub = bootstrap.new_hub()
        self._tables.clear()
        self._programs.clear()
        self._enter(bootstrap, self._hub)
        self._connect(bootstrap, self._hub)
        return places

    def abort(self, why: str = "abort() was called") -> None:
        """Make everything under way fail, here and on the other ranks. Any thread; idempotent."""
        self._group.abort(why)

    def close(self) -> None:
        """Leave the group; what is still under way fails. Idempotent."""
        self._close()
        with self._pending_lock:
            self._pending.clear()

    def explain(self, error: DesyncError) -> DesyncError:
        """The error of a call that is being made, with the lines of the two programs that disagree."""
        return self._with_sites(error, call_site())

    def _with_sites(self, error: DesyncError, site: Site | None) -> DesyncError:
        """The error with the lines of the two programs that disagree."""
        ours = self._disagreed_at = describe(site)
        theirs = ""
        numbered = re.search(r"#(\d+)", error.ours)
        if numbered is not None:
            sequence = int(numbered[1])
            self._group.post_site(sequence, ours)
            if error.peer >= 0:
                theirs = self._group.peer_site(error.peer, sequence, _SITE_WAIT_S)
        text = f"{error}; rank {self.rank} called at {ours}" + (f", rank {error.peer} at {theirs}" if theirs else "")
        return DesyncError(text, ours=error.ours, theirs=error.theirs, peer=error.peer)


__all__ = ["ConnectionTrace", "Engine", "Work"]
