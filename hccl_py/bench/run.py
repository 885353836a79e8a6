"""The measuring loop: per size and form, all libraries in turn, forwards and backwards, checked before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hccl_py.bench.cases import CASES, Case
from hccl_py.bench.control import Control
from hccl_py.bench.dtypes import short_name
from hccl_py.bench.meter import AnyLibrary, LocalMeter, Meter, MetersItself, Task
from hccl_py.bench.metrics import calls_per_sample
from hccl_py.bench.oracle import Oracle
from hccl_py.bench.peers import Request, UnsupportedError
from hccl_py.bench.watchdog import Watchdog
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp, allowed

TURNS = 8  # of each library per measurement: A B, B A, A B, B A, ...
SAMPLE_S = 4e-3  # the calls of a sample are fewer where they would last longer


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    cases: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    ops: tuple[ReduceOp, ...] = (ReduceOp.SUM,)
    roots: tuple[int, ...] = (0,)
    samples: int = 20
    warmup: int = 5
    calls: int | None = None  # per sample; None: by size
    check: bool = True


@dataclass(frozen=True)
class Cell:
    """One library at one size in one form. A sample is the time of one call in seconds, of the slowest rank."""

    samples_s: tuple[float, ...] = ()
    calls: int = 0  # timed together in each sample
    wrong: int | None = None  # elements, summed over the ranks; None: not checked
    absent: str = ""  # why there are no samples


@dataclass(frozen=True)
class Row:
    """What nccl-tests prints on one line, for one library."""

    library: str
    case: str
    size_bytes: int
    count: int
    dtype: DType
    op: ReduceOp | None
    root: int | None
    out_of_place: Cell
    in_place: Cell


def turns(names: Sequence[str], samples: int) -> Iterator[tuple[str, int]]:
    """Yield (name, samples of this turn): each name :data:`TURNS` times, every second round backwards."""
    for turn in range(TURNS):
        share = samples * (turn + 1) // TURNS - samples * turn // TURNS
        for name in names if turn % 2 == 0 else reversed(names):
            if share:
                yield name, share


class Benchmark:
    """Runs :class:`Settings` on a list of libraries, the first of which is ours."""

    def __init__(
        self, control: Control, libraries: Sequence[AnyLibrary], settings: Settings, watchdog: Watchdog
    ) -> None:
        self._control, self._libraries, self._settings, self._watchdog = control, libraries, settings, watchdog

    def run(self, on_row: Callable[[Row], None]) -> list[Row]:
        """Measure everything; ``on_row`` is called for each row as it comes, on every rank."""
        rows: list[Row] = []
        for oracle in self._oracles():
            for row in self._measure(oracle):
                on_row(row)
                rows.append(row)
        if not rows:
            raise ConfigError("nothing to measure: none of the operators -o is defined on any of the element types -d")
        return rows

    def _oracles(self) -> Iterator[Oracle]:
        chosen = self._settings
        for case in (CASES[name] for name in chosen.cases):
            for dtype in chosen.dtypes:
                for op in chosen.ops if case.reduces else (ReduceOp.SUM,):
                    if not allowed(op, dtype) and case.reduces:
                        continue
                    for root in chosen.roots if case.rooted else (0,):
                        yield from self._sizes(case, dtype, op, root)

    def _sizes(self, case: Case, dtype: DType, op: ReduceOp, root: int) -> Iterator[Oracle]:
        n = self._control.size
        if case.name == "barrier":
            yield Oracle(case, dtype, op, root, 0, n)
            return
        counts = (case.count(size, dtype.itemsize, n) for size in self._settings.sizes_bytes)
        for count in dict.fromkeys(counts):
            yield Oracle(case, dtype, op, root, count, n)

    def _measure(self, oracle: Oracle) -> list[Row]:
        case, names = oracle.case, [library.name for library in self._libraries]
        out_of_place = (
            self._form(oracle, False) if case.out_of_place else dict.fromkeys(names, Cell(absent="no such form"))
        )
        in_place = self._form(oracle, True) if case.in_place else dict.fromkeys(names, Cell(absent="no such form"))
        for name in names:
            if out_of_place[name].absent and in_place[name].absent:
                raise UnsupportedError(in_place[name].absent if case.in_place else out_of_place[name].absent)
        return [
            Row(
                library=name,
                case=case.name,
                size_bytes=case.size_bytes(oracle.count, oracle.dtype.itemsize, oracle.n),
                count=oracle.count,
                dtype=oracle.dtype,
                op=oracle.op if case.reduces else None,
                root=oracle.root if case.rooted else None,
                out_of_place=out_of_place[name],
                in_place=in_place[name],
            )
            for name in names
        ]

    def _form(self, oracle: Oracle, in_place: bool) -> dict[str, Cell]:
        """Measure one form of one case at one size on all libraries; the same buffers serve all of this process."""
        control, settings = self._control, self._settings
        size_bytes = oracle.case.size_bytes(oracle.count, oracle.dtype.itemsize, oracle.n)
        label = f"{oracle.case.name} {short_name(oracle.dtype)} {size_bytes} B {'in' if in_place else 'out of'} place"
        buffers = oracle.allocate(control.rank, in_place)
        meters: dict[str, Meter] = {}
        absent: dict[str, str] = {}
        for library in self._libraries:
            self._watchdog.feed(f"preparing {library.name} {label}")
            try:
                if isinstance(library, MetersItself):
                    meters[library.name] = library.meter(Task.of(oracle, in_place), self._watchdog)
                else:
                    request = Request(oracle.case, oracle.dtype, oracle.op, oracle.root, buffers, in_place)
                    meters[library.name] = LocalMeter(
                        control,
                        self._watchdog,
                        oracle,
                        library.prepare(request),
                        buffers,
                        f"{library.name} {label}",
                    )
            except UnsupportedError as error:
                absent[library.name] = str(error)
        wrong = dict.fromkeys(meters, 0)
        samples: dict[str, list[float]] = {name: [] for name in meters}
        calls: dict[str, int] = {}
        for name, meter in meters.items():
            wrong[name] += meter.check() if settings.check else 0
            calls[name] = settings.calls or self._calls(meter, size_bytes)
        for name, count in turns(list(meters), settings.samples):
            self._watchdog.feed(f"{name} {label}")
            samples[name] += meters[name].turn(count, calls[name], settings.warmup)
        for name, meter in meters.items():
            wrong[name] += meter.check() if settings.check else 0
        everyone = control.gather((samples, wrong))
        cells = {
            name: Cell(
                samples_s=tuple(np.max([theirs[name] for theirs, _ in everyone], axis=0).tolist()),
                calls=calls[name],
                wrong=sum(theirs[name] for _, theirs in everyone) if settings.check else None,
            )
            for name in meters
        }
        return {**cells, **{name: Cell(absent=reason) for name, reason in absent.items()}}

    def _calls(self, meter: Meter, size_bytes: int) -> int:
        """Return how many calls a sample times, the same on all ranks: by size, fewer if one takes long."""
        by_size = calls_per_sample(size_bytes)
        once_s = max(self._control.gather(min(meter.once_s() for _ in range(2)))) if by_size > 1 else 0.0
        return max(1, min(by_size, int(SAMPLE_S / once_s))) if once_s > 0 else by_size
