"""ControlLoop: measures while a job trains, lets the policy decide, and changes plans on all ranks at the same step.

Every rank calls :meth:`ControlLoop.step` between two training steps. Every few steps the ranks exchange what they
measured, in the background of the next one; then each runs the same policy on the same data, so nobody leads. What it
decides is a proposal, whose digest goes with the next exchange: if all ranks came to the same, all adopt it when that
exchange is over, else none does.
"""

from __future__ import annotations

import logging
import math
import statistics
import struct
import time
from collections.abc import Callable, Sequence

import numpy as np

from hccl_py.core.types import Collective, DType
from hccl_py.engine import ConnectionTrace, Engine
from hccl_py.exchange import Exchange
from hccl_py.probing import probe
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.budgets import Budgets
from hccl_py.scheduler.decision import Decision, Kind
from hccl_py.scheduler.measurement import BucketRun, ChannelUse, Measurement, Probe, ProbeRun
from hccl_py.scheduler.policy import Policy
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.timeline import Timeline
from hccl_py.status import StatusFile

# An exchange costs each rank about a millisecond of a core. Steps between exchanges: soon after something has happened
# (the job has begun, steps have become slower or faster, a link is doubted, plans have changed), when it is quiet, and
# at most.
_EVERY, _QUIET_EVERY, _MOST_EVERY = 2, 4, 256
_LEAST_S, _QUIET_S, _QUIET_S_A_RANK = 0.2, 1.0, 0.05  # seconds between exchanges
_LIVELY = 16  # exchanges for which something has just happened
_ALARM = 1.3  # steps that take so much longer or shorter than usual, twice, are something that happens
_SHARE, _QUIET_SHARE = 0.08, 0.003  # of the time, for exchanges, by the CPU time that they take on the busiest rank
_MOST_CHANNELS, _MOST_BUCKETS, _MOST_RUNS = 64, 512, 8
_DIGEST_BYTES = 64
_HEAD = struct.Struct("<64s?d")  # digest of the proposal, alarm, seconds of CPU that an exchange takes
_RUN = struct.Struct("<IIQd")
_log = logging.getLogger("hccl_py")
_Clock = Callable[[], float]


class ControlLoop:
    """The scheduler of one training loop, on one rank.

    Args:
        engine: the group over which gradients are averaged.
        numel, dtype: of each gradient, as in :class:`Timeline`; the same on all ranks.
        buckets: the partition that the training begins with.
        budgets: what may be spent on looking and changing.
        free_buckets: False if somebody else cuts the buckets: only plans, pieces and connections change then.
        collective: what buckets are sent by; sizes are those of its blocks.
        clock, cpu_clock: seconds, and seconds of CPU that this thread has used.
    """

    def __init__(
        self,
        engine: Engine,
        numel: Sequence[int],
        dtype: Sequence[DType],
        buckets: BucketPlan,
        *,
        budgets: Budgets | None = None,
        free_buckets: bool = True,
        collective: Collective = Collective.ALL_REDUCE,
        clock: _Clock = time.perf_counter,
        cpu_clock: _Clock = time.thread_time,
    ) -> None:
        self._engine, self._clock, self._cpu_clock = engine, clock, cpu_clock
        self._numel, self._dtype = tuple(numel), tuple(dtype)
        planner = engine.planner
        self._declared = planner.topology
        self._pricing = Pricing(
            planner.placement,
            lambda topology, channels: planner.table(collective, topology=topology, channels=channels),
        )
        self._collective, self._channels_used = collective, 0
        self.policy = Policy(
            planner.topology, planner.placement, self._pricing, buckets, budgets,
            free_plans=planner.free, free_buckets=free_buckets, explore=True, most_channels=planner.channels,
        )  # fmt: skip
        self._most_channels = min(_MOST_CHANNELS, (engine.size - 1) * planner.channels)
        self._exchange = Exchange(engine, self._most_bytes(_MOST_BUCKETS))
        self._digests = Exchange(engine, _DIGEST_BYTES)
        self._probes = Exchange(engine, 64 + _RUN.size * _MOST_RUNS)
        for needed in (collective, Collective.ALL_GATHER, Collective.BARRIER):
            engine.load(needed)  # now, and not in a step
        self._step = self._told = 0
        self._every, self._lively = _EVERY, _LIVELY
        self._proposal = Decision.keep(0, "")
        self._usual_s: float | None = None
        self._alarmed = False
        self._costs_s: list[float] = [0.0]  # of exchanges on this rank
        self._shared_cost_s = 0.0  # of one, on the busiest
        self._slowed = False  # what has been adopted is for links that are not as declared
        self._last_s: float | None = None
        self._since_s, self._since_cpu_s = 0.0, 0.0  # the last exchange
        self._counted: dict[tuple[int, int], ConnectionTrace] = {}
        self._steps: list[tuple[float, float, float]] = []  # since the last exchange
        self._status = StatusFile.of(engine)

    def step(
        self,
        ready_s: Sequence[float],
        *,
        backward_s: float,
        exposed_s: float,
        buckets: Callable[[], Sequence[BucketRun]] = tuple,
    ) -> Decision | None:
        """Call on all ranks between two steps. Returns a switch that holds from now on, or None.

        Plans have been changed already; the caller cuts its gradients by ``decision.buckets`` before the next backward.

        Args:
            ready_s: of each gradient, seconds from the beginning of backward.
            backward_s: seconds of backward, without what it waited for communication at its end.
            exposed_s: seconds that it waited.
            buckets: called if it is to be known; returns of each bucket in the order of sending: bytes, and seconds
                from the beginning of backward to its start and end.

        Raises:
            PeerLostError, CollectiveTimeoutError, BrokenGroupError: as any collective.
        """
        now_s = self._clock()
        if self._engine.size == 1:
            return None
        if self._last_s is not None:
            self._steps.append((now_s - self._last_s, backward_s, exposed_s))
        decision = None
        if self._exchange.under_way:
            begin_s = self._cpu_clock()
            decision = self._hear()
            self._costs_s = [*self._costs_s[-4:], self._cpu_clock() - begin_s]
        if self._steps and self._step - self._told >= self._every:
            self._tell(np.asarray(ready_s, np.float32), buckets())
        self._step += 1
        self._last_s = self._clock()
        return decision

    @property
    def quiet(self) -> bool:
        """True if nothing has happened for a while, so that ranks look at the network seldom."""
        return not self._lively and not self._slowed and self.policy.settled

    def close(self) -> None:
        """Finish what is under way. Idempotent."""
        if self._exchange.under_way:
            self._exchange.finish()
        self._status.close()

    # ---- what was measured

    def _tell(self, ready: np.ndarray[tuple[int], np.dtype[np.float32]], buckets: Sequence[BucketRun]) -> None:
        step_s, backward_s, exposed_s = (statistics.median(column) for column in zip(*self._steps, strict=True))
        now_s, cpu_s = self._clock(), time.process_time()
        cpu = (cpu_s - self._since_cpu_s) / max(now_s - self._since_s, 1e-9) if self._since_cpu_s else 0.0
        self._since_s, self._since_cpu_s = now_s, cpu_s
        usual_s, took_s = self._usual_s, backward_s + exposed_s
        self._usual_s = took_s if usual_s is None else usual_s + 0.3 * (took_s - usual_s)
        alarm = usual_s is not None and not usual_s / _ALARM <= took_s <= usual_s * _ALARM
        most = min(_MOST_BUCKETS, len(self.policy.current.buckets))
        runs = tuple(buckets) if len(buckets) <= most else ()
        measurement = Measurement(
            self._step, self._engine.rank, step_s, backward_s, exposed_s, 0.0, cpu, self._channels(), runs
        )
        self._steps, self._told = [], self._step
        head = _HEAD.pack(self._proposal.digest.encode(), alarm, statistics.median(self._costs_s))
        data = head + ready.tobytes() + measurement.to_bytes()
        self._exchange.start(data, self._most_bytes(len(self.policy.current.buckets)))

    def _channels(self) -> tuple[ChannelUse, ...]:
        uses = []
        for row in self._engine.trace():
            key = row.peer, row.connection
            before = self._counted.get(key, row)
            self._counted[key] = row
            busy_s, stalled_s = (row.busy_us - before.busy_us) / 1e6, (row.peer_full_us - before.peer_full_us) / 1e6
            sent_bytes = row.acked_bytes - before.acked_bytes
            if sent_bytes and row.connection:
                uses.append(ChannelUse(row.peer, row.connection - 1, sent_bytes, busy_s, stalled_s))
        return tuple(sorted(uses, key=lambda use: -use.sent_bytes)[: self._most_channels])

    def _most_bytes(self, num_buckets: int) -> int:
        """Of what a rank tells about so many buckets."""
        return _HEAD.size + 128 + 40 * self._most_channels + 24 * num_buckets + 4 * len(self._numel)

    # ---- what is done about it

    def _hear(self) -> Decision | None:
        size = _HEAD.size + 4 * len(self._numel)
        measurements, ready, digests, alarm = [], [], set(), False
        self._shared_cost_s = 0.0
        for row in self._exchange.finish():
            digest, alarmed, cost_s = _HEAD.unpack_from(row)
            digests.add(digest)
            alarm = alarm or alarmed
            self._shared_cost_s = max(self._shared_cost_s, cost_s)
            ready.append(np.frombuffer(row, np.float32, len(self._numel), _HEAD.size))
            measurements.append(Measurement.from_bytes(row[size:]))
        self._lively = max(0, self._lively - 1)
        if alarm:  # twice in a row: something happens; once: it may be noise, but the next exchange comes soon
            self._lively = _LIVELY if self._alarmed else max(self._lively, 1)
        self._alarmed = alarm
        proposal, self._proposal = self._proposal, Decision.keep(self._step, "")
        if len(digests) > 1:
            self._disagree()
        elif proposal.kind is Kind.PROBE:
            self._look(proposal)
        elif proposal.switches:  # what was exchanged is still by the old plans
            self._adopt(proposal)
            return proposal
        else:
            latest_s = tuple(np.max(ready, axis=0).tolist())  # Timeline.of_ranks, quicker
            timeline = Timeline(latest_s, self._numel, self._dtype, max(one.backward_s for one in measurements))
            self._proposal = self.policy.observe(self._step, measurements, timeline)
            self._status.measured(self._step, measurements, self.policy, timeline)
        self._pace(max(one.step_s for one in measurements))
        return None

    def _pace(self, step_s: float) -> None:
        """When to exchange next: by what all ranks know, so that they do it at the same step."""
        least, least_s, share = _EVERY, _LEAST_S, _SHARE
        if self.quiet:
            least, least_s, share = _QUIET_EVERY, max(_QUIET_S, _QUIET_S_A_RANK * self._engine.size), _QUIET_SHARE
        least_s = max(least_s, self._shared_cost_s / share)
        self._every = min(max(math.ceil(least_s / max(step_s, 1e-6)), least), _MOST_EVERY)

    def _look(self, proposal: Decision) -> None:
        """Probe the links, again where one probe leaves a doubt."""
        number = 0
        while proposal.kind is Kind.PROBE:
            self._status.decided(self._step, proposal)
            proposal = self.policy.observe(self._step, self._probe(number))
            number += 1
            if len(set(self._digests.now(proposal.digest.encode()))) > 1:
                self._disagree()
                return
        if number > 1:  # the first probe left a doubt
            self._lively = _LIVELY
        self._proposal = proposal

    def _disagree(self) -> None:
        _log.warning("step %d: the ranks came to different decisions; nothing is changed", self._step)
        self._lively = _LIVELY
        self.policy.forget()

    def _probe(self, number: int) -> list[Probe]:
        mine = probe(self._engine, self._step, number, self._clock)
        head = struct.pack("<IQId", mine.rank, mine.step, mine.number, mine.seconds)
        data = head + b"".join(_RUN.pack(run.round, run.src, run.num_bytes, run.seconds) for run in mine.runs)
        found = []
        for row in self._probes.now(data):
            rank, step, number_, seconds = struct.unpack_from("<IQId", row)
            runs = tuple(ProbeRun(*fields) for fields in _RUN.iter_unpack(row[len(head) :]))
            found.append(Probe(step, rank, number_, seconds, runs))
        self._channels()  # what the probe sent is no flow of the job's
        return found

    def _adopt(self, decision: Decision) -> None:
        figures = {(e.src, e.dst): (e.bandwidth_Bps, e.latency_s) for e in decision.links}
        topology, channels = self._declared.with_estimates(figures), decision.tuning.channels
        changed = topology != self._engine.planner.topology
        if changed or channels != self._channels_used:
            self._engine.replan(topology, {self._collective: self._pricing.table(topology, channels)})
            self._channels_used = channels
        self.policy.adopt(decision)
        self._lively, self._slowed, self._usual_s = _LIVELY if changed else self._lively, bool(decision.links), None
        self._steps, self._told = [], self._step
        self._status.decided(self._step, decision)
        if self._engine.rank == 0:
            _log.info("step %d: %s; predicted gain %.1f ms", self._step, decision.why, decision.predicted_gain_s * 1e3)


__all__ = ["ControlLoop"]
