"""Where buffers may lie: in place as each collective has it, apart, and never half over each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hccl_py import ConfigError
from hccl_py.communicator import Communicator

WORLD, COUNT = 3, 40


def overlaps(comm: Communicator) -> dict[str, Any]:
    """Calls whose buffers overlap as none may, by what is wrong with them."""
    n, r = comm.size, comm.rank
    memory = np.arange(2.0 * n * COUNT)
    one, all_blocks = memory[:COUNT], memory[: n * COUNT]
    other = (r + 1) % n
    return {
        "all_reduce, shifted": lambda: comm.all_reduce(one, memory[1 : COUNT + 1]),
        "all_reduce, shifted back": lambda: comm.all_reduce(memory[COUNT - 1 : 2 * COUNT - 1], one),
        "all_gather, block of another rank": lambda: comm.all_gather(
            all_blocks[other * COUNT : (other + 1) * COUNT], all_blocks
        ),
        "all_gather, between blocks": lambda: comm.all_gather(all_blocks[1 : COUNT + 1], all_blocks),
        "reduce_scatter, block of another rank": lambda: comm.reduce_scatter(
            all_blocks, all_blocks[other * COUNT : (other + 1) * COUNT]
        ),
        "all_to_all, shifted": lambda: comm.all_to_all(all_blocks, memory[COUNT : (n + 1) * COUNT]),
        "gather, block of another rank": lambda: comm.gather(
            all_blocks[other * COUNT : (other + 1) * COUNT], all_blocks, r
        ),
        "scatter, block of another rank": lambda: comm.scatter(
            all_blocks, all_blocks[other * COUNT : (other + 1) * COUNT], r
        ),
        "reduce, shifted": lambda: comm.reduce(one, memory[1 : COUNT + 1], root=r),
    }


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_buffers_that_half_overlap_are_refused_before_anything_moves(groups: Any, transport: str) -> None:
    def refuse(comm: Communicator) -> int:
        for what, call in overlaps(comm).items():
            with pytest.raises(ConfigError, match="overlap"):
                call()
                pytest.fail(what)
        comm.barrier()  # no rank was kept waiting, none is ahead
        return len(overlaps(comm))

    assert groups.get(transport, WORLD).run(refuse) == [9] * WORLD


def test_the_memory_of_refused_calls_is_unchanged(groups: Any) -> None:
    def refuse(comm: Communicator) -> bool:
        memory = np.arange(100.0)
        with pytest.raises(ConfigError):
            comm.all_reduce(memory[:50], memory[10:60])
        with pytest.raises(ConfigError):
            comm.iall_reduce(memory[:50], memory[10:60])
        return bool((memory == np.arange(100.0)).all())

    assert groups.get("shm", 2).run(refuse) == [True, True]


@pytest.mark.parametrize("count", [1, 40, 30_000])
def test_neighbouring_buffers_are_apart(groups: Any, transport: str, count: int) -> None:
    def touch(comm: Communicator) -> bool:
        memory = np.zeros(3 * count)
        memory[count : 2 * count] = comm.rank + 1
        comm.all_reduce(memory[count : 2 * count], memory[:count])
        comm.all_reduce(memory[count : 2 * count], memory[2 * count :])
        return bool(
            (memory[:count] == 6).all() and (memory[2 * count :] == 6).all() and (memory[count] == comm.rank + 1)
        )

    assert groups.get(transport, WORLD).run(touch) == [True] * WORLD


@pytest.mark.parametrize("root", range(WORLD))
def test_every_rank_can_be_the_root(groups: Any, transport: str, root: int) -> None:
    def rooted(comm: Communicator) -> None:
        n, r = comm.size, comm.rank
        for count in (3, 20_000):
            mine = np.full(count, r + 1.0)
            buffer = mine.copy()
            comm.broadcast(buffer, root)
            assert (buffer == root + 1).all()
            out = np.zeros(count)
            comm.reduce(mine, out if r == root else None, root=root)
            assert (out == (6 if r == root else 0)).all() and (mine == r + 1).all()
            blocks = np.zeros(n * count)
            comm.gather(mine, blocks if r == root else None, root)
            if r == root:
                assert (blocks == np.repeat([1.0, 2.0, 3.0], count)).all()
            comm.scatter(blocks if r == root else None, out, root)
            assert (out == r + 1).all()

    groups.get(transport, WORLD).run(rooted)


def test_results_are_returned(groups: Any) -> None:
    def returned(comm: Communicator) -> None:
        a, b, blocks = np.ones(4), np.zeros(4), np.zeros(8)
        assert comm.all_reduce(a) is a and comm.all_reduce(a, b) is b and comm.broadcast(a) is a
        assert comm.all_gather(a, blocks) is blocks and comm.reduce_scatter(blocks, a) is a
        assert comm.scatter(blocks if comm.rank == 0 else None, a) is a and comm.all_to_all(a, b) is b

    groups.get("shm", 2).run(returned)
