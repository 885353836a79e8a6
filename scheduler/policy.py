"""Policy: from what all ranks measured to what all ranks do next. Pure: no clock, no I/O, no chance.

[Note: change] Everything is about *changes* of the network. One begins when the estimator sees a link change (the first
one when the job begins). In a change there is one decision: the arrangement (bucket partition and plan table) that is
predicted to end backward's communication earliest, if that gains more than the hysteresis; and at most one more, back
to what was before, if the gain does not come (:mod:`hccl_py.scheduler.probation`). So there are at most two switches a
change. What a network was left with is what it gets again, unless the model knows something clearly better: a link
that is repaired brings the old arrangement back.

[Note: trials] Once nothing has happened for a while, what the model cannot know is tried, if the caller explores: other
bucket sizes, pieces of a bucket, connections (:mod:`hccl_py.scheduler.bandit`). Each is tried once in a network, stays
if steps become shorter, else it is taken back; and then there is quiet.

[Note: what is judged] The policy predicts the time from the beginning of backward to the end of the last bucket, so
that is what it judges, of the rank that came last: what a program does between two steps does not count.

[Note: agreement] The same events in any order, some of them twice, give the same decision: events of a step are put in
order and taken once, and a step of which the event of a rank is missing is not looked at. A decision is a proposal with
a digest: ranks adopt it (:meth:`Policy.adopt`) if all have the same, else all of them forget what they believe
(:meth:`Policy.forget`) and begin a new change.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hccl_py.core.errors import InternalError
from hccl_py.scheduler.arrangement import Arrangement, Arranger
from hccl_py.scheduler.bandit import LEAST_GAIN, Bandit
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.budgets import Budgets
from hccl_py.scheduler.decision import Decision, Kind, LinkFigures
from hccl_py.scheduler.estimate import Estimator, LinkEstimate
from hccl_py.scheduler.events import complete
from hccl_py.scheduler.measurement import Measurement, Probe, late_ranks
from hccl_py.scheduler.outcome import Outcome, Trial
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.probation import COMES, Verdict, gain_s, judge
from hccl_py.scheduler.timeline import Timeline
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_WARM = 4  # measurements of all ranks before the first decision
_AFTER_CHANGE = 1  # and after a change: what steps take now, with the old arrangement
_BEFORE = 8  # measurements that a switch is compared with, at most
_MOST_SCALE = 100.0  # what all_reduces may take more than the model says; more is not believed
_MOST_PROBES = 3  # before one step
_QUIET, _QUIET_FAR = 16, 4  # measurements after which links are probed anyway; the latter while one is not as declared
_MOST_PATIENCE = 32  # measurements between probes for suspicions that never come true
_MOST_KNOWN = 16  # networks of which the arrangement is remembered
# Measurements without a switch before something is tried: the first time, after a change, and between trials.
_CALM, _CALM_AGAIN, _CALM_BETWEEN = 24, 48, 6


class Policy:
    """Decides for one training loop.

    Args:
        topology: the graph as it was declared.
        placement: of the ranks.
        pricing: makes plan tables and prices them.
        buckets: the partition that the training begins with.
        budgets: what may be spent.
        free_plans: False if the user forces an algorithm: plans stay as they are.
        free_buckets: False if somebody else cuts the buckets: they stay as they are.
        explore: try what no model knows.
        most_channels: connections to a peer.
    """

    def __init__(
        self,
        topology: Topology,
        placement: Placement,
        pricing: Pricing,
        buckets: BucketPlan,
        budgets: Budgets | None = None,
        *,
        free_plans: bool = True,
        free_buckets: bool = True,
        explore: bool = False,
        most_channels: int = 1,
    ) -> None:
        self._topology, self._placement, self._explores = topology, placement, explore
        self._budgets = budgets = budgets or Budgets()
        self._arranger = Arranger(
            pricing, free_plans=free_plans, free_buckets=free_buckets, most_bucket_bytes=budgets.most_bucket_bytes,
            codecs=budgets.codecs, most_channels=most_channels,
        )  # fmt: skip
        self.current = Arrangement(buckets, topology)
        self.outcomes: list[Outcome] = []
        self.late: tuple[int, ...] = ()
        self._far = len(placement.groups(topology)) > 1  # some ranks are behind a network
        self._last_step = -1
        self.forget()

    def forget(self) -> None:
        """Believe nothing any more, but keep the arrangement: what is measured from now on begins a new change."""
        self._estimator = Estimator(self._topology, self._placement)
        self._known: dict[str, Arrangement] = {}  # by the digest of the network as it was believed to be
        self._time_s = self._probe_s = 0.0
        self._counted = self._last_step  # the step up to which time has been counted
        self._timeline: Timeline | None = None
        self._steps_s: list[float] = []  # since the change began, under the arrangement in use
        self._scale: float | None = None
        self._decided = False
        self._bandit, self._explored, self._calm = Bandit(), not self._explores, _CALM
        self._wanted = _WARM
        self._trial: Trial | None = None
        self._ended: Trial | None = None  # is taken back if the proposal is adopted
        self._proposal: tuple[str, Arrangement, Trial | None] | None = None
        self._probed_at, self._probes = -1, 0
        self._quiet = _QUIET  # measurements since the last probe
        self._patience = 1  # measurements that must lie between probes for suspicions

    @property
    def settled(self) -> bool:
        """True if what is to be decided in the network as it is has been decided and judged."""
        return self._decided and self._explored and self._trial is None and self._proposal is None

    def estimates(self, step: int) -> tuple[LinkEstimate, ...]:
        """What links are believed to do."""
        return self._estimator.estimates(step)

    def adopt(self, decision: Decision) -> None:
        """All ranks have adopted the switch that was decided last: what is measured from now on is by it.

        Raises:
            InternalError: it was not decided here.
        """
        if self._proposal is None or self._proposal[0] != decision.digest:
            raise InternalError(f"step {decision.step}: a switch was adopted that was not the last one decided")
        ended, (_, self.current, self._trial) = self._ended, self._proposal
        if self._trial is not None:
            self.outcomes.append(self._trial.outcome)
        self._proposal = self._ended = None
        self._steps_s = list(ended.before_s) if ended is not None else []  # taken back: what was is what is again
        self._estimator.forget_flows()

    # ---- events

    def observe(self, step: int, events: Iterable[Measurement | Probe], timeline: Timeline | None = None) -> Decision:
        """Take the events of all ranks up to ``step`` and decide what happens at its beginning.

        Args:
            events: in any order; duplicates and events of steps that were decided before count once.
            timeline: of all ranks together, if it was measured.
        """
        measurements, probes = complete(events, self._placement.size, self._last_step)
        if timeline is not None:
            self._timeline = timeline
        if probes:
            return self._after_probe(step, probes)
        if not measurements:
            return Decision.keep(step, "not all ranks were heard")
        self._last_step = max(one.step for one in measurements)
        self._take(measurements)
        verdict = self._judge(step)
        if verdict is not None:
            return verdict
        why = self._probe_wanted(step, measurements)
        if why:
            return Decision.probe(step, why)
        return self._try(step) or self._decide(step)

    def _take(self, measurements: Sequence[Measurement]) -> None:
        step_s = max(one.step_s for one in measurements)
        steps = max(1, min(one.step for one in measurements) - self._counted)
        self._time_s += step_s * steps
        self._counted = max(one.step for one in measurements)
        self._quiet += 1
        self.late = late_ranks(measurements, 0.2 * step_s)
        synced_s = min(one.synced_s for one in measurements)
        self._steps_s.append(synced_s)
        if self._trial is not None:
            self._trial.steps_s.append(synced_s)
            if self._trial.outcome.trial:
                self._bandit.lose(steps * (synced_s - statistics.median(self._trial.before_s)))
        measured = self._communication_s(measurements)
        if measured is not None:
            self._scale = measured if self._scale is None else self._scale + 0.3 * (measured - self._scale)

    def _communication_s(self, measurements: Sequence[Measurement]) -> float | None:
        """What all_reduces took over what was predicted: what the model cannot know of this machine."""
        counts = {len(one.buckets) for one in measurements}
        if counts != {len(self.current.buckets)}:
            return None
        end, busy_s = 0.0, 0.0
        for runs in zip(*(one.buckets for one in measurements), strict=True):
            start = max(end, *(run.start_s for run in runs))
            end = max(start, *(run.end_s for run in runs))
            busy_s += end - start
        predicted_s = float(self._arranger.seconds(self.current, self._estimator.topology()).sum())
        return min(_MOST_SCALE, max(1 / _MOST_SCALE, busy_s / predicted_s)) if predicted_s > 0 else None

    # ---- the network

    def _probe_wanted(self, step: int, measurements: Sequence[Measurement]) -> str:
        """Why links should be probed now; empty if they need not, or it would cost too much."""
        if not self._far or step == self._probed_at:
            return ""
        budgets = self._budgets
        why = self._estimator.suspicious(measurements)
        if why and self._quiet >= self._patience:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            share, first_s = budgets.suspicion_share, 2 * budgets.first_probe_s
        else:  # a suspicion that must wait keeps nobody from looking when it is time
            far = self._estimator.topology() != self._topology  # a repair is to be seen soon
            if self._quiet < (_QUIET_FAR if far else _QUIET):
                return ""
            why = "a look at links that nothing has crossed for a while"
            share, first_s = budgets.suspicion_share if far else budgets.probe_share, budgets.first_probe_s
        return why if self._probe_s <= first_s + share * self._time_s else ""

    def _after_probe(self, step: int, probes: Sequence[Probe]) -> Decision:
        self._probes = self._probes + 1 if step == self._probed_at else 1
        self._probed_at, self._quiet = step, 0
        self._probe_s += max(probe.seconds for probe in probes)
        before = self._estimator.topology()
        changed = self._estimator.see(probes)
        self._estimator.forget_flows()  # what they do from now on is what they do in the network as it was probed
        if changed:
            self._leave(before)
            self._patience = 1
            self._decided, self._trial, self._scale = False, None, None
            self._bandit, self._explored, self._calm = Bandit(), not self._explores, _CALM_AGAIN
            self._steps_s, self._wanted = [], _AFTER_CHANGE
        if self._estimator.doubtful and self._probes < _MOST_PROBES:
            return Decision.probe(step, "to confirm that a link has changed")
        return self._decide(step)

    def _leave(self, network: Topology) -> None:
        """The network is another one now: remember what this one was left with."""
        if self._decided:
            known = self.current if self._trial is None else self._trial.before
            self._known[network.digest()] = known
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    # ---- arrangements

    def _decide(self, step: int) -> Decision:
        if self._decided or self._trial is not None:
            return Decision.keep(step, "the network has not changed" if self._decided else "a switch is on probation")
        if self._timeline is None or len(self._steps_s) < self._wanted:
            return Decision.keep(step, "too little was measured")
        self._decided = True
        topology = self._estimator.topology()
        scale = 1.0 if self._scale is None else self._scale
        known = self._known.get(topology.digest())
        best = self._arranger.best(self.current, topology, self._timeline, scale, known)
        now_s, then_s = (self._arranger.end_s(a, topology, self._timeline, scale) for a in (self.current, best))
        less_s = max(0.0, now_s - then_s)
        before_s = tuple(self._steps_s[-_BEFORE:])
        what = self._what(topology)
        if less_s <= self._budgets.least_gain * statistics.median(before_s):
            return Decision.keep(step, f"{what}: nothing gains more than {self._budgets.least_gain:.0%} of the step")
        return self._switch(step, best, less_s, f"{what}: {less_s * 1e3:.1f} ms less to wait", before_s)

    def _try(self, step: int) -> Decision | None:
        """The next trial of what no model knows, once all else is decided and steps have been calm."""
        if self._explored or not self._decided or self._trial is not None or self._timeline is None:
            return None
        if len(self._steps_s) < self._calm or self._estimator.doubtful:
            return None
        before_s = tuple(self._steps_s[-_BEFORE:])
        usual_s = statistics.median(before_s)
        arm = self._bandit.next(self._arranger.arms(self.current, self._timeline), usual_s, self._time_s)
        if arm is None:
            self._explored = True
            return None
        self._bandit.begins(self.current, arm[1])
        self._calm = _CALM_BETWEEN
        return self._switch(step, arm[1], 0.0, arm[0], before_s)

    def _what(self, topology: Topology) -> str:
        far = _figures(topology, self._topology)
        if not far:
            return "all links are as declared"
        link = far[0]
        more = f" and {len(far) - 1} more" if len(far) > 1 else ""
        return f"{link.src} -> {link.dst}{more} at {link.bandwidth_Bps * 8 / 1e6:.0f} Mbit/s"

    def _switch(
        self, step: int, to: Arrangement, less_s: float, why: str, before_s: tuple[float, ...] = (), back: bool = False
    ) -> Decision:
        figures = _figures(to.topology, self._topology)
        decision = Decision(
            Kind.SWITCH, step, why, to.buckets, self._arranger.choices(to), figures, less_s, to.tuning
        )  # fmt: skip
        trial = None
        if not back:
            outcome = Outcome(step, why, less_s, trial=not less_s)
            wanted_s = less_s or LEAST_GAIN / COMES * statistics.median(before_s)
            trial = Trial(self.current, before_s, [], outcome, wanted_s)
        self._proposal = decision.digest, to, trial
        return decision

    # ---- probation

    def _judge(self, step: int) -> Decision | None:
        """When a switch has been tried for a few measurements: keep it, or take it back."""
        trial = self._trial
        if trial is None:
            return None
        verdict = judge(trial.before_s, trial.steps_s, trial.wanted_s)
        if verdict is Verdict.OPEN:
            if not trial.outcome.trial or not self._bandit.exhausted(statistics.median(trial.before_s), self._time_s):
                return None
            verdict = Verdict.TAKEN_BACK
        self._trial = None
        came_s = gain_s(trial.before_s, trial.steps_s)
        worse = verdict is Verdict.TAKEN_BACK
        self.outcomes[-1] = replace(trial.outcome, achieved_gain_s=came_s, taken_back=worse)
        if not worse:
            self._bandit.wins(trial.before)
            return None
        self._ended = trial
        what = f"{-came_s * 1e3:.1f} ms longer" if came_s < 0 else f"only {came_s * 1e3:.1f} ms less"
        return self._switch(step, trial.before, 0.0, f"taken back: steps took {what}", back=True)


def _figures(topology: Topology, declared: Topology) -> tuple[LinkFigures, ...]:
    """The links that are not as declared."""
    pairs = zip(topology.links, declared.links, strict=True)
    return tuple(LinkFigures(a.src, a.dst, a.bandwidth_Bps, a.latency_s) for a, b in pairs if a != b)
