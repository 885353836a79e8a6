"""The demonstration from end to end: train over each backend, run the benchmark, print one table, draw the pictures."""

from __future__ import annotations

import itertools
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
    rounds: dict[str, int]  # of measured steps, by task
    bench: list[str]  # arguments of `hccl-py bench all_reduce`
    timeout_s: float  # of each of the jobs

    def sizes_bytes(self) -> list[int]:
        """Return the sizes that the benchmark scans."""
        flags = dict(zip(self.bench[::2], self.bench[1::2], strict=True))
        return scan_bytes(parse_size(flags["-b"]), parse_size(flags["-e"]), factor=float(flags["-f"]))


FULL = Extent(
    {"digits": 110, "bytes": 60},
    {"digits": 20, "bytes": 10},
    ["-b", "16", "-e", "64M", "-f", "4", "-n", "12"],
    timeout_s=300,
)
QUICK = Extent(
    {"digits": 12, "bytes": 4},
    {"digits": 4, "bytes": 2},
    ["-b", "1K", "-e", "64K", "-f", "8", "-n", "4"],
    timeout_s=120,
)


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
            "steps": None,
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
        extent, progress = (
            self._extent,
            Progress(*columns, console=self._console, disable=not self._console.is_terminal),
        )
        with progress:

            def bar(text: str, total: int) -> TaskID:
                return progress.add_task(text, total=total, now="", start=False)

            train = {name: bar(f"DDP over {name}", sum(extent.steps.values())) for name in self._backends}
            compare = bar("DDP step by step, in turns", sum(extent.rounds.values()))
            bench = bar("all_reduce benchmark", (1 + len(self._peers)) * len(extent.sizes_bytes()))
            for name, own in train.items():
                result = self._torch("train", [name], extent.steps, progress, own)
                self.record["training"].append({"backend": name, "tasks": result})
                self._say(f"trained over {name}")
            self.record["steps"] = self._torch("compare", self._backends, extent.rounds, progress, compare)
            self._say("measured steps")
            self.record["bench"] = self._bench(progress, bench)
            self._say("benchmark done")
        (self._out / "demo.json").write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")
        draw_losses(self.record, self._out / "losses.png")
        draw_steps(self.record, self._out / "steps.png")
        draw_bandwidth(self.record, self._out / "busbw.png")

    def _torch(
        self, what: str, backends: list[str], steps: dict[str, int], progress: Progress, bar: TaskID
    ) -> dict[str, Any]:
        """Run hccl_py.demo.train under torchrun; return what it wrote."""
        before = dict(zip(steps, [0, *itertools.accumulate(steps.values())], strict=False))
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            worker = ["-m", "hccl_py.demo.train", what, "--backends", ",".join(backends), "--out", str(out)]
            worker += ["--steps", ",".join(f"{name}={count}" for name, count in steps.items())]
            progress.start_task(bar)
            with Job(torchrun(self._ranks, worker), self._extent.timeout_s, child_environ(OMP_NUM_THREADS="1")) as job:
                for line in job.lines():
                    if line.startswith(PROGRESS):
                        now = json.loads(line.removeprefix(PROGRESS))
                        text = f"{now['task']} {now['step']}/{now['steps']} {now['text']}"
                        progress.update(bar, completed=before[now["task"]] + now["step"], now=text)
            if job.status != 0 or not out.exists():
                names = " and ".join(backends)
                raise HcclError(f"DDP ({what}) over {names} ended with status {job.status}:\n{_essence(job.output)}")
            progress.update(bar, now="done")
            progress.stop_task(bar)
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
            raise HcclError(f"the benchmark ended with status {job.status}:\n{_essence(job.output)}")
        progress.update(bar, now="done")
        progress.stop_task(bar)
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
            caption="ratio: time or waiting of gloo over that of hccl_py; above 1, hccl_py is better\n"
            "waiting: share of a step that would vanish if communication cost nothing\n"
            "final loss: training, last 10 steps; accuracy and bits: held-out data\n"
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
        measured = list(self.record["steps"][name]["backends"].values())
        fill = [""] * extra
        times_s = [result["step_s"] for result in measured]
        waits = [result["waiting"] for result in measured]
        yield [f"{name}: step time", *(f"{time_s * 1e3:.1f} ms" for time_s in times_s), *fill, _ratio(times_s)]
        yield [f"{name}: waiting", *(f"{value:.0%}" for value in waits), *fill, _ratio(waits)]
        yield [f"{name}: final loss", *(f"{_mean(task['losses'][-10:]):.3f}" for task in tasks), *fill, ""]
        judged_by = tasks[0]["judged_by"]
        form = "{:.1%}" if judged_by == "accuracy" else "{:.3f}"
        yield [f"{name}: {judged_by}", *(form.format(task["judged"]) for task in tasks), *fill, ""]

    def _bandwidth_rows(self, columns: list[str]) -> Iterable[list[str]]:
        cells = {(row["library"], row["size_bytes"]): row["in_place"] for row in self.record["bench"]["rows"]}
        for size in sorted({size for _, size in cells}):
            found = [cells.get((name, size)) for name in columns]
            texts = ["" if cell is None else format_rate(cell["busbw_Bps"]) for cell in found]
            ratio = _ratio([cell["time_s"] for cell in found[:2] if cell is not None])
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
    console.print(f"{time.monotonic() - start_s:.0f} s; {out}/: losses.png, steps.png, busbw.png, demo.json")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ratio(values: list[float]) -> str:
    """Return first / second, or nothing where there are not two."""
    return f"{values[0] / values[1]:.2f}" if len(values) == 2 and values[1] > 0 else ""


def _essence(output: str, lines: int = 40) -> str:
    """Return what a failed job said for itself: from the first traceback on, without the launcher's own report."""
    said = [
        line for line in output.splitlines() if not line.startswith((PROGRESS, "W1", "E1")) and "elastic" not in line
    ]
    start = next((number for number, line in enumerate(said) if "Traceback" in line or "rror:" in line), -lines)
    return "\n".join(said[start:][:lines])
