"""Random changes to right programs: the verifier rejects them, or they still compute the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scheduler_reference import check

from hccl_py.core.errors import PlanError
from hccl_py.core.types import Collective
from hccl_py.scheduler.algorithms import builtin_algorithms
from hccl_py.scheduler.plan import Plan
from hccl_py.scheduler.program import Operand, Program, Step, Where
from hccl_py.scheduler.verify import verify

GROUPS = {1: ((0,),), 2: ((0, 1),), 3: ((0, 2), (1,)), 4: ((0, 1), (2, 3)), 5: ((0, 3), (1, 2, 4))}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A right plan for few ranks."""
    algorithm = draw(st.sampled_from(builtin_algorithms()))
    collective = draw(st.sampled_from(sorted(algorithm.collectives - {Collective.BARRIER})))
    world = draw(st.integers(2, 5))
    variants = tuple(algorithm.variants(collective, GROUPS[world]))
    assume(variants)  # some serve only hosts of equal size, or a given graph
    params = draw(st.sampled_from(variants))
    return algorithm.build(collective, world, draw(st.integers(0, world - 1)) if collective.rooted else 0, params)


@st.composite
def mutated(draw: st.DrawFn, program: Program) -> Program:
    """The program after one or two random changes."""
    for _ in range(draw(st.integers(1, 2))):
        steps = list(program.steps)
        if not steps:
            return program
        at = draw(st.integers(0, len(steps) - 1))
        kind = draw(st.sampled_from(["drop", "double", "swap", "move", "operand", "operand", "operand", "sources"]))
        if kind == "drop":
            del steps[at]
        elif kind == "double":
            steps.insert(at, steps[at])
        elif kind == "swap":
            other = draw(st.integers(0, len(steps) - 1))
            steps[at], steps[other] = steps[other], steps[at]
        elif kind == "move":
            steps.insert(draw(st.integers(0, len(steps) - 1)), steps.pop(at))
        elif kind == "sources":
            steps[at] = Step(tuple(draw(st.permutations(steps[at].sources))), steps[at].targets)
        else:
            steps[at] = draw(changed_step(program, steps[at]))
        program = replace(program, steps=tuple(steps))
    return program


@st.composite
def changed_step(draw: st.DrawFn, program: Program, step: Step) -> Step:
    operands = [*step.sources, *step.targets]
    at = draw(st.integers(0, len(operands) - 1))
    operands[at] = draw(changed_operand(program, operands[at]))
    return Step(tuple(operands[: len(step.sources)]), tuple(operands[len(step.sources) :]))


@st.composite
def changed_operand(draw: st.DrawFn, program: Program, o: Operand) -> Operand:
    field = draw(st.sampled_from(["where", "raw", "channel", "peer", "slot", "span"]))
    value = {
        "where": st.sampled_from(Where),
        "raw": st.booleans(),
        "channel": st.integers(0, 1),
        "peer": st.integers(0, program.world - 1),
        "slot": st.integers(0, 4),
        "span": st.integers(1, 3),
    }[field]
    return o._replace(**{field: draw(value)})


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_mutated_program_is_rejected_or_computes_the_same(data: st.DataObject) -> None:
    plan = data.draw(plans())
    rank = data.draw(st.integers(0, plan.world - 1))
    program = data.draw(mutated(plan.programs[rank]))
    programs = [*plan.programs[:rank], program, *plan.programs[rank + 1 :]]
    try:
        certificate = verify(programs)
    except PlanError:
        return
    count = plan.slots_per_block * 2 + 1
    for in_place in (False, True):
        check(programs, count=count, in_place=in_place, average=plan.collective.reduces)
    if certificate.uneven:
        check(programs, count=4, in_place=False, sizes=(4, 0, 7))


def test_some_mutations_are_rejected_and_some_are_harmless() -> None:
    """So that the property above tests both."""
    plan = next(a for a in builtin_algorithms() if a.name == "direct").build(Collective.ALL_GATHER, 3)
    first = plan.programs[0]
    harmless = replace(first, steps=(first.steps[0], first.steps[2], first.steps[1]))
    assert harmless != first
    verify([harmless, *plan.programs[1:]])
    with pytest.raises(PlanError):
        verify([replace(first, steps=first.steps[:2]), *plan.programs[1:]])
