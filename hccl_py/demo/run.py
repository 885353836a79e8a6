"""The demonstration from end to end: train over each backend, run the benchmark, print one table, draw the pictures."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hccl_py.bench.metrics import scan_bytes
from hccl_py.bench.report import machine
from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError, HcclError
from hccl_py.core.units import format_bytes, parse_size
from hccl_py.demo.picture import draw_bandwidth, draw_losses, draw_steps, format_rate
from hccl_py.launch import Job, mpirun, torchrun

PROGRESS = "@progress "


@dataclass(frozen=True)
class Extent:
    """How much the demonstration does."""

    steps: dict[str, int]  # of training, by task
    pairs: int  # of steps that measure the waiting
    bench: list[str]  # arguments of `hccl-py bench all_reduce`
    timeout_s: float  # of each of the jobs

    def sizes_bytes(self) -> list[int]:
        """Return the sizes that the benchmark scans."""
        flags = dict(zip(self.bench[::2], self.bench[1::2], strict=True))
        return scan_bytes(parse_size(flags["-b"]), parse_size(flags["-e"]), factor=float(flags["-f"]))


FULL = Extent({"digits": 110, "bytes": 60}, 10, ["-b", "16", "-e", "64M", "-f", "4", "-n", "12"], timeout_s=300)
QUICK = Extent({"digits": 12, "bytes": 4}, 2, ["-b", "1K", "-e", "64K", "-f", "8", "-n", "4"], timeout_s=120)


class Demo:
    """Runs the parts one after the other and keeps what they found in ``record``, a JSON document."""

    def __init__(
        self, ranks: int, backends: list[str], peers: list[str], extent: Extent, out: Path, console: Console
    ) -> None:
        self._ranks, self._backends, self._peers = ranks, backends, peers
        self._extent, self._out, self._console = extent, out, console
        self.record: dict[str, Any] = {
            "schema": "hccl_py.demo/1",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "ranks": ranks,
            "training": [],
            "bench": None,
        }

    def run(self) -> None:
        """Run everything. Raises HcclError where a part failed, with its last lines."""
        self._out.mkdir(parents=True, exist_ok=True)
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.fields[now]:<26}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            bars = [
                progress.add_task(f"DDP over {name}", total=sum(self._extent.steps.values()), now="", start=False)
                for name in self._backends
            ]
            libraries = 1 + len(self._peers)
            last = progress.add_task(
                "all_reduce benchmark", total=libraries * len(self._extent.sizes_bytes()), now="", start=False
            )
            for name, bar in zip(self._backends, bars, strict=True):
                self.record["training"].append(self._train(name, progress, bar))
            self.record["bench"] = self._bench(progress, last)
        (self._out / "demo.json").write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")
        draw_losses(self.record, self._out / "losses.png")
        draw_steps(self.record, self._out / "steps.png")
        draw_bandwidth(self.record, self._out / "busbw.png")

    def _train(self, backend: str, progress: Progress, bar: TaskID) -> dict[str, Any]:
        steps = self._extent.steps
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            worker = [
                "-m",
                "hccl_py.demo.train",
                "--backend",
                backend,
                "--pairs",
                str(self._extent.pairs),
                "--out",
                str(out),
            ]
            worker += ["--steps", ",".join(f"{name}={count}" for name, count in steps.items())]
            before = dict(zip(steps, [0, *_running_sums(steps.values())], strict=False))
            progress.start_task(bar)
            with Job(torchrun(self._ranks, worker), self._extent.timeout_s, child_environ(OMP_NUM_THREADS="1")) as job:
                for line in job.lines():
                    if line.startswith(PROGRESS):
                        now = json.loads(line.removeprefix(PROGRESS))
                        text = f"{now['task']} {now['step']}/{now['steps']} loss {now['loss']:.3f}"
                        progress.update(bar, completed=before[now["task"]] + now["step"], now=text)
            if job.status != 0 or not out.exists():
                raise HcclError(f"the training over {backend} ended with status {job.status}:\n{_tail(job.output)}")
            progress.update(bar, now="done")
            progress.stop_task(bar)
            self._say(f"trained over {backend}")
            result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return result

    def _bench(self, progress: Progress, bar: TaskID) -> dict[str, Any]:
        out = self._out / "bench.json"
        out.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "hccl_py.cli.main",
            "bench",
            "all_reduce",
            *self._extent.bench,
            "--json",
            str(out.resolve()),
        ]
        if self._peers:
            command += ["--compare", ",".join(self._peers)]
        names = {"hccl_py", *self._peers}
        progress.start_task(bar)
        with Job(mpirun(self._ranks, command), self._extent.timeout_s) as job:
            for line in job.lines():
                words = line.split()
                if words and words[0] in names:
                    progress.update(bar, advance=1, now=f"{words[0]} {format_bytes(int(words[1]))}")
        if job.status != 0 or not out.exists():
            raise HcclError(f"the benchmark ended with status {job.status}:\n{_tail(job.output)}")
        progress.update(bar, now="done")
        progress.stop_task(bar)
        self._say("benchmark done")
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return result

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text)

    def table(self) -> Table:
        """Return the one table that the demonstration ends with."""
        first, *others = [result["backend"] for result in self.record["training"]]
        libraries = list(dict.fromkeys(row["library"] for row in self.record["bench"]["rows"]))
        extra = [name for name in libraries if name not in (first, *others)]
        processor = self.record["machine"]
        table = Table(
            title=f"{self._ranks} ranks on {processor['cores_usable']} cores ({processor['processor']})",
            caption="ratio: time or waiting of gloo over that of hccl_py (above 1: hccl_py is better)\n"
            "waiting: share of a step that would vanish if communication cost nothing (see hccl_py/demo/train.py)\n"
            "busbw: in place, as nccl-tests defines it",
            caption_justify="left",
        )
        table.add_column("")
        for name in (first, *others, *extra):
            table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
        for name in self._extent.steps:
            for row in self._training_rows(name, len(extra)):
                table.add_row(*row)
            table.add_section()
        for row in self._bandwidth_rows([first, *others, *extra]):
            table.add_row(*row)
        return table

    def _training_rows(self, name: str, extra: int) -> Iterable[list[str]]:
        tasks = [result["tasks"][name] for result in self.record["training"]]
        judged_by = tasks[0]["judged_by"]
        fill = [""] * extra
        steps_s = [task["step_s"] for task in tasks]
        waits = [task["waiting"] for task in tasks]
        yield [
            f"{name}: step time",
            *(f"{value * 1e3:.1f} ms" for value in steps_s),
            *fill,
            _ratio(steps_s[0], steps_s[-1]),
        ]
        yield [
            f"{name}: waiting for communication",
            *(f"{value:.0%}" for value in waits),
            *fill,
            _ratio(waits[0], waits[-1]),
        ]
        yield [
            f"{name}: training loss, last 10 steps",
            *(f"{_mean(task['losses'][-10:]):.3f}" for task in tasks),
            *fill,
            "",
        ]
        form = "{:.1%}" if judged_by == "accuracy" else "{:.3f}"
        yield [f"{name}: held-out {judged_by}", *(form.format(task["judged"]) for task in tasks), *fill, ""]

    def _bandwidth_rows(self, columns: list[str]) -> Iterable[list[str]]:
        cells = {(row["library"], row["size_bytes"]): row["in_place"] for row in self.record["bench"]["rows"]}
        for size in sorted({size for _, size in cells}):
            found = [cells.get((name, size)) for name in columns]
            texts = ["" if cell is None else format_rate(cell["busbw_Bps"]) for cell in found]
            times = [None if cell is None else cell["time_s"] for cell in found[:2]]
            ratio = _ratio(times[0], times[1]) if len(times) == 2 and times[0] and times[1] else ""
            yield [f"all_reduce {format_bytes(size)}: busbw", *texts, ratio]


def demo(ranks: int, out: Path, quick: bool, backends: list[str], peers: list[str]) -> None:
    """Run the demonstration with ``ranks`` processes and write to the folder ``out``."""
    if ranks < 2:
        raise ConfigError("the demonstration needs at least two ranks")
    console = Console()
    start_s = time.monotonic()
    show = Demo(ranks, backends, peers, QUICK if quick else FULL, out, console)
    show.run()
    console.print(show.table())
    console.print(
        f"{time.monotonic() - start_s:.0f} s; pictures and figures: {out}/losses.png, steps.png, busbw.png, demo.json"
    )


def _running_sums(values: Iterable[int]) -> list[int]:
    sums, total = [], 0
    for value in values:
        total += value
        sums.append(total)
    return sums


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ratio(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.2f}" if ours > 0 else ""


def _tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.splitlines()[-lines:])
