"""ControlLoop: measures while a job trains, lets the policy decide, and changes plans on all ranks at the same step.

Every rank calls :meth:`ControlLoop.step` between two training steps. Every second step the ranks exchange what they
measured, in the background of the next one; then each runs the same policy on the same data, so nobody leads. What it
decides is a proposal, whose digest goes with the next exchange: if all ranks came to the same, all adopt it when that
exchange is over, else none does.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence

import numpy as np

from hccl_py.core.types import Collective, DType
from hccl_py.engine import ConnectionTrace, Engine
from hccl_py.exchange import Exchange
from hccl_py.probing import probe
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import Decision, Kind
from hccl_py.scheduler.measurement import BucketRun, ChannelUse, Measurement, Probe, ProbeRun
from hccl_py.scheduler.policy import Budgets, Policy
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.timeline import Timeline
from hccl_py.status import StatusFile

_EVERY = 2
_MOST_CHANNELS, _MOST_BUCKETS, _MOST_RUNS = 64, 512, 8
_DIGEST_BYTES = 64
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
        free_buckets: False if somebody else cuts the buckets: only plans change then.
        clock: seconds.
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
        clock: _Clock = time.perf_counter,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._numel, self._dtype = tuple(numel), tuple(dtype)
        planner = engine.planner
        self._declared = planner.topology
        self._pricing = Pricing(
            planner.placement, lambda topology: planner.table(Collective.ALL_REDUCE, topology=topology)
        )
        self.policy = Policy(
            planner.topology, planner.placement, self._pricing, buckets, budgets,
            free_plans=planner.free, free_buckets=free_buckets,
        )  # fmt: skip
        capacity = _DIGEST_BYTES + 128 + 40 * _MOST_CHANNELS + 24 * _MOST_BUCKETS + 4 * len(self._numel)
        self._exchange = Exchange(engine, capacity)
        self._digests = Exchange(engine, _DIGEST_BYTES)
        self._probes = Exchange(engine, 64 + _RUN.size * _MOST_RUNS)
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BARRIER):
            engine.load(collective)  # now, and not in a step
        self._step = 0
        self._proposal = Decision.keep(0, "")
        self._last_s: float | None = None
        self._last_cpu_s = 0.0
        self._counted: dict[tuple[int, int], ConnectionTrace] = {}
        self._steps: list[tuple[float, float, float, float]] = []  # since the last exchange
        self._ready: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._status = StatusFile.of(engine)

    def step(
        self,
        ready_s: Sequence[float],
        *,
        backward_s: float,
        exposed_s: float,
        buckets: Sequence[BucketRun] = (),
    ) -> Decision | None:
        """Call on all ranks between two steps. Returns a switch that holds from now on, or None.

        Plans have been changed already; the caller cuts its gradients by ``decision.buckets`` before the next backward.

        Args:
            ready_s: of each gradient, seconds from the beginning of backward.
            backward_s: seconds of backward, without what it waited for communication at its end.
            exposed_s: seconds that it waited.
            buckets: of each bucket in the order of sending: bytes, and seconds from the beginning of backward to its
                start and end.

        Raises:
            PeerLostError, CollectiveTimeoutError, BrokenGroupError: as any collective.
        """
        now_s, cpu_s = self._clock(), time.process_time()
        if self._engine.size == 1:
            return None
        if self._last_s is not None:
            took_s = now_s - self._last_s
            self._steps.append((took_s, backward_s, exposed_s, (cpu_s - self._last_cpu_s) / max(took_s, 1e-9)))
            self._ready.append(np.asarray(ready_s, np.float32))
        decision = None
        if self._exchange.under_way:
            decision = self._hear()
        if self._step % _EVERY == 0 and self._steps:
            self._tell(buckets)
        self._step += 1
        self._last_s, self._last_cpu_s = self._clock(), time.process_time()
        return decision

    def close(self) -> None:
        """Finish what is under way. Idempotent."""
        if self._exchange.under_way:
            self._exchange.finish()
        self._status.close()

    # ---- what was measured

    def _tell(self, buckets: Sequence[BucketRun]) -> None:
        step_s, backward_s, exposed_s, cpu = (float(np.median(column)) for column in zip(*self._steps, strict=True))
        ready = np.median(np.stack(self._ready), axis=0).astype(np.float32)
        runs = tuple(buckets) if len(buckets) <= _MOST_BUCKETS else ()
        measurement = Measurement(
            self._step, self._engine.rank, step_s, backward_s, exposed_s, 0.0, cpu, self._channels(), runs
        )
        self._steps, self._ready = [], []
        self._exchange.start(self._proposal.digest.encode() + ready.tobytes() + measurement.to_bytes())

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
        return tuple(sorted(uses, key=lambda use: -use.sent_bytes)[:_MOST_CHANNELS])

    # ---- what is done about it

    def _hear(self) -> Decision | None:
        size = 4 * len(self._numel)
        measurements, timelines, digests = [], [], set()
        for row in self._exchange.finish():
            digests.add(row[:_DIGEST_BYTES])
            ready = tuple(float(seconds) for seconds in np.frombuffer(row, np.float32, len(self._numel), _DIGEST_BYTES))
            measurements.append(Measurement.from_bytes(row[_DIGEST_BYTES + size :]))
            timelines.append(Timeline(ready, self._numel, self._dtype, measurements[-1].backward_s))
        proposal, self._proposal = self._proposal, Decision.keep(self._step, "")
        if len(digests) > 1:
            self._disagree()
        elif proposal.kind is Kind.PROBE:
            self._look(proposal)
        elif proposal.switches:  # what was exchanged is still by the old plans
            self._adopt(proposal)
            return proposal
        else:
            timeline = Timeline.of_ranks(timelines)
            self._proposal = self.policy.observe(self._step, measurements, timeline)
            self._status.measured(self._step, measurements, self.policy, timeline)
        return None

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
        self._proposal = proposal

    def _disagree(self) -> None:
        _log.warning("step %d: the ranks came to different decisions; nothing is changed", self._step)
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
        topology = self._declared.with_estimates(figures)
        if topology != self._engine.planner.topology:
            self._engine.replan(topology, {Collective.ALL_REDUCE: self._pricing.table(topology)})
        self.policy.adopt(decision)
        self._steps, self._ready = [], []
        self._status.decided(self._step, decision)
        if self._engine.rank == 0:
            _log.info("step %d: %s; predicted gain %.1f ms", self._step, decision.why, decision.predicted_gain_s * 1e3)


__all__ = ["ControlLoop"]
