"""Builds native/bench_pair and talks to it: the C++ programs that the engine is compared with, asleep between turns."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from hccl_py.bench.control import Control
from hccl_py.bench.meter import Task
from hccl_py.bench.peers import UnsupportedError
from hccl_py.bench.remote import Line
from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.types import Collective, DType

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build" / "perf-native" / "bench_pair"


def build() -> Path:
    """Compile the program where it is not up to date; return its path. Raises SystemExit if that fails."""
    configure("bench_pair")
    return PROGRAM


def configure(target: str) -> None:
    """Compile a target of tests/perf/native where it is not up to date. Raises SystemExit if that fails."""
    scripts = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    if shutil.which("ccache"):
        environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=environ["PATH"]) else []
    for command in (
        ["cmake", "-S", str(ROOT / "tests" / "perf" / "native"), "-B", str(PROGRAM.parent), *generator],
        ["cmake", "--build", str(PROGRAM.parent), "--target", target, "--parallel", "2"],
    ):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


class Pair:
    """The two processes of bench_pair. A context manager."""

    def __enter__(self) -> Pair:
        self._process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._read() != "ready":
            raise SystemExit(f"{PROGRAM} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def ask(self, *words: object) -> list[float]:
        """Return the samples of a command of bench_pair, in seconds a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if answer.startswith("error"):
            raise SystemExit(f"{PROGRAM.name}: {answer}")
        return [float(word) for word in answer.split()]

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Gate:
    """Lets rank 0 do something alone while the other ranks sleep in a read: they must not spin in a barrier then."""

    def __init__(self, control: Control) -> None:
        self._rank = control.rank
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = control.gather(door.getsockname()[1])[0]
            if control.rank == 0:
                self._lines = [Line(door.accept()[0]) for _ in range(control.size - 1)]
            else:
                self._lines = [Line(socket.create_connection(("127.0.0.1", port)))]

    def alone(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` on rank 0; return its result (plain data) on all ranks."""
        if self._rank != 0:
            return self._lines[0].receive()
        result = work()
        for line in self._lines:
            line.send(result)
        return result


class PairMeter:
    """A Meter whose samples come from bench_pair. It checks nothing: the program is compared by its time alone."""

    def __init__(self, gate: Gate, ask: Callable[[int, int], list[float]]) -> None:
        self._gate, self._ask = gate, ask

    def check(self) -> int:
        return 0

    def once_s(self) -> float:
        return float(self._gate.alone(lambda: self._ask(1, 1))[0])

    def turn(self, samples: int, calls: int, warmup: int) -> list[float]:
        times_s: list[float] = self._gate.alone(lambda: self._ask(samples, calls))
        return times_s


class PairLibrary:
    """A command of bench_pair in the benchmark, as a library of two ranks that knows float32 all_reduce only.

    Args:
        name: "limit" or "plan", the command, and what the tables call it.
        pair: on rank 0; None elsewhere.
    """

    version = "C++"

    def __init__(self, name: str, gate: Gate, pair: Pair | None) -> None:
        self.name, self._gate, self._pair = name, gate, pair

    def meter(self, task: Task, watchdog: Watchdog) -> PairMeter:
        """See hccl_py.bench.meter.MetersItself."""
        if (task.case, task.dtype) != (Collective.ALL_REDUCE.name.lower(), DType.FLOAT32) or task.n != 2:
            raise UnsupportedError(f"{self.name} is a float32 all_reduce of two ranks")
        form = ["in" if task.in_place else "out"] if self.name == "limit" else []

        def ask(samples: int, calls: int) -> list[float]:
            assert self._pair is not None
            return self._pair.ask(self.name, task.count * 4, *form, samples, calls)

        return PairMeter(self._gate, ask)

    def close(self) -> None:
        """Nothing to give up: the pair belongs to who made it."""
