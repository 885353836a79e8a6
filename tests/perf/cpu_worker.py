"""One rank of a part of `make bench-cpu` that hccl-py bench cannot measure by itself; cpu_bench.py starts it.

Each function measures one part on all ranks and returns plain data, which rank 0 writes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from native_pair import Gate, Pair, PairLibrary

import hccl_py
from hccl_py.bench import report
from hccl_py.bench.cases import CASES
from hccl_py.bench.connect import connect
from hccl_py.bench.control import Control
from hccl_py.bench.dtypes import numpy_dtype
from hccl_py.bench.meter import AnyLibrary, LocalMeter
from hccl_py.bench.metrics import calls_per_sample
from hccl_py.bench.oracle import Oracle
from hccl_py.bench.peers import Bound, HcclPy, Mpi, Request
from hccl_py.bench.run import Benchmark, Settings, turns
from hccl_py.bench.variants import Prepared, Registered
from hccl_py.bench.watchdog import Watchdog
from hccl_py.bootstrap import detect
from hccl_py.core.env import Env
from hccl_py.core.types import DType, ReduceOp

HALF_TYPES = (DType.BFLOAT16, DType.FLOAT16)
KERNEL_SIZES = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
WAIT_S = 0.1


class Worker:
    """This rank, connected: what the parts have in common."""

    def __init__(self, samples: int, sizes: Sequence[int], watchdog: Watchdog, control: Control) -> None:
        self.samples, self.sizes, self.watchdog, self.control = samples, sizes, watchdog, control
        self.comm = hccl_py.init()
        self.gate = Gate(control)
        self.pair = Pair().__enter__() if control.rank == 0 and control.size == 2 else None

    def close(self) -> None:
        self.comm.close()
        if self.pair is not None:
            self.pair.__exit__(None, None, None)

    # Parts

    def two(self) -> dict[str, Any]:
        """All-reduce at the given sizes: private and registered buffers, the three baselines, and the limit."""
        libraries: list[AnyLibrary] = [HcclPy(self.comm)]
        libraries += [Registered(self.comm)] if hasattr(self.comm, "empty") else []
        libraries += [connect(name, self.control, 120) for name in ("gloo", "openmpi", "mpich")]
        libraries.append(PairLibrary("limit", self.gate, self.pair))
        return self._sweep(libraries, self.sizes)

    def latency(self) -> dict[str, Any]:
        """8 B: the native call, through Communicator, prepared, and mpi4py."""
        libraries: list[AnyLibrary] = [HcclPy(self.comm), Mpi("openmpi", self.control)]
        libraries += [Prepared(self.comm)] if hasattr(self.comm, "prepare_all_reduce") else []
        libraries.append(PairLibrary("plan", self.gate, self.pair))
        return self._sweep(libraries, (8,), calls=200)

    def torch(self) -> dict[str, Any]:
        """8 B through torch.distributed, the contract check on, by a blocking call and by work.wait(); and gloo."""
        gloo = connect("gloo", self.control, 120)
        import torch
        import torch.distributed as dist

        import hccl_py.torch  # noqa: F401  # registers the backend

        group = dist.new_group(backend="hccl_py")
        tensor = torch.zeros(2)
        calls = {
            "hccl_py": lambda: dist.all_reduce(tensor, group=group),
            "hccl_py async": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
            "gloo": lambda: dist.all_reduce(tensor),
        }
        samples = self._alternate(dict(calls), {"hccl_py": 50, "hccl_py async": 50, "gloo": 10})
        dist.destroy_process_group(group)
        gloo.close()
        return {"samples_s": samples}

    def idle(self) -> dict[str, Any]:
        """What a rank burns that waits for a late one: processor seconds a second, after the first millisecond."""
        comm, shares = self.comm, []
        value = np.zeros(2, np.float32)
        waits: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.all_reduce(value),
            "barrier": comm.barrier,
            "recv": lambda: comm.send(value, 0) if comm.rank == comm.size - 1 else comm.recv(value, comm.size - 1),
        }
        found: dict[str, list[float]] = {}
        for name, wait in waits.items():
            if name == "recv" and comm.size > 2:
                continue
            shares = []
            for _ in range(self.samples // 3 + 1):
                comm.barrier()
                if comm.rank == comm.size - 1:
                    time.sleep(WAIT_S)  # the event is that nothing happens for a while
                began_s, burnt_s = time.perf_counter(), time.process_time()
                wait()
                waited_s = time.perf_counter() - began_s
                burnt_s = time.process_time() - burnt_s
                shares.append(max(burnt_s - 1e-3, 0) / max(waited_s - 1e-3, 1e-9))
            everyone = self.control.gather(shares)
            found[name] = np.max(everyone[:-1], axis=0).tolist()  # the last rank is the late one
        return {"shares": found}

    def half(self) -> dict[str, Any]:
        """Half types against float32 at 64 MiB, against their own bare fold below, and their errors."""
        large = {
            f"{dtype.name.lower()} {'in' if in_place else 'out of'} place": self._call(64 << 20, dtype, in_place)
            for dtype in (DType.FLOAT32, *HALF_TYPES)
            for in_place in (False, True)
        }
        found: dict[str, Any] = {"large_s": self._alternate(large, dict.fromkeys(large, 1)), "kernel_s": {}}
        del large
        for dtype in HALF_TYPES:
            name = dtype.name.lower()
            for size in KERNEL_SIZES:
                found["kernel_s"][f"{name} {size}"] = self._against_kernel(size, dtype)
        return found

    def errors(self) -> dict[str, Any]:
        """Largest error of a half type's sum against float64, as a share of the documented bound, by type and size."""
        comm = self.comm
        found = {}
        for dtype, bits in ((DType.BFLOAT16, 8), (DType.FLOAT16, 11)):
            for count in (1, 1000, 100_003, 3_000_017):
                inputs = [
                    np.random.default_rng([rank, count]).standard_normal(count).astype(numpy_dtype(dtype))
                    for rank in range(comm.size)
                ]
                mine = inputs[comm.rank].copy()
                comm.all_reduce(mine)
                wide = [value.astype(np.float64) for value in inputs]
                bound = (comm.size - 1) * 2.0**-bits * np.sum(np.abs(wide), axis=0) * (1 + 2.0**-10)
                share = np.abs(mine.astype(np.float64) - np.sum(wide, axis=0)) / bound
                worst = float(np.max(share)) if np.isfinite(share).all() else float("inf")
                found[f"{dtype.name.lower()} {count}"] = max(self.control.gather(worst))
        return {"shares": found}

    # What they are made of

    def _sweep(self, libraries: Sequence[AnyLibrary], sizes: Sequence[int], calls: int | None = None) -> dict[str, Any]:
        settings = Settings(cases=("all_reduce",), sizes_bytes=tuple(sizes), samples=self.samples, calls=calls)
        rows = Benchmark(self.control, libraries, settings, self.watchdog).run(self._show)
        versions = {library.name: library.version for library in libraries}
        for library in reversed(libraries[1:]):
            library.close()
        return report.document(rows, self.control.size, "make bench-cpu", versions, settings)

    def _show(self, row: Any) -> None:
        if self.control.rank == 0:
            print(report.line(row, self.control.size, 10), flush=True)

    def _alternate(self, runs: dict[str, Callable[[], Any]], calls: dict[str, int]) -> dict[str, list[float]]:
        """Return the samples of each call, of the slowest rank, in seconds; they take turns, both orders."""
        oracle = Oracle(_BARRIER, DType.FLOAT32, ReduceOp.SUM, 0, 0, self.control.size)
        buffers = oracle.allocate(self.control.rank, True)
        meters = {
            name: LocalMeter(self.control, self.watchdog, oracle, Bound(run, None), buffers, name)
            for name, run in runs.items()
        }
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for name, share in turns(list(runs), self.samples):
            samples[name] += meters[name].turn(share, calls[name], 5)
        everyone = self.control.gather(samples)
        return {name: np.max([theirs[name] for theirs in everyone], axis=0).tolist() for name in runs}

    def _call(self, size: int, dtype: DType, in_place: bool, registered: bool = False) -> Callable[[], Any]:
        oracle = Oracle(_ALL_REDUCE, dtype, ReduceOp.SUM, 0, size // dtype.itemsize, self.control.size)
        buffers = oracle.allocate(self.control.rank, in_place)
        library = Registered(self.comm) if registered and hasattr(self.comm, "empty") else HcclPy(self.comm)
        bound = library.prepare(Request(oracle.case, dtype, ReduceOp.SUM, 0, buffers, in_place))
        oracle.fill(buffers if bound.buffers is None else bound.buffers, self.control.rank)
        return bound.run

    def _against_kernel(self, size: int, dtype: DType) -> dict[str, list[float]]:
        """Samples of an all-reduce of registered buffers, and of the bare fold of this rank's half of them."""
        run = self._call(size, dtype, True, registered=True)
        calls = calls_per_sample(size)
        oracle = Oracle(_BARRIER, dtype, ReduceOp.SUM, 0, 0, self.control.size)
        meter = LocalMeter(
            self.control, self.watchdog, oracle, Bound(run, None), oracle.allocate(self.control.rank, True), "half"
        )
        samples: dict[str, list[float]] = {"hccl_py": [], "kernel": []}
        for name, share in turns(list(samples), self.samples):
            if name == "hccl_py":
                samples[name] += meter.turn(share, calls, 3)
            else:
                samples[name] += self.gate.alone(lambda share=share: self._kernel(dtype, size // 2, share, calls))
        everyone = self.control.gather(samples)
        return {name: np.max([theirs[name] for theirs in everyone], axis=0).tolist() for name in samples}

    def _kernel(self, dtype: DType, size: int, samples: int, calls: int) -> list[float]:
        assert self.pair is not None
        return self.pair.ask("kernel", dtype.name.lower(), size, samples, calls)


_BARRIER, _ALL_REDUCE = CASES["barrier"], CASES["all_reduce"]
PARTS = ("two", "latency", "torch", "idle", "half", "errors")


def main() -> None:
    """Measure one part on this rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", dest="out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=(), help="bytes, of part two")
    parser.add_argument("--samples", type=int, default=32)
    options = parser.parse_args()
    control = Control(detect(Env.from_environ()))
    with Watchdog(control.rank, 120) as watchdog:
        worker = Worker(options.samples, options.sizes, watchdog, control)
        record = getattr(worker, options.part)()
        if control.rank == 0:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record) + "\n", encoding="utf-8")
        control.barrier()
        worker.close()


if __name__ == "__main__":
    main()
