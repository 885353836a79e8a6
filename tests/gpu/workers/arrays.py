"""What the ranks of a Communicator do with CuPy arrays in a test: ``arrays.py TASK`` under mpirun or torchrun.

Ranks beyond the number of GPUs share them. Every task raises if something is wrong.
"""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

import hccl_py
from hccl_py.communicator import Communicator
from hccl_py.core.errors import ConfigError, DesyncError
from hccl_py.core.types import ReduceOp

TYPES = ("float64", "float32", "float16", "int32", "int64", "uint8", "int8")
SIZES = (1, 3, 1000, 65_537, 3_000_000)  # one line, small kernels, large kernels; some off the grid of vectors
POISON = {"f": np.nan, "i": 77, "u": 77}
# what one rounding per rank may do, of the sum of the magnitudes
ERROR = {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3}


def values(rank: int, count: int, dtype: str, seed: int = 0) -> Any:
    """What rank ``rank`` puts in: every rank can make it."""
    random = np.random.default_rng((seed, rank, count))
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(count, np.float32).astype(dtype)
    return random.integers(0, 100, count).astype(dtype)


def reduced(op: ReduceOp, size: int, count: int, dtype: str, seed: int = 0) -> tuple[Any, Any]:
    """The reduction in float64 (int64 for integers), and the sum of the magnitudes."""
    kind = np.float64 if np.dtype(dtype).kind == "f" else np.int64
    inputs = [values(rank, count, dtype, seed).astype(kind) for rank in range(size)]
    wide = {ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}.get(op, np.add)
    total = inputs[0]
    for more in inputs[1:]:
        total = wide(total, more)
    return total / size if op is ReduceOp.AVG else total, sum(np.abs(part) for part in inputs)


def close(got: Any, wanted: tuple[Any, Any], what: Any) -> None:
    """Within the rounding of the type; integers wrap."""
    result = cupy.asnumpy(got)
    if result.dtype.kind == "f":
        error = np.abs(result.astype(np.float64) - wanted[0])
        assert (error <= ERROR[result.dtype.name] * wanted[1]).all(), (what, error.max())
    else:
        assert np.array_equal(result, wanted[0].astype(result.dtype)), what


def same(got: Any, wanted: Any, what: Any) -> None:
    assert np.array_equal(cupy.asnumpy(got), wanted), what


def poisoned(count: int, dtype: str) -> Any:
    return cupy.full(count, POISON[np.dtype(dtype).kind], dtype)


def collectives(comm: Communicator) -> None:
    """Every collective, each type and size, in place and not."""
    n, me = comm.size, comm.rank
    for dtype in TYPES:
        for count in SIZES if dtype in ("float32", "float16") else SIZES[:4]:
            what: Any = (dtype, count)
            mine = cupy.asarray(values(me, count, dtype))
            ops = (ReduceOp.SUM, ReduceOp.MAX, *([ReduceOp.AVG] if np.dtype(dtype).kind == "f" else []))
            for op in ops:
                close(comm.all_reduce(mine, poisoned(count, dtype), op), reduced(op, n, count, dtype), (op, what))
            close(comm.all_reduce(mine.copy()), reduced(ReduceOp.SUM, n, count, dtype), what)
            out = poisoned(count, dtype)
            comm.reduce(mine, out if me == n - 1 else None, root=n - 1)
            if me == n - 1:
                close(out, reduced(ReduceOp.SUM, n, count, dtype), what)
            same(comm.broadcast(mine.copy(), root=n - 1), values(n - 1, count, dtype), what)
            everyone = np.concatenate([values(rank, count, dtype) for rank in range(n)])
            same(comm.all_gather(mine, poisoned(count * n, dtype)), everyone, what)
            whole = poisoned(count * n, dtype)  # in place: a rank's part lies where it belongs
            whole[me * count : (me + 1) * count] = mine
            same(comm.all_gather(whole[me * count : (me + 1) * count], whole), everyone, what)
            gathered = poisoned(count * n, dtype)
            comm.gather(mine, gathered if me == 0 else None)
            if me == 0:
                same(gathered, everyone, what)
            large = cupy.asarray(values(me, count * n, dtype))
            part = slice(me * count, (me + 1) * count)
            wanted, magnitude = reduced(ReduceOp.SUM, n, count * n, dtype)
            close(comm.reduce_scatter(large, poisoned(count, dtype)), (wanted[part], magnitude[part]), what)
            blocks = np.concatenate([values(rank, count * n, dtype)[part] for rank in range(n)])
            same(comm.all_to_all(large, poisoned(count * n, dtype)), blocks, what)
            got = comm.scatter(large if me == 1 else None, poisoned(count, dtype), root=1)
            same(got, values(1, count * n, dtype)[part], what)
            same(mine, values(me, count, dtype), ("the input changed", what))
            same(large, values(me, count * n, dtype), ("the input changed", what))
    comm.all_reduce(cupy.zeros(0, np.float32))
    comm.barrier()


def streams(comm: Communicator) -> None:
    """A call is in the order of the current stream, whatever it is, and returns while that is still busy."""
    n, count = comm.size, 1 << 20
    comm.all_reduce(cupy.ones(count, np.float32))
    slow = cupy.RawKernel(
        'extern "C" __global__ void slow(float* x, float v, int n, long long ticks) {'
        "  long long start = clock64(); while (clock64() - start < ticks) {}"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = v; }",
        "slow",
    )
    side = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    returned_early = 0
    for turn in range(60):
        stream = side[turn % 3] if turn % 4 else cupy.cuda.Stream.null
        with stream:
            data = cupy.full(count, -1, np.float32)
            slow((count // 256,), (256,), (data, np.float32(turn + comm.rank), np.int32(count), np.int64(20_000)))
            comm.all_reduce(data)
            returned_early += not stream.done
            result = data * 2  # on the same stream: sees the sum
            stream.synchronize()
            assert (cupy.asnumpy(result) == 2 * (turn * n + n * (n - 1) // 2)).all(), turn
    assert returned_early > 30, returned_early
    with side[0]:
        comm.all_reduce(data := cupy.full(1000, comm.rank, np.float64), out := cupy.zeros(1000, np.float64))
        assert data.size and float(out.sum()) == 1000 * n * (n - 1) / 2


def messages(comm: Communicator) -> None:
    """Both ways, in order, also large ones at once."""
    n, me = comm.size, comm.rank
    for count in (1, 1000, 5_000_000):
        incoming = poisoned(count, "float32")
        source = comm.sendrecv(cupy.asarray(values(me, count, "float32")), (me + 1) % n, incoming, (me - 1) % n)
        assert source == (me - 1) % n
        same(incoming, values(source, count, "float32"), count)
        for seed in range(3):
            if me == 0:
                comm.send(cupy.asarray(values(0, count, "float32", seed)), 1)
            elif me == 1:
                comm.recv(incoming, 0)
                same(incoming, values(0, count, "float32", seed), (count, seed))


def random(comm: Communicator) -> None:
    """Calls of any kind, back to back on any stream; results are looked at later."""
    draw, n, me = np.random.default_rng(5), comm.size, comm.rank
    side, kept = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], []
    for seed in range(300):
        count = int(2 ** draw.uniform(0, 20))
        dtype = TYPES[draw.integers(len(TYPES))]
        op = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX)[draw.integers(3)]
        with side[draw.integers(2)]:
            data = cupy.asarray(values(me, count, dtype, seed))
            out = comm.all_reduce(data, data if draw.integers(2) else poisoned(count, dtype), op)
            kept.append((out, data, op, count, dtype, seed))
        if len(kept) == 20:
            cupy.cuda.Device().synchronize()
            for out, _, op, count, dtype, seed_of in kept:
                close(out, reduced(op, n, count, dtype, seed_of), (op, count, dtype, seed_of))
            kept.clear()


def kinds(comm: Communicator) -> None:
    """Refusals, and what ranks hear that differ."""
    device, host = cupy.zeros(8, np.float32), np.zeros(8, np.float32)
    for call in (
        lambda: comm.all_reduce(device, host), lambda: comm.all_reduce(host, device), lambda: comm.iall_reduce(device),
        lambda: comm.broadcast(cupy.zeros((4, 4))[:, :2]), lambda: comm.all_reduce(cupy.zeros(3, np.complex64)),
    ):  # fmt: skip
        try:
            call()
            raise AssertionError("accepted")
        except ConfigError:
            pass
    comm.all_reduce(host)
    comm.all_reduce(device)
    cupy.cuda.Device().synchronize()
    try:  # the kernels report; the host hears of it with a later call
        comm.all_reduce(cupy.zeros(8 + comm.rank, np.float32))
        cupy.cuda.Device().synchronize()
        comm.all_reduce(device)
        raise AssertionError("ranks differ, and nobody says so")
    except DesyncError as error:
        assert "all_reduce of 8 float32" in str(error), error


def graph(comm: Communicator) -> None:
    """Captured, and replayed."""
    data, stream = cupy.ones(5000, np.float32), cupy.cuda.Stream(non_blocking=True)
    with stream:
        comm.all_reduce(data)
        stream.begin_capture()
        comm.all_reduce(data)
        captured = stream.end_capture()
        for _ in range(3):
            captured.launch(stream)
        stream.synchronize()
        assert (cupy.asnumpy(data) == comm.size**4).all()


def main() -> None:
    """One task."""
    task = sys.argv[1]
    with hccl_py.init(timeout_s=60) as comm:
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        {f.__name__: f for f in (collectives, streams, messages, random, kinds, graph)}[task](comm)
        print(f"{task} is right", flush=True)


if __name__ == "__main__":
    main()
