"""Policy: from what all ranks measured to what all ranks do next. Pure: no clock, no I/O, no chance.

[Note: change] Everything is about *changes* of the network. One begins when the estimator sees a link change (the first
one when the job begins). In a change there is one decision: the arrangement (bucket partition and plan table) that is
predicted to end backward's communication earliest, if that gains more than the hysteresis; and at most one more, back
to what was before, if steps have become slower instead of faster. So there are at most two switches a change, and none
in a quiet network.

[Note: agreement] The same events in any order, some of them twice, give the same decision: events of a step are put in
order and taken once, and a step of which the event of a rank is missing is not looked at. A decision is a proposal with
a digest: ranks adopt it (:meth:`Policy.adopt`) if all have the same, else all of them forget what they believe
(:meth:`Policy.forget`) and begin a new change.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hccl_py.core.errors import InternalError
from hccl_py.scheduler.buckets import BucketPlan
from hccl_py.scheduler.decision import Decision, Kind, LinkFigures, PlanChoice
from hccl_py.scheduler.estimate import Estimator, LinkEstimate
from hccl_py.scheduler.measurement import Measurement, Probe, late_ranks
from hccl_py.scheduler.partition import MOST_BUCKET_BYTES, LinkCost, finish_s, partition
from hccl_py.scheduler.pricing import Pricing
from hccl_py.scheduler.select import PlanTable
from hccl_py.scheduler.timeline import Timeline
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_WARM = 2  # measurements of all ranks before the first decision
_AFTER_CHANGE = 1  # and after a change: what steps take now, with the old arrangement
_TRIAL = 3  # measurements after a switch, the first of which does not count
_MOST_SCALE = 100.0  # what all_reduces may take more than the model says; more is not believed
_MOST_PROBES = 3  # before one step
_QUIET, _QUIET_FAR = 16, 4  # measurements after which links are probed anyway; the latter while one is not as declared


@dataclass(frozen=True)
class Budgets:
    """What the policy may spend.

    Attributes:
        least_gain: share of the step that a switch must be predicted to gain.
        most_loss: a switch after which steps take more than this share longer is taken back.
        probe_share: share of all time that may be spent on probes for which nothing asks but time.
        suspicion_share: share of all time that may be spent on probes, those that a suspicion asks for included.
        first_probe_s: what may be spent before any time has passed.
        most_bucket_bytes: of a bucket.
    """

    least_gain: float = 0.02
    most_loss: float = 0.01
    probe_share: float = 0.005
    suspicion_share: float = 0.05
    first_probe_s: float = 0.25
    most_bucket_bytes: int = MOST_BUCKET_BYTES


@dataclass(frozen=True)
class Arrangement:
    """Buckets, and the graph for which plans are chosen."""

    buckets: BucketPlan
    topology: Topology


@dataclass(frozen=True)
class Outcome:
    """One switch, for people: what was predicted and what came."""

    step: int
    why: str
    predicted_gain_s: float
    achieved_gain_s: float | None = None
    taken_back: bool = False


@dataclass
class _Trial:
    """A switch on probation."""

    before: Arrangement
    before_s: float
    steps_s: list[float]
    outcome: Outcome


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
    ) -> None:
        self._topology, self._placement, self._pricing = topology, placement, pricing
        self._budgets, self._free_plans, self._free_buckets = budgets or Budgets(), free_plans, free_buckets
        self.current = Arrangement(buckets, topology)
        self.outcomes: list[Outcome] = []
        self.late: tuple[int, ...] = ()
        self.forget()
        self._time_s = self._probe_s = 0.0
        self._last_step = -1

    def forget(self) -> None:
        """Believe nothing any more, but keep the arrangement: what is measured from now on begins a new change."""
        self._estimator = Estimator(self._topology, self._placement)
        self._timeline: Timeline | None = None
        self._steps_s: list[float] = []  # since the change began, under the arrangement in use
        self._scale: float | None = None
        self._decided = False
        self._wanted = _WARM
        self._trial: _Trial | None = None
        self._proposal: tuple[str, Arrangement, _Trial | None] | None = None
        self._probed_at, self._probes = -1, 0
        self._quiet = _QUIET  # measurements since the last probe

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
        _, self.current, self._trial = self._proposal
        if self._trial is not None:
            self.outcomes.append(self._trial.outcome)
        self._proposal = None
        self._steps_s = []
        self._estimator.forget_flows()

    # ---- events

    def observe(self, step: int, events: Iterable[Measurement | Probe], timeline: Timeline | None = None) -> Decision:
        """Take the events of all ranks up to ``step`` and decide what happens at its beginning.

        Args:
            events: in any order; duplicates and events of steps that were decided before count once.
            timeline: of all ranks together, if it was measured.
        """
        measurements, probes = self._complete(events)
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
        return self._decide(step)

    def _complete(self, events: Iterable[Measurement | Probe]) -> tuple[list[Measurement], list[Probe]]:
        """What is new and there of all ranks, by rank."""
        steps: dict[int, dict[int, Measurement]] = {}
        probes: dict[tuple[int, int], dict[int, Probe]] = {}
        for one in events:
            if isinstance(one, Measurement):
                if one.step > self._last_step:
                    steps.setdefault(one.step, {}).setdefault(one.rank, one)
            else:
                probes.setdefault((one.step, one.number), {}).setdefault(one.rank, one)
        world = self._placement.size
        whole = [by_rank for _, by_rank in sorted(steps.items()) if len(by_rank) == world]
        seen = [by_rank for _, by_rank in sorted(probes.items()) if len(by_rank) == world]
        return (
            [one for by_rank in whole[-1:] for _, one in sorted(by_rank.items())],
            [one for by_rank in seen[-1:] for _, one in sorted(by_rank.items())],
        )

    def _take(self, measurements: Sequence[Measurement]) -> None:
        step_s = max(one.step_s for one in measurements)
        self._time_s += step_s
        self._quiet += 1
        self.late = late_ranks(measurements, 0.2 * step_s)
        self._steps_s.append(step_s)
        if self._trial is not None:
            self._trial.steps_s.append(step_s)
        measured = self._communication_s(measurements)
        if measured is not None:
            self._scale = measured if self._scale is None else self._scale + 0.3 * (measured - self._scale)

    def _communication_s(self, measurements: Sequence[Measurement]) -> float | None:
        """What all_reduces took over what was predicted: what the model cannot know of this machine."""
        counts = {len(one.buckets) for one in measurements}
        if len(counts) != 1 or counts == {0}:
            return None
        end, busy_s = 0.0, 0.0
        for runs in zip(*(one.buckets for one in measurements), strict=True):
            start = max(end, *(run.start_s for run in runs))
            end = max(start, *(run.end_s for run in runs))
            busy_s += end - start
        cost = self._cost(self.current, self._estimator.topology(), scaled=False)
        predicted_s = float(cost.of([run.num_bytes for run in measurements[0].buckets]).sum())
        return min(_MOST_SCALE, max(1 / _MOST_SCALE, busy_s / predicted_s)) if predicted_s > 0 else None

    # ---- the network

    def _probe_wanted(self, step: int, measurements: Sequence[Measurement]) -> str:
        """Why links should be probed now; empty if they need not, or it would cost too much."""
        if self._placement.size < 2 or step == self._probed_at:
            return ""
        budgets = self._budgets
        why = self._estimator.suspicious(measurements)
        if why:
            share, first_s = budgets.suspicion_share, 2 * budgets.first_probe_s
        else:
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
        changed = self._estimator.see(probes)
        self._estimator.forget_flows()  # what they do from now on is what they do in the network as it was probed
        if changed:
            self._decided, self._trial, self._scale = False, None, None
            self._steps_s, self._wanted = [], _AFTER_CHANGE
        if self._estimator.doubtful and self._probes < _MOST_PROBES:
            return Decision.probe(step, "to confirm that a link has changed")
        return self._decide(step)

    # ---- arrangements

    def _cost(self, arrangement: Arrangement, topology: Topology, *, scaled: bool = True) -> LinkCost:
        cost = self._pricing.cost(self._pricing.table(arrangement.topology), topology)
        scale = self._scale if scaled and self._scale is not None else 1.0
        return LinkCost(cost.sizes_bytes, tuple(seconds * scale for seconds in cost.seconds))

    def _end_s(self, arrangement: Arrangement, topology: Topology) -> float:
        """When the last bucket is through, from the beginning of backward."""
        assert self._timeline is not None
        return finish_s(arrangement.buckets, self._timeline, self._cost(arrangement, topology))[-1]

    def _decide(self, step: int) -> Decision:
        if self._decided or self._trial is not None:
            return Decision.keep(step, "the network has not changed" if self._decided else "a switch is on probation")
        if self._timeline is None or len(self._steps_s) < self._wanted:
            return Decision.keep(step, "too little was measured")
        self._decided = True
        topology = self._estimator.topology()
        best = self._best(topology)
        gain_s = max(0.0, self._end_s(self.current, topology) - self._end_s(best, topology))
        step_s = statistics.median(self._steps_s[-4:])
        what = self._what(topology)
        if gain_s <= self._budgets.least_gain * step_s:
            return Decision.keep(step, f"{what}: nothing gains more than {self._budgets.least_gain:.0%} of the step")
        return self._switch(step, best, gain_s, f"{what}: {gain_s * 1e3:.1f} ms less to wait", step_s)

    def _best(self, topology: Topology) -> Arrangement:
        """What ends earliest; of what ends at the same time, what changes least."""
        assert self._timeline is not None
        graphs = [self.current.topology]
        if self._free_plans and topology != self.current.topology:
            graphs.append(topology)
        found = [self.current]
        for graph in graphs:
            arrangement = replace(self.current, topology=graph)
            found.append(arrangement)
            if self._free_buckets:
                cost = self._cost(arrangement, topology)
                cut = partition(self._timeline, cost, most_bytes=self._budgets.most_bucket_bytes)
                found.append(replace(arrangement, buckets=cut))
        return min(found, key=lambda one: self._end_s(one, topology))

    def _what(self, topology: Topology) -> str:
        far = _figures(topology, self._topology)
        if not far:
            return "all links are as declared"
        link = far[0]
        more = f" and {len(far) - 1} more" if len(far) > 1 else ""
        return f"{link.src} -> {link.dst}{more} at {link.bandwidth_Bps * 8 / 1e6:.0f} Mbit/s"

    def _switch(
        self, step: int, to: Arrangement, gain_s: float, why: str, before_s: float, back: bool = False
    ) -> Decision:
        decision = Decision(
            Kind.SWITCH,
            step,
            why,
            to.buckets,
            self._choices(to),
            _figures(to.topology, self._topology),
            gain_s,
        )
        trial = _Trial(self.current, before_s, [], Outcome(step, why, gain_s))
        self._proposal = decision.digest, to, None if back else trial
        return decision

    def _choices(self, arrangement: Arrangement) -> tuple[PlanChoice, ...]:
        table: PlanTable = self._pricing.table(arrangement.topology)
        plans = [table.choose(bucket.num_bytes).plan for bucket in arrangement.buckets.buckets]
        return tuple(PlanChoice(plan.algorithm, plan.programs[0].channels) for plan in plans)

    # ---- probation

    def _judge(self, step: int) -> Decision | None:
        """When a switch has been tried for a few measurements: keep it, or take it back."""
        trial = self._trial
        if trial is None or len(trial.steps_s) < _TRIAL:
            return None
        self._trial = None
        after_s = statistics.median(trial.steps_s[1:])
        gain_s = trial.before_s - after_s
        worse = gain_s < -self._budgets.most_loss * trial.before_s
        self.outcomes[-1] = replace(trial.outcome, achieved_gain_s=gain_s, taken_back=worse)
        if not worse:
            return None
        why = f"taken back: steps took {-gain_s * 1e3:.1f} ms longer"
        return self._switch(step, trial.before, 0.0, why, after_s, back=True)


def _figures(topology: Topology, declared: Topology) -> tuple[LinkFigures, ...]:
    """The links that are not as declared."""
    pairs = zip(topology.links, declared.links, strict=True)
    return tuple(LinkFigures(a.src, a.dst, a.bandwidth_Bps, a.latency_s) for a, b in pairs if a != b)
