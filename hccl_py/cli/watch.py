"""``hccl-py watch``: what the scheduler of a running job sees and does, from its status file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from hccl_py.core.errors import ConfigError
from hccl_py.watching import Job, perfetto

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_PAUSE_S = 0.5


@app.command()
def watch(
    where: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="HCCL_PY_STATUS of the job, or a file in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they come.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show what there is, and end.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Perfetto, and end.")] = None,
) -> None:
    """Show links, buckets, how much is hidden, and decisions with predicted and achieved gain; ends with the job."""
    path = newest(where)
    if trace is not None:
        lines = list(read(path, follow=False))
        trace.write_text(json.dumps(perfetto(lines)) + "\n", encoding="utf-8")
        typer.echo(f"{trace}: {sum(line['kind'] == 'step' for line in lines)} steps; open it in ui.perfetto.dev")
        return
    if as_json:
        for line in read(path, follow=not once):
            typer.echo(json.dumps(line))
        return
    job = Job(path.name)
    if once:
        for line in read(path, follow=False):
            job.take(line)
        Console().print(job.picture())
        return
    with Live(job.picture(), auto_refresh=False) as live:
        for line in read(path, follow=True):
            job.take(line)
            live.update(job.picture(), refresh=True)


def newest(where: Path) -> Path:
    """The file, or the newest one of the folder.

    Raises:
        ConfigError: there is none.
    """
    if where.is_file():
        return where
    files = sorted(where.glob("job-*.jsonl"), key=lambda path: path.stat().st_mtime) if where.is_dir() else []
    if not files:
        raise ConfigError(f"{where}: no status file; start the job with HCCL_PY_STATUS={where}")
    return files[-1]


def read(path: Path, *, follow: bool) -> Iterator[dict[str, Any]]:
    """The lines of a status file; with ``follow`` also those that come, until the job says that it ends."""
    with path.open(encoding="utf-8") as file:
        rest = ""
        while True:
            rest += file.readline()
            if rest.endswith("\n"):
                try:
                    line: dict[str, Any] = json.loads(rest)
                except ValueError as error:
                    raise ConfigError(f"{path}: not a status file: {error}") from error
                rest = ""
                yield line
                if line.get("kind") == "end":
                    return
            elif not follow:
                return
            else:
                time.sleep(_PAUSE_S)
