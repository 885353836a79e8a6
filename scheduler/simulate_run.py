"""The event loop of the simulator: flows run at fair rates between milestones; what comes at one time is one event."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from hccl_py.core.errors import InternalError
from hccl_py.scheduler.simulate_graph import FlowGraph, Tie
from hccl_py.scheduler.simulate_rates import Floats, Ints, MaxMin, expand

_NEAR = 1e-7  # of a flow: what is nearer to its end or its limit is there
_SAME_TIME = 1e-9  # relative
_ARRIVAL, _LOCAL = int(Tie.ARRIVAL), int(Tie.LOCAL)
_WINDOW, _WINDOWS = 384, 3  # events; windows that must agree
_AGREE = 0.05
_SAME_END = 0.1  # how much earlier than the last lane the first may be through
_EXACT_EVENTS = 8192  # before that nothing is foretold
_SLOWEST_Bps = 1e-12  # below: stands still
_NEVER_s = 1e9


@dataclass(frozen=True)
class Times:
    """Seconds from the begin of the collective: when each flow started, was sent, had arrived; events in all.

    Attributes:
        end_s: when all had arrived.
        simulated: share of the bytes that were moved when the rest was extrapolated; 1.0 if nothing was. Flows that
            were left have NaN for times.
    """

    start_s: Floats
    sent_s: Floats
    arrived_s: Floats
    events: int
    end_s: float
    simulated: float


class FlowLoop:
    """One run. ``latency_s`` of each flow; ``segment_bytes`` and ``channel_bytes`` as the graph was built with."""

    def __init__(
        self, graph: FlowGraph, fair: MaxMin, latency_s: Floats, segment_bytes: int, channel_bytes: int, merge_s: float
    ) -> None:
        self._graph, self._fair, self._latency_s = graph, fair, latency_s
        self._segment_bytes, self._channel_bytes, self._merge_s = float(segment_bytes), float(channel_bytes), merge_s
        flows = self._flows = graph.num_flows
        total = 5 * flows + 2 * graph.num_steps
        order = np.argsort(graph.before, kind="stable")
        self._after = graph.after[order]
        self._first = np.searchsorted(graph.before[order], np.arange(total + 1))
        self._need = np.bincount(graph.after, minlength=total)
        self._fired = np.zeros(total, dtype=np.bool_)
        self._tie_first = np.searchsorted(graph.followers, np.arange(flows + 1))
        self._progress = np.zeros(flows)
        self._rate = np.zeros(flows)
        self._running = np.zeros(flows, dtype=np.bool_)
        self._over = np.zeros(flows, dtype=np.bool_)
        self._lag = np.full(flows, np.inf)
        self._waits_head = graph.wants_head.copy()
        self._head_bytes = np.minimum(self._segment_bytes, graph.size_bytes)
        self._start_s, self._sent_s, self._arrived_s = (np.full(flows, np.nan) for _ in range(3))
        self._timers: list[tuple[float, int, Ints]] = []
        self._now_s = 0.0
        self._new: list[Ints] = []

    def run(self) -> Times:
        """Simulate to the end.

        Raises:
            InternalError: it stands still (a verified plan cannot).
        """
        graph, events, turn = self._graph, 0, 0
        steady = _Steady(graph)
        free = np.flatnonzero(self._need == 0)  # what waits for nothing; heads, sent and arrived come by themselves
        self._fire(free[(free < self._flows) | (free >= 5 * self._flows)])
        active = self._start(np.zeros(0, dtype=np.int64))
        while len(active) or self._timers:
            events += 1
            followers, leaders, bounds = self._ties(active)
            rate = self._rates(active, followers, leaders, bounds)
            self._rate[active] = rate
            left = graph.size_bytes[active] - self._progress[active]
            ends = left / np.maximum(rate, _SLOWEST_Bps)
            heads = (self._head_bytes[active] - self._progress[active]) / np.maximum(rate, _SLOWEST_Bps)
            heads[~self._waits_head[active]] = np.inf
            meets = self._meets(active, followers, leaders, bounds, rate)
            timer = self._timers[0][0] - self._now_s if self._timers else np.inf
            step = min(ends.min(initial=np.inf), heads.min(initial=np.inf), meets, timer)
            if step > _NEVER_s:
                raise InternalError(self._stuck())
            step = max(step, 0.0) + self._merge_s
            slack = step * _NEAR + self._now_s * _SAME_TIME
            self._now_s += step
            self._progress[active] = np.minimum(self._progress[active] + rate * step, graph.size_bytes[active])
            ended = ends <= step + slack
            headed = active[(heads <= step + slack) | (ended & self._waits_head[active])]
            self._waits_head[headed] = False
            done = active[ended]
            self._progress[done] = graph.size_bytes[done]
            self._running[done], self._over[done] = False, True
            self._sent_s[done] = self._now_s
            fired = [self._flows + headed, 3 * self._flows + done]
            turn = self._later(2 * self._flows + headed, headed, turn)
            turn = self._later(4 * self._flows + done, done, turn)
            while self._timers and self._timers[0][0] <= self._now_s * (1 + _SAME_TIME) + slack:
                fired.append(heapq.heappop(self._timers)[2])
            self._fire(np.concatenate(fired))
            active = self._start(active[~ended])
            if events < _EXACT_EVENTS or events % _WINDOW:
                continue
            rest_s = steady.rest(self._now_s, self._progress)
            if rest_s is not None:
                share = float(self._progress.sum() / graph.size_bytes.sum())
                end_s = self._now_s + rest_s + float(self._latency_s.max())
                return Times(self._start_s, self._sent_s, self._arrived_s, events, end_s, share)
        if not self._fired[5 * self._flows :].all():
            raise InternalError(self._stuck())
        end_s = float(self._arrived_s.max(initial=0.0))
        return Times(self._start_s, self._sent_s, self._arrived_s, events, end_s, 1.0)

    def _later(self, milestones: Ints, flows: Ints, turn: int) -> int:
        """What comes one latency later."""
        while len(flows):
            delay_s = float(self._latency_s[flows[0]])
            same = self._latency_s[flows] == delay_s
            turn += 1
            heapq.heappush(self._timers, (self._now_s + delay_s, turn, milestones[same]))
            flows, milestones = flows[~same], milestones[~same]
        return turn

    def _fire(self, milestones: Ints) -> None:
        """These have happened, and with them what waited for them only."""
        flows = self._flows
        while len(milestones):
            self._fired[milestones] = True
            heads = milestones[(milestones >= 2 * flows) & (milestones < 3 * flows)] - 2 * flows
            self._lag[heads] = self._reached(heads)
            arrived = milestones[(milestones >= 4 * flows) & (milestones < 5 * flows)] - 4 * flows
            self._arrived_s[arrived] = self._now_s
            starts = milestones[milestones < flows]
            if len(starts):
                self._new.append(starts)
            first = self._first[milestones]
            waiting = self._after[expand(first, self._first[milestones + 1] - first)]
            if not len(waiting):
                return
            np.subtract.at(self._need, waiting, 1)
            milestones = waiting[self._need[waiting] == 0]
            if len(milestones) > 1:
                milestones = np.unique(milestones)

    def _start(self, active: Ints) -> Ints:
        new = np.concatenate(self._new) if self._new else np.zeros(0, dtype=np.int64)
        self._new.clear()
        self._running[new] = True
        self._start_s[new] = self._now_s
        return np.concatenate([active, new])

    def _ties(self, active: Ints) -> tuple[Ints, Ints, Floats]:
        """Ties that bind running flows: index of the follower in ``active``, flow that leads, slack between them."""
        graph = self._graph
        first = self._tie_first[active]
        lengths = self._tie_first[active + 1] - first
        numbers = expand(first, lengths)
        followers = np.repeat(np.arange(len(active)), lengths)
        leaders, kinds = graph.leaders[numbers], graph.ties[numbers]
        # room ends when its leader is sent, streaming when that has arrived
        arriving = np.isfinite(self._lag[leaders]) & ~self._fired[4 * self._flows + leaders]
        keep = np.where(kinds == _ARRIVAL, arriving, ~self._over[leaders])
        followers, leaders, kinds = followers[keep], leaders[keep], kinds[keep]
        room = np.maximum(self._channel_bytes, 2 * self._lag[active[followers]])
        slack = np.where(kinds == _ARRIVAL, -self._lag[leaders], room)
        slack = np.where(kinds == _LOCAL, -self._segment_bytes, slack)
        keep = np.isfinite(slack)
        return followers[keep], leaders[keep], slack[keep]

    def _reached(self, leaders: Ints) -> Floats:
        """Progress of leaders; of one that is over, as if it had gone on at its last rate."""
        beyond = np.where(self._over[leaders], (self._now_s - self._sent_s[leaders]) * self._rate[leaders], 0.0)
        reached: Floats = self._progress[leaders] + beyond
        return reached

    def _gap(self, active: Ints, followers: Ints, leaders: Ints, slack: Floats) -> Floats:
        gap: Floats = self._reached(leaders) + slack - self._progress[active[followers]]
        return gap

    def _rates(self, active: Ints, followers: Ints, leaders: Ints, slack: Floats) -> Floats:
        lanes = self._graph.lane[active]
        if len(followers):
            near = self._gap(active, followers, leaders, slack) <= _NEAR * self._graph.size_bytes[active[followers]]
            followers, leaders = followers[near], leaders[near]
        if not len(followers):
            return self._fair.rates(lanes)
        caps = np.full(len(active), np.inf)
        runs = self._running[leaders]
        np.minimum.at(caps, followers[~runs], np.where(self._over[leaders], self._rate[leaders], 0.0)[~runs])
        place = np.zeros(self._flows, dtype=np.int64)
        place[active] = np.arange(len(active))
        return self._fair.rates(lanes, followers[runs], place[leaders[runs]], caps)

    def _meets(self, active: Ints, followers: Ints, leaders: Ints, slack: Floats, rate: Floats) -> float:
        """Seconds until the first follower comes up to its limit."""
        if not len(followers):
            return float("inf")
        gap = self._gap(active, followers, leaders, slack)
        ahead = np.where(self._running[leaders] | self._over[leaders], self._rate[leaders], 0.0)
        closing = rate[followers] - ahead
        far = (gap > _NEAR * self._graph.size_bytes[active[followers]]) & (closing > 1e-9 * rate[followers])
        return float((gap[far] / closing[far]).min(initial=np.inf))

    def _stuck(self) -> str:
        left = int((~self._fired[: self._flows]).sum())
        return f"the simulation stands still at {self._now_s:.6g} s: {left} of {self._flows} messages have not started"


class _Steady:
    """Finds out when every lane of a long run keeps its pace, as rings do, so that the rest can be foretold."""

    def __init__(self, graph: FlowGraph) -> None:
        self._graph = graph
        self._total = np.bincount(graph.lane, graph.size_bytes, minlength=len(graph.ends))
        self._seen: list[tuple[float, Floats]] = []

    def rest(self, now_s: float, progress: Floats) -> float | None:
        """Seconds that are left if it goes on like this; None if there is no telling."""
        done: Floats = np.bincount(self._graph.lane, progress, minlength=len(self._total)).astype(np.float64)
        self._seen = [*self._seen[-_WINDOWS:], (now_s, done)]
        left = self._total - done > 1e-6 * self._total
        if len(self._seen) <= _WINDOWS or not left.any():
            return None
        spans = [(b[0] - a[0], (b[1] - a[1])[left]) for a, b in itertools.pairwise(self._seen)]
        paces = np.array([moved / max(span_s, 1e-30) for span_s, moved in spans])
        mean = (self._seen[-1][1] - self._seen[0][1])[left] / max(now_s - self._seen[0][0], 1e-30)
        if (mean <= 0).any() or (np.abs(paces - mean) > _AGREE * mean).any():
            return None
        ends = (self._total - done)[left] / mean
        return float(ends.max()) if ends.min() >= (1 - _SAME_END) * ends.max() else None
