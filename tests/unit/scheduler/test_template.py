"""Templates: classes of ranks against written-out plans, and everything that their verifier refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scheduler_reference import check

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.algorithms.direct import DIRECT
from hccl_py.scheduler.algorithms.hierarchical import HIERARCHICAL
from hccl_py.scheduler.algorithms.rails import RAILS, factors, rails_template
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.bounds import lower_bound
from hccl_py.scheduler.cost import CostModel
from hccl_py.scheduler.rails_for import merged, rails_for
from hccl_py.scheduler.select import build_table, candidates
from hccl_py.scheduler.simulate import simulate
from hccl_py.scheduler.template import ClassProgram, ClassStep, ClassWriter, Ints, Template
from hccl_py.topology.graph import Topology
from hccl_py.topology.link import LinkKind
from hccl_py.topology.placement import Placement
from hccl_py.topology.priors import Prior
from hccl_py.topology.shapes import many_hosts, single_host

C = Collective
MiB = 1 << 20


def hosts(number: int, per_host: int, interleaved: bool = False) -> tuple[tuple[int, ...], ...]:
    if interleaved:
        return tuple(tuple(range(host, number * per_host, number)) for host in range(number))
    return tuple(tuple(range(host * per_host, (host + 1) * per_host)) for host in range(number))


CASES = [
    {"groups": hosts(2, 1)},
    {"groups": hosts(3, 2, interleaved=True), "shares": (1, 2)},
    {"groups": hosts(4, 3), "shares": (2, 1, 2), "chunks": (1, 2)},
    {"groups": hosts(5, 1), "radices": (5,), "chunks": (1, 2, 1)},
    {"groups": hosts(6, 2, interleaved=True), "shares": (3, 1), "radices": (2, 3), "chunks": (1, 2)},
    {"groups": hosts(8, 2), "shares": (2, 1), "radices": (2, 4)},
    {"groups": hosts(2, 3), "shares": (1, 2, 1), "radices": (2,), "chunks": (1, 2, 1), "turned": (1, 0, 1)},
    {"groups": hosts(3, 2), "shares": (1, 2), "chunks": (2, 1), "turned": (0, 1)},
    {"groups": hosts(2, 4, interleaved=True), "chunks": (1, 2), "inner": (0, 2, 1, 3)},
    {"groups": hosts(3, 3), "radices": (3,), "chunks": (1, 1), "turned": (0, 1), "inner": (2, 1, 0)},
]


@pytest.mark.parametrize("params", CASES, ids=lambda p: f"{len(p['groups'])}x{len(p['groups'][0])}")
def test_full_expansion_agrees_with_the_template(params: dict) -> None:  # type: ignore[type-arg]
    world = sum(map(len, params["groups"]))
    plan, template = RAILS.build(C.ALL_REDUCE, world, 0, params), rails_template(world, params)
    assert [template.bare_program(rank) for rank in range(world)] == list(plan.programs)
    assert (template.order, template.uneven, template.world) == (plan.order, plan.uneven, plan.world)
    assert template.name == plan.name and template.slots_per_block == plan.slots_per_block
    assert template.program(world - 1).digest == int.from_bytes(template.digest[:8], "little") != 0
    if world < 16:
        check(plan.programs, count=2 * plan.slots_per_block + 1, in_place=True, average=False, seed=3)


def test_other_algorithms_have_templates_too() -> None:
    for algorithm, params in ((RING, {"order": (2, 0, 1, 3)}), (HIERARCHICAL, {"groups": hosts(2, 2)})):
        assert algorithm.template is not None
        template = algorithm.template(4, params)
        assert template.name.startswith(algorithm.name)
        ring = RING.build(C.ALL_REDUCE, 4, 0, params)
        if algorithm is RING:  # the same messages
            assert [len(template.bare_program(r).steps) for r in range(4)] == [len(p.steps) for p in ring.programs]


def test_digests_tell_templates_apart() -> None:
    digests = {rails_template(sum(map(len, p["groups"])), p).digest for p in CASES}
    assert len(digests) == len(CASES)
    again = rails_template(6, CASES[1])
    assert again.digest in digests


def test_simulation_of_classes_agrees_with_that_of_all_ranks() -> None:
    topology, placement = many_hosts((4,) * 8)
    for params in rails_for(C.ALL_REDUCE, topology, placement):
        plan, template = RAILS.build(C.ALL_REDUCE, 32, 0, params), rails_template(32, params)
        whole = simulate(plan, topology, placement, 16 * MiB).seconds
        assert simulate(template, topology, placement, 16 * MiB).seconds == pytest.approx(whole, rel=0.02)
        guess = CostModel(topology, placement).seconds(template, 16 * MiB)  # type: ignore[arg-type]
        assert guess == pytest.approx(whole, rel=0.6)
        assert whole >= lower_bound(topology, placement, C.ALL_REDUCE, 16 * MiB).seconds


def large(slow_rail: bool = False) -> tuple[Topology, Placement]:
    """33 hosts of 2 GPUs with a NIC each."""
    from hccl_py.topology.graph import DeviceKind, Link, Node, NodeKind

    nodes, links, devices = [Node("net", NodeKind.SWITCH)], [], []
    for h in range(33):
        nodes.append(Node(f"h{h}", NodeKind.HOST))
        for i in range(2):
            gpu, nic = f"h{h}/gpu{i}", f"h{h}/nic{i}"
            nodes += [Node(gpu, NodeKind.DEVICE, device=DeviceKind.GPU), Node(nic, NodeKind.NIC)]
            devices.append(gpu)
            Bps = 12.5e9 if slow_rail and i == 1 else 25e9
            wires = [(gpu, nic, LinkKind.PCIE, Prior(60e9, 1e-6)), (nic, "net", LinkKind.INFINIBAND, Prior(Bps, 1e-6))]
            wires += [(gpu, f"h{h}/gpu{1 - i}", LinkKind.NVLINK, Prior(400e9, 1e-6))] if i else []
            links += [Link(*ends, kind, *p) for a, b, kind, p in wires for ends in ((a, b), (b, a))]
    return Topology(tuple(nodes), tuple(links)), Placement(tuple(devices))


def test_worlds_above_64_ranks_are_served_by_templates() -> None:
    shape = large()
    table = build_table(C.ALL_REDUCE, *shape, declared=True)
    assert {row.plan.algorithm for row in table.entries} == {"rails"}
    row = table.choose(1024 * MiB)
    assert 0 < row.bound_s <= row.predicted_s
    assert simulate(row.plan, *shape, 1024 * MiB).seconds <= 1.1 * lower_bound(*shape, C.ALL_REDUCE, 1024 * MiB).seconds


def test_a_slow_rail_gets_less() -> None:
    shape = large(slow_rail=True)
    params = rails_for(C.ALL_REDUCE, *shape)[0]
    assert params["shares"] == (2, 1)
    model, groups = CostModel(*shape), shape[1].groups(shape[0])
    best, even = (
        min(
            simulate(c.plan, *shape, 256 * MiB).seconds
            for c in candidates(C.ALL_REDUCE, model, groups, [256 * MiB], forced=name, declared=True)
        )
        for name in ("rails", "hierarchical")
    )
    assert even > 1.25 * best


def test_what_has_no_template_says_so_and_how_long_it_will_take() -> None:
    with pytest.raises(PlanError, match=r"direct has no template: .* steps for 1024 ranks, about \d+ s to verify"):
        DIRECT.build(C.ALL_REDUCE, 1024, 0, {"rounds": 2})
    with pytest.raises(
        PlanError, match=r"direct has no template: .* about \d+ s to verify"
    ):  # few steps, but wide ones
        DIRECT.build(C.ALL_REDUCE, 1024, 0)
    shape = many_hosts((5,) * 13)
    with pytest.raises(PlanError, match="no template for broadcast over 65 ranks"):
        build_table(C.BROADCAST, *shape)
    with pytest.raises(PlanError, match="no canonical plan for all_reduce over 65 ranks"):
        build_table(C.ALL_REDUCE, *shape, deterministic=True)
    assert build_table(C.ALL_REDUCE, *shape, forced="ring").entries[0].plan.algorithm == "ring"
    few = TREE.build(C.ALL_REDUCE, 65)  # few enough steps to be written out
    assert few.world == 65


def test_factors() -> None:
    assert factors(60) == (2, 2, 3, 5) and merged(64) == (4, 4, 4) and merged(12) == (4, 3) and merged(7) == (7,)
    assert rails_for(C.ALL_REDUCE, *single_host(4)) == () == rails_for(C.ALL_REDUCE, *many_hosts((1, 2)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"groups": ((0, 1), (2,))}, "do not hold each of 4 ranks once"),
        ({"groups": ((0, 1, 2, 3),)}, "only one host"),
        ({"shares": (1,)}, "whole numbers from 1 on"),
        ({"shares": (1, 0)}, "whole numbers from 1 on"),
        ({"chunks": ()}, "whole numbers from 1 on"),
        ({"radices": (3,)}, r"radices \(3,\) are not those of 2 hosts"),
    ],
)
def test_parameters_that_cannot_be(change: dict, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(PlanError, match=why):
        rails_template(4, {"groups": hosts(2, 2), **change})


# ---- the verifier: four ranks in one class, ring over slots 0..3, changed step by step


def steps(change: Callable[[list[ClassStep], ClassWriter, Ints], None]) -> Template:
    good = rails_template(4, {"groups": hosts(4, 1)})
    part = good.classes[0]
    found = list(part.steps)
    change(found, ClassWriter(part.members), part.members)
    return Template("test", (), C.ALL_REDUCE, 4, 2, (ClassProgram(part.members, tuple(found)),))


def _swap(target: int, slot: int) -> Callable[[list[ClassStep], ClassWriter, Ints], None]:
    def change(found: list[ClassStep], w: ClassWriter, members: Ints) -> None:
        old = found[target]
        found[target] = old._replace(targets=(w.output((members + slot) % 4, 1),))

    return change


def _receive_from(found: list[ClassStep], w: ClassWriter, members: Ints) -> None:
    found[1] = found[1]._replace(sources=(w.peer((members + 1) % 4, 1), *found[1].sources[1:]))


def _raw(found: list[ClassStep], w: ClassWriter, members: Ints) -> None:
    found[1] = found[1]._replace(sources=(w.peer((members - 1) % 4, 1, raw=False), *found[1].sources[1:]))


def _other_order(found: list[ClassStep], w: ClassWriter, members: Ints) -> None:
    """Rank 0 alone would have to fold in another order: all members fold their last slot for themselves."""
    for target in range(4):
        w.fold([w.input(target, 1)], [w.peer((members + d) % 4, 1) for d in range(1, 4)])
        w.fold([w.input(target, 1), *(w.peer((members + d) % 4, 1) for d in range(1, 4))], [w.output(target, 1)])
    found[:] = w.program().steps


def _wrap(found: list[ClassStep], w: ClassWriter, members: Ints) -> None:
    """A step over two slots meets the others at some ranks only."""
    first = members // 2 * 2
    found.insert(0, ClassStep((w.input(first, 2),), (w.output(first, 2),)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f, w, m: f.pop(), "never|channel with"),
        (lambda f, w, m: f.clear(), "never written"),
        (_swap(1, 2), "operands of different sizes"),
        (_receive_from, "channel with 0 messages sent and 1 received|channel with"),
        (_raw, "a raw flag that is wrong"),
        (_other_order, "added up in another order than at rank 0"),
        (_wrap, "they belong in two classes"),
        (lambda f, w, m: f.insert(0, ClassStep((w.output(m, 1),), (w.output(m, 1),))), "before anything was written"),
        (lambda f, w, m: f.append(ClassStep((w.input(m, 1),), (w.output(m, 1),))), "INPUT that was overwritten"),
        (lambda f, w, m: f.insert(0, ClassStep((w.input(0, 1),), (w.peer(m, 1),))), "not another rank"),
        (lambda f, w, m: f.insert(0, ClassStep((w.input(0, 1),), (w.peer(m * 0, 1),))), "not another rank|each once"),
        (lambda f, w, m: f.append(ClassStep((w.input(m + 1, 1),), (w.output(m + 1, 1),))), "beyond its 4 slots"),
        (lambda f, w, m: f.insert(0, f.pop(3)), "deadlock|does not hold|before anything"),
        (lambda f, w, m: f.insert(0, ClassStep((w.peer((m + 1) % 4, 1),), (w.output(m, 1),))), "channel with"),
    ],
)
def test_the_verifier_refuses(change: Callable[[list[ClassStep], ClassWriter, Ints], None], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        steps(change)


def test_the_verifier_refuses_a_deadlock() -> None:
    """All wait for the next before they send."""
    members = np.arange(3)
    w = ClassWriter(members)
    w.fold([w.peer((members + 1) % 3, 3)], [w.output(0, 3)])
    w.fold([w.output(0, 3, raw=True)], [w.peer((members - 1) % 3, 3)])
    with pytest.raises(PlanError, match="deadlock"):
        Template("test", (), C.ALL_REDUCE, 3, 1, (w.program(),))


def test_the_verifier_refuses_classes_that_miss_a_rank() -> None:
    w = ClassWriter(np.array([0, 2]))
    w.fold([w.input(0, 1)], [w.output(0, 1)])
    with pytest.raises(PlanError, match="do not hold each of the ranks 0 to 1 once"):
        Template("test", (), C.ALL_REDUCE, 1, 1, (w.program(),))
    with pytest.raises(PlanError, match="templates are for all_reduce"):
        Template("test", (), C.BROADCAST, 1, 1, (w.program(),))


def test_every_algorithm_with_a_template_is_tested_here() -> None:
    known: list[Algorithm] = [a for a in builtin_algorithms() if a.template]
    assert known == [RING, HIERARCHICAL, RAILS]
