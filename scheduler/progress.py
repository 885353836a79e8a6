"""Does a plan come to an end? Runs its step graph with the engine's limits: window, bounded channels, hazards.

A slot is passed on in SEGMENTS pieces and a channel holds one piece, the least that a transport may offer. A step moves
on by one piece when every source has it and every target has room; so its speed is that of its slowest operand.

[Note: one run is enough] Every condition stays true once it is true, so whatever order the engine picks, the steps that
can finish do finish: the run below, which moves all steps at once, reaches the same end as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hccl_py.core.errors import PlanError
from hccl_py.scheduler.program import WINDOW
from hccl_py.scheduler.stepgraph import StepGraph

SEGMENTS = 3
_FOREVER = np.int32(2**30)
_Ints = npt.NDArray[np.int32]
# (step, other, slack, complete): step waits until other is complete, or is never more than slack pieces before it
Condition: TypeAlias = tuple[int, int, int, bool]


def completion_order(graph: StepGraph) -> list[int]:
    """Numbers of all steps, each after all that it takes its data from.

    Raises:
        PlanError: deadlock; names the steps that wait for each other.
    """
    finished_at, done, goal = finish_turns(graph, edges_of(graph))
    if (finished_at < 0).any():
        raise PlanError(_describe_deadlock(graph, done, goal))
    order: list[int] = np.argsort(finished_at, kind="stable").tolist()
    return order


def finish_turns(
    graph: StepGraph, conditions: Sequence[Condition], *, doubled: bool = False
) -> tuple[npt.NDArray[np.int64], _Ints, _Ints]:
    """When each step finishes (-1: never), how far it comes, and how far it should; all under ``conditions``.

    ``doubled``: numbers from ``len(graph.steps)`` on are the same steps again, and by them the window is counted.
    """
    num_steps = len(graph.steps)
    if num_steps == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    copies = 2 if doubled else 1
    total = np.tile(np.array(graph.spans, dtype=np.int32) * SEGMENTS, copies)
    followers, leaders, slack, complete = _arrays(conditions, copies * num_steps)
    rows = np.flatnonzero(np.diff(followers, prepend=-1))
    starts = np.array(graph.starts[:-1], dtype=np.int64)
    lengths = np.array([len(program.steps) for program in graph.programs], dtype=np.int64)
    index = np.arange(num_steps, dtype=np.int32) - np.repeat(starts, lengths)
    busy = np.flatnonzero(lengths)
    windowed = int(lengths.max()) > WINDOW
    # one place more than steps: the end of time, which leads those that wait for nothing
    done = np.zeros(copies * num_steps + 1, dtype=np.int32)
    goal = np.append(total, _FOREVER)
    done[-1] = _FOREVER
    finished_at = np.full(copies * num_steps, -1, dtype=np.int64)
    needs = np.where(complete, goal[leaders], 0)
    turn = 0
    while True:
        ahead = done[leaders]
        limit = np.minimum.reduceat(np.where(complete, np.where(ahead >= needs, _FOREVER, 0), ahead + slack), rows)
        new = np.minimum(limit, total)
        if windowed:
            oldest = np.where((done[:-1] < total)[-num_steps:], index, _FOREVER)
            first = np.full(len(lengths), _FOREVER, dtype=np.int32)
            first[busy] = np.minimum.reduceat(oldest, starts[busy])
            new = np.where(np.tile(index - WINDOW < np.repeat(first, lengths), copies), new, 0)
        new = np.maximum(new, done[:-1])
        if np.array_equal(new, done[:-1]):
            break
        finished_at[(new == total) & (done[:-1] < total)] = turn
        done[:-1] = new
        turn += 1
    return finished_at, done, goal


def edges_of(graph: StepGraph) -> list[Condition]:
    edges = [(h.step, h.earlier, 0, not h.streamed) for h in graph.hazards]
    for message in graph.messages:
        edges.append((message.receiver, message.sender, 0, False))
        edges.append((message.sender, message.receiver, 1, False))  # the channel holds one piece
        if message.follows >= 0:
            edges.append((message.sender, graph.messages[message.follows].receiver, 0, True))
    return edges


def _arrays(conditions: Sequence[Condition], num_numbers: int) -> tuple[_Ints, _Ints, _Ints, npt.NDArray[np.bool_]]:
    everyone = [(number, num_numbers, 0, False) for number in range(num_numbers)]  # so that every step has one
    table = np.array([*conditions, *everyone], dtype=np.int32)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.bool_)


def _describe_deadlock(graph: StepGraph, done: _Ints, goal: _Ints) -> str:
    """Follow one reason of each stuck step until a step comes twice."""
    reasons: dict[int, tuple[int, str]] = {}
    for step, other, slack, complete in edges_of(graph):
        if step in reasons or done[step] == goal[step]:
            continue
        if complete and done[other] < goal[other]:
            reasons[step] = (other, "the end of")
        elif not complete and done[other] + slack <= done[step]:
            reasons[step] = (other, "room at" if slack else "data from")
    stuck = [step for step in range(len(graph.steps)) if done[step] < goal[step]]
    for step in stuck:  # what waits for nothing of this waits for a place in the window
        oldest = next(s for s in stuck if graph.owner[s] == graph.owner[step])
        reasons.setdefault(step, (oldest, f"a place in the window of {WINDOW} steps behind"))
    at, seen, lines = stuck[0], set[int](), []
    while at not in seen:
        seen.add(at)
        other, why = reasons[at]
        lines.append(f"{graph.name(at)} waits for {why}")
        at = other
    return "deadlock: " + " ".join(lines) + f" {graph.name(at)}"
