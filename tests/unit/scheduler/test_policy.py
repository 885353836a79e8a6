"""The policy against a network that changes: it follows, does not oscillate, takes back what does not pay."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_network import DECLARED, TIMELINE, WORLD, GBIT_Bps, World, policy, pricing, star

from hccl_py.core.errors import ConfigError, InternalError
from hccl_py.scheduler.arrangement import Arrangement
from hccl_py.scheduler.bandit import FIRST_STEPS
from hccl_py.scheduler.budgets import Budgets
from hccl_py.scheduler.decision import CODECS, Decision, Kind, Tuning
from hccl_py.scheduler.measurement import Measurement, Probe
from hccl_py.scheduler.partition import finish_s, partition
from hccl_py.scheduler.policy import Policy


def best_s(rates_Bps: dict[int, float]) -> float:
    """What a step takes at best, by the model."""
    topology = star(rates_Bps)
    cost = pricing().cost(pricing().table(topology), topology)
    return finish_s(partition(TIMELINE, cost), TIMELINE, cost)[-1] + 0.1


def test_the_first_decision_cuts_buckets_by_the_timeline() -> None:
    world, one = World(), policy()
    before_s = world.step_s(one)
    (switch,) = world.run(one, 10)
    assert switch.buckets is not None and len(switch.choices) == len(switch.buckets) and not switch.links
    assert world.step_s(one) == pytest.approx(best_s({}), rel=1e-6) and world.step_s(one) < before_s
    assert one.outcomes[0].achieved_gain_s == pytest.approx(switch.predicted_gain_s, rel=0.01)


@pytest.mark.parametrize("rank", [0, 3])  # trees of a world of four have no better place for the others
def test_it_follows_a_link_that_is_throttled_and_repaired(rank: int) -> None:
    world, one = World(), policy()
    world.run(one, 10)
    for _ in range(3):
        world.rates_Bps[rank] = GBIT_Bps / 5
        switches = world.run(one, 5)  # ten steps: measurements are of two
        assert len(switches) == 1 and {rank_of(link.src, link.dst) for link in switches[0].links} == {f"h{rank}"}
        assert world.step_s(one) <= best_s(world.rates_Bps) * 1.01
        assert world.run(one, 20) == []
        world.rates_Bps.clear()
        assert len(world.run(one, 5)) == 1
        assert one.current.topology == DECLARED and world.step_s(one) <= best_s({}) * 1.01
        assert world.run(one, 20) == []


def test_a_repair_is_seen_soon_though_suspicions_did_not_come_true_before() -> None:
    world, one = World(), policy()
    world.run(one, 10)
    world.rates_Bps[0] = GBIT_Bps / 5
    world.run(one, 6)
    assert one.current.topology != DECLARED
    one._patience = 32  # as after many suspicions
    world.rates_Bps.clear()
    assert len(world.run(one, 8)) == 1 and one.current.topology == DECLARED


def rank_of(*ends: str) -> str:
    return next(end.partition("/")[0] for end in ends if end != "star")


def test_what_makes_steps_slower_is_taken_back_once() -> None:
    world, one = World(), policy()
    probing = policy()
    (switch,) = World().run(probing, 10)
    assert switch.buckets is not None
    world.bad.add(switch.buckets.digest)
    begun_with = one.current
    switches = world.run(one, 40)
    assert [decision.kind for decision in switches] == [Kind.SWITCH] * 2
    assert "taken back" in switches[1].why and one.current == begun_with
    assert one.outcomes[0].taken_back


def test_a_late_rank_is_named_and_changes_nothing() -> None:
    world, one = World(), policy()
    world.run(one, 10)
    world.late_s[2] = 0.5
    assert world.run(one, 30) == [] and one.late == (2,)
    assert one.current.topology == DECLARED


def test_probes_stay_within_their_budget() -> None:
    world, one = World(), policy()
    spent_s = total_s = 0.0
    for step in range(200):
        decision = one.observe(step, world.measure(one), TIMELINE)
        total_s += world.step_s(one)
        if decision.kind is Kind.PROBE:
            world.rates_Bps = {0: GBIT_Bps / 5} if step % 3 else {}  # as unquiet as it gets
            probes = world.probe(0)
            spent_s += max(probe.seconds for probe in probes)
            one.observe(step, probes)
        elif decision.switches:
            one.adopt(decision)
    assert 0 < spent_s <= 0.5 + 0.05 * total_s + 0.2


TRUTHS = {
    "one connection": lambda one: 0.8 if one.tuning.channels == 1 else 1.0,
    "pieces of 4 MiB": lambda one: 0.8 if one.tuning.chunk_bytes == 4 << 20 else 1.0,
    "few buckets": lambda one: 0.5 if len(one.buckets) <= 2 else 1.0,
    "what there is": lambda one: 1.0 if one.tuning == Tuning() and len(one.buckets) > 4 else 1.3,
}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_what_no_model_knows_is_found_by_trying(truth: str, noise: float) -> None:
    world, one = World(noise), policy(explore=True)
    world.price = TRUTHS[truth]
    world.run(one, 200)
    assert one.settled and world.price(one.current) == min(world.price(arrangement) for arrangement in tried(one))
    assert world.run(one, 60) == []  # and then there is quiet


def tried(one: Policy) -> list[Arrangement]:
    return [one.current, *one._bandit._tried]


def test_trials_lose_little() -> None:
    """All that is tried is slower, by a lot."""
    world, one = World(), policy(explore=True)
    world.run(one, 8)
    assert one.outcomes[-1].achieved_gain_s is not None and not one.outcomes[-1].trial  # judged, nothing tried yet
    good, usual_s, lost_s = one.current, world.step_s(one), 0.0
    world.price = lambda arrangement: 1.0 if arrangement == good else 3.0
    for _ in range(200):
        world.run(one, 1)
        lost_s += world.step_s(one) - usual_s
    assert one.settled and one.current == good and any(outcome.trial for outcome in one.outcomes)
    assert lost_s <= (FIRST_STEPS + 3 * 4) * usual_s  # what may be lost, and the trial that was under way


def test_nothing_is_tried_unless_asked_for_or_while_a_switch_is_judged() -> None:
    world, one = World(), policy()
    world.run(one, 100)
    assert not any(outcome.trial for outcome in one.outcomes)
    one = policy(explore=True)
    world.run(one, 9)
    assert len(one.outcomes) == 1 and not one.outcomes[0].trial and not one.settled


def test_buckets_that_are_waited_for_travel_as_bf16_where_that_is_allowed() -> None:
    world, one = World(), policy(CODECS)
    world.rates_Bps = {0: GBIT_Bps / 10}  # communication cannot hide
    switch = world.run(one, 12)[-1]
    assert switch.buckets is not None and "bf16" in {choice.codec for choice in switch.choices}
    exact = policy()
    world.run(exact, 12)
    assert world.step_s(one) < 0.8 * world.step_s(exact)
    assert not exact.current.codecs
    with pytest.raises(ConfigError, match="codecs"):
        Budgets(codecs=("bf16",))


def test_only_the_last_decision_can_be_adopted() -> None:
    with pytest.raises(InternalError, match="last one"):
        policy().adopt(Decision(Kind.SWITCH, 3, "made up"))


Disturbance = tuple[int, list[int], list[int]]  # seed of the order, events twice, events lost
disturbances = st.tuples(
    st.randoms(use_true_random=False), st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), max_size=1)
)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_order_and_repetition_do_not_matter(data: st.DataObject) -> None:
    """Two ranks that get the same events, one in another order and some twice, always decide the same."""
    world, ours, theirs = World(noise=0.01), policy(), policy()
    old: list[Measurement | Probe] = []
    for step in range(14):
        if data.draw(st.integers(0, 6)) == 0:
            world.rates_Bps = {data.draw(st.integers(0, 3)): GBIT_Bps / 5}
        events: list[Measurement | Probe] = list(world.measure(ours))
        if data.draw(st.booleans()):
            events.pop()  # lost, on all ranks
        decisions = [one.observe(step, shown, TIMELINE) for one, shown in pair(data, ours, theirs, events, old)]
        number = 0
        while decisions[0].kind is Kind.PROBE and decisions[0].digest == decisions[1].digest:
            shown_ = pair(data, ours, theirs, list(world.probe(number)), [])
            decisions = [one.observe(step, shown) for one, shown in shown_]
            number += 1
        assert decisions[0].digest == decisions[1].digest and decisions[0].why == decisions[1].why
        if decisions[0].switches:
            ours.adopt(decisions[0])
            theirs.adopt(decisions[1])
        old += events
        assert ours.current == theirs.current


def pair(
    data: st.DataObject, ours: Policy, theirs: Policy, events: list[Measurement | Probe], old: list[Measurement | Probe]
) -> list[tuple[Policy, list[Measurement | Probe]]]:
    again = data.draw(st.lists(st.sampled_from(events), max_size=3)) if events else []
    late = data.draw(st.lists(st.sampled_from(old), max_size=3)) if old else []
    return [(ours, events), (theirs, data.draw(st.permutations([*events, *again, *late])))]


def after_probes(world: World, ranks: list[Policy], step: int, decisions: list[Decision]) -> list[Decision]:
    """What the ranks decide once the links that all of them want to probe have been probed."""
    number = 0
    while len({one.digest for one in decisions}) == 1 and decisions[0].kind is Kind.PROBE:
        probes = world.probe(number)
        decisions = [one.observe(step, probes) for one in ranks]
        number += 1
    return decisions


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_ranks_that_lose_different_events_never_adopt_different_things_and_agree_again(data: st.DataObject) -> None:
    world, ranks = World(), [policy() for _ in range(WORLD)]
    switches, changes = 0, 1
    for step in range(40):
        lossy = step < 20
        if lossy and step % 10 == 5:
            rank = data.draw(st.integers(0, 3))
            world.rates_Bps = {rank: GBIT_Bps / 5} if rank not in world.rates_Bps else {}
            changes += 1
        events: list[Measurement | Probe] = list(world.measure(ranks[0]))
        lost = [data.draw(st.integers(-4, 3)) if lossy else -1 for _ in ranks]
        shown = [[e for i, e in enumerate(events) if i != gone] for gone in lost]
        decisions = [one.observe(step, mine, TIMELINE) for one, mine in zip(ranks, shown, strict=True)]
        decisions = after_probes(world, ranks, step, decisions)
        if len({one.digest for one in decisions}) > 1:
            changes += 1
            for one in ranks:
                one.forget()
        elif decisions[0].switches:
            switches += 1
            for one, decision in zip(ranks, decisions, strict=True):
                one.adopt(decision)
        assert len({(one.current.buckets.digest, one.current.topology.digest()) for one in ranks}) == 1
    assert switches <= 2 * changes
    assert world.step_s(ranks[0]) <= best_s(world.rates_Bps) * 1.03


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 200))
def test_ranks_that_try_things_and_lose_different_events_never_adopt_different_things(seed: int, loss: int) -> None:
    """With codecs and trials; each rank hears measurements in its own order, some twice, some late, some not at all."""
    chance = random.Random(seed)
    world, ranks = World(noise=0.004), [policy(CODECS, True) for _ in range(WORLD)]
    old: list[Measurement | Probe] = []
    for step in range(30):
        if step % 12 == 7:
            world.rates_Bps = {chance.randrange(4): GBIT_Bps / 5} if chance.random() < 0.5 else {}
        events: list[Measurement | Probe] = list(world.measure(ranks[0]))
        decisions = []
        for one in ranks:
            shown = [event for event in events if chance.randrange(loss)]
            shown += chance.choices([*events, *old[-8:]], k=chance.randrange(3))
            chance.shuffle(shown)
            decisions.append(one.observe(step, shown, TIMELINE))
        decisions = after_probes(world, ranks, step, decisions)
        if len({one.digest for one in decisions}) > 1:
            for one in ranks:
                one.forget()
        elif decisions[0].switches:
            for one, decision in zip(ranks, decisions, strict=True):
                one.adopt(decision)
        assert all(one.current == ranks[0].current for one in ranks)
        old += events


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_order_and_repetition_do_not_matter_while_things_are_tried(seed: int) -> None:
    chance = random.Random(seed)
    world, ours, theirs = World(noise=0.004), policy(CODECS, True), policy(CODECS, True)
    world.price = TRUTHS[chance.choice(list(TRUTHS))]
    tried, old = 0, []  # type: int, list[Measurement | Probe]
    for step in range(75):
        events: list[Measurement | Probe] = list(world.measure(ours))
        shown = [*events, *chance.choices([*events, *old], k=3)]
        chance.shuffle(shown)
        decisions = [ours.observe(step, events, TIMELINE), theirs.observe(step, shown, TIMELINE)]
        number = 0
        while decisions[0].kind is Kind.PROBE:
            assert decisions[0].digest == decisions[1].digest
            probes = world.probe(number)
            decisions = [ours.observe(step, probes), theirs.observe(step, list(reversed(probes)))]
            number += 1
        assert decisions[0].digest == decisions[1].digest and decisions[0].why == decisions[1].why
        if decisions[0].switches:
            tried += 1
            ours.adopt(decisions[0])
            theirs.adopt(decisions[1])
        old += events
    assert tried >= 2 and ours.current == theirs.current


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from((0.2, 0.4, 1.0))), min_size=1, max_size=4))
def test_it_never_oscillates(changes: list[tuple[int, float]]) -> None:
    """At most two switches a change, whatever changes, with noise in every measurement."""
    world, one = World(noise=0.004), policy()
    assert len(world.run(one, 12)) <= 2
    for rank, share in changes:
        world.rates_Bps = {**world.rates_Bps, rank: share * GBIT_Bps}
        assert len(world.run(one, 25)) <= 2
        assert world.step_s(one) <= best_s(world.rates_Bps) * 1.15
