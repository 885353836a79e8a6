"""What the ranks of lab_bench.py do. Each function runs on all ranks of a launch; its first argument tells an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hccl_py.communicator import Communicator
from hccl_py.core.env import Env
from hccl_py.core.types import Collective
from hccl_py.engine import Engine
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.select import MAX_BYTES
from hccl_py.torch.store import StoreBootstrap

Tell = Callable[[str], None]
Samples = dict[str, list[float]]
_TIMEOUT_S = 60.0


def _communicator(name: str, **settings: Any) -> Communicator:
    """One of ours beside gloo's, which must be up."""
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    bootstrap = StoreBootstrap(store, dist.get_rank(), dist.get_world_size(), _TIMEOUT_S)
    env = Env.from_environ()
    return Communicator(Engine(bootstrap, env=Env(**{**vars(env), **settings}), timeout_s=_TIMEOUT_S))


def _in_turns(calls: dict[str, Callable[[], None]], rounds: int, repeats: int = 1) -> Samples:
    """Seconds of each call, in turns, every second round in the other order; a round before that does not count."""
    samples: Samples = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name in list(calls) if turn % 2 else reversed(calls):
            dist.barrier()
            start_s = time.perf_counter()
            for _ in range(repeats):
                calls[name]()
            if turn >= 0:
                samples[name].append((time.perf_counter() - start_s) / repeats)
    return samples


def against_gloo(tell: Tell, what: str, size_bytes: int, rounds: int, repeats: int = 1) -> Samples:
    """``all_reduce`` or ``send_recv`` (there and back, halved) of hccl_py and gloo, checked."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comm = _communicator("ours")
    rank, other = comm.rank, 1 - comm.rank
    data = torch.ones(max(size_bytes // 4, 1))
    array = data.numpy()

    def ours_back_and_forth() -> None:
        if rank == 0:
            comm.send(array, other)
            comm.recv(array, other)
        else:
            comm.recv(array, other)
            comm.send(array, other)

    def gloo_back_and_forth() -> None:
        if rank == 0:
            dist.send(data, other)
            dist.recv(data, other)
        else:
            dist.recv(data, other)
            dist.send(data, other)

    if what == "send_recv":
        samples = _in_turns({"hccl_py": ours_back_and_forth, "gloo": gloo_back_and_forth}, rounds, repeats)
        samples = {name: [seconds / 2 for seconds in values] for name, values in samples.items()}
    else:
        zeros = np.zeros_like(array)  # stays the same however often it is summed up
        array[:] = zeros
        samples = _in_turns(
            {"hccl_py": lambda: comm.all_reduce(array), "gloo": lambda: dist.all_reduce(data)}, rounds, repeats
        )
    array[:] = rank + 1
    if not np.array_equal(comm.all_reduce(array), np.full_like(array, 3)):
        raise AssertionError("all_reduce is wrong")
    comm.close()
    dist.destroy_process_group()
    return samples


def algorithms(tell: Tell, size_bytes: int, rounds: int, names: list[str]) -> dict[str, Any]:
    """all_reduce by each of the algorithms and by gloo, in turns; and the largest error against float64.

    ``ring`` is the one in rank order, wherever the ranks are: what one has who knows nothing of hosts.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comms = {name: _communicator(name, algorithm=(("all_reduce", name),)) for name in names}
    if "ring" in comms:
        plan = RING.build(Collective.ALL_REDUCE, dist.get_world_size())
        group = comms["ring"].engine._group
        program = group.load_program(plan.program(dist.get_rank()).to_bytes())
        group.set_table(Collective.ALL_REDUCE, 0, False, [MAX_BYTES], [program])
    count = size_bytes // 4
    inputs = [
        np.random.default_rng(rank).standard_normal(count, dtype=np.float32) for rank in range(dist.get_world_size())
    ]
    reference = np.sum(inputs, axis=0, dtype=np.float64)
    scale = np.sum(np.abs(inputs), axis=0, dtype=np.float64)
    out = np.empty(count, np.float32)
    errors = {}
    for name, comm in comms.items():
        comm.all_reduce(inputs[comm.rank], out)
        # in units of the rounding error of one addition of values as large as all of them together
        errors[name] = float(np.max(np.abs(out - reference) / (scale * np.finfo(np.float32).eps)))
    del inputs, reference, scale
    data = torch.zeros(count)
    array = data.numpy()
    calls = {name: (lambda comm=comm: comm.all_reduce(array)) for name, comm in comms.items()}  # type: ignore[misc]
    samples = _in_turns({**calls, "gloo": lambda: dist.all_reduce(data)}, rounds)
    for comm in comms.values():
        comm.close()
    dist.destroy_process_group()
    return {"samples": samples, "errors": errors}


def only(tell: Tell, algorithm: str, size_bytes: int, repeats: int) -> None:
    """all_reduce with nothing beside it, for whoever counts what crosses the wire. Tells when it begins."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    with _communicator("counted", algorithm=(("all_reduce", algorithm),)) as comm:
        array = np.zeros(size_bytes // 4, np.float32)
        for _ in range(repeats):
            comm.all_reduce(array)
    dist.destroy_process_group()
