"""``hccl-py bench``: nccl-tests' flags and columns on every collective, with baselines in the same run."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hccl_py.core.env import Env, Launch
from hccl_py.core.errors import ConfigError
from hccl_py.core.units import parse_size


def bench(
    collective: Annotated[str, typer.Argument(help="all_reduce, all_gather, ... by comma, or all.")],
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size: 8, 64K, 1M.")] = "32M",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "32M",
    step: Annotated[str | None, typer.Option("-i", "--stepbytes", help="Step between sizes. [1M without -f]")] = None,
    factor: Annotated[float | None, typer.Option("-f", "--stepfactor", help="Factor between sizes.")] = None,
    iters: Annotated[int, typer.Option("-n", "--iters", min=1, help="Samples per size, form and library.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", min=0, help="Calls before each turn, not timed.")] = 5,
    aggregate: Annotated[
        int | None, typer.Option("-m", "--agg_iters", min=1, help="Calls timed together per sample. [by size: 20 to 1]")
    ] = None,
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help="Element types by comma: float,half,int32, or all.")
    ] = "float",
    operator: Annotated[
        str, typer.Option("-o", "--op", help="sum, prod, min, max, avg, band, bor, bxor by comma, or all.")
    ] = "sum",
    root: Annotated[str, typer.Option("-r", "--root", help="Root rank of rooted collectives, or all.")] = "0",
    check: Annotated[int, typer.Option("-c", "--check", help="Check the results: 1 or 0.")] = 1,
    compare: Annotated[str, typer.Option("--compare", help="Baselines by comma: gloo,openmpi,mpich.")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="NAME=FOLDER: the environment of a baseline that is not in this one. Repeatable."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every sample to this file.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a line per figure to this file.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw time against size to this file: .png, .svg or .pdf.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds without progress until all stacks are printed.")
    ] = 120.0,
) -> None:
    """Time and check collectives, next to other libraries, as nccl-tests does.

    Run it under mpirun or torchrun, one process a rank. Columns, algbw and busbw are those of nccl-tests; the time is
    the median over the samples of the slowest rank. The libraries take turns; a baseline that needs an environment of
    its own (MPICH beside Open MPI) runs there and sleeps while it is not its turn. Below the table: ratios with their
    95% limits, and cliffs (a size that takes over 1.5x what its neighbours promise). Exits 1 if an element is wrong.

    Example: mpirun -n 4 hccl-py bench all_reduce -b 8 -e 64M -f 4 --compare gloo,openmpi,mpich --json out.json
    """
    from hccl_py.bench.run import Settings

    settings = Settings(
        cases=_cases(collective),
        sizes_bytes=_sizes(begin, end, step, factor),
        dtypes=_dtypes(datatype),
        ops=_ops(operator),
        roots=(),
        samples=iters,
        warmup=warmup,
        calls=aggregate,
        check=bool(check),
    )
    outputs = _outputs(json_file, csv_file, plot_file)
    baselines = [name for name in compare.split(",") if name]
    wrong = _run(settings, root, baselines, _environments(env or [], baselines), outputs, timeout_s)
    if wrong:
        raise typer.Exit(1)


def _run(
    settings: Any,
    root: str,
    baselines: list[str],
    environments: dict[str, Path],
    outputs: dict[str, Path],
    timeout_s: float,
) -> int:
    """Measure on this rank with all others; return the number of wrong elements. Rank 0 prints and writes."""
    from dataclasses import replace

    import hccl_py
    from hccl_py.bench import peers, report
    from hccl_py.bench.connect import connect
    from hccl_py.bench.control import Control, refuse_lonely_ranks
    from hccl_py.bench.meter import AnyLibrary
    from hccl_py.bench.run import Benchmark, Row
    from hccl_py.bench.watchdog import Watchdog
    from hccl_py.bootstrap import detect

    launch = Launch.from_environ()
    control = Control(detect(Env.from_environ()))
    with Watchdog(control.rank, timeout_s) as watchdog:
        refuse_lonely_ranks(launch, control.size)
        settings = replace(settings, roots=_roots(root, control.size))
        libraries: list[AnyLibrary] = [peers.HcclPy(hccl_py.init())]
        for name in baselines:
            watchdog.feed(f"connecting {name}")
            libraries.append(connect(name, control, timeout_s, environments))
        versions = {library.name: library.version for library in libraries}
        width = max(map(len, (*versions, "library")))
        table: list[str] = []

        def show(row: Row) -> None:
            if control.rank == 0:
                if table != [row.case]:
                    table[:] = [row.case]
                    _print(report.columns(row.case, width))
                _print([report.line(row, control.size, width)])

        if control.rank == 0:
            _print(report.preamble(control.size, settings, versions))
        rows = Benchmark(control, libraries, settings, watchdog).run(show)
        if control.rank == 0:
            _print(report.footer(rows, control.size))
            command = shlex.join(["hccl-py", *sys.argv[1:]])
            _write(outputs, report.document(rows, control.size, command, versions, settings))
        control.barrier()
        for library in reversed(libraries):  # not after an error: to close would wait for ranks that are elsewhere
            library.close()
    return report.count_wrong(rows)


def _write(outputs: dict[str, Path], record: dict[str, Any]) -> None:
    from hccl_py.bench import plot, table

    for kind, path in outputs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "plot":
            plot.draw(record, path)
        else:
            text = json.dumps(record, indent=1) + "\n" if kind == "json" else table.to_csv(record)
            path.write_text(text, encoding="utf-8")


def _outputs(json_file: Path | None, csv_file: Path | None, plot_file: Path | None) -> dict[str, Path]:
    """Return the files to write, by kind. Raises ConfigError for a picture that cannot be drawn."""
    if plot_file is not None:
        from hccl_py.bench import plot

        plot.check(plot_file)
    files = {"json": json_file, "csv": csv_file, "plot": plot_file}
    return {kind: path for kind, path in files.items() if path is not None}


def _environments(given: list[str], baselines: list[str]) -> dict[str, Path]:
    from hccl_py.bench.peers import MPI_MARKS

    found = {}
    for text in given:
        name, _, folder = text.partition("=")
        if name not in MPI_MARKS or not folder:
            raise ConfigError(f"--env {text}: write NAME=FOLDER, NAME one of {', '.join(MPI_MARKS)}")
        if name not in baselines:
            raise ConfigError(f"--env {text}: {name} is not in --compare")
        found[name] = Path(folder)
    return found


def _print(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


def _cases(name: str) -> tuple[str, ...]:
    from hccl_py.bench.cases import CASES

    if name == "all":
        return tuple(CASES)
    for one in name.split(","):
        if one not in CASES:
            raise ConfigError(f"bench {one}: no such collective; known: {', '.join(CASES)}, all")
    return tuple(name.split(","))


def _sizes(begin: str, end: str, step: str | None, factor: float | None) -> tuple[int, ...]:
    from hccl_py.bench.metrics import scan_bytes

    return tuple(scan_bytes(parse_size(begin), parse_size(end), None if step is None else parse_size(step), factor))


def _dtypes(names: str) -> tuple[Any, ...]:
    from hccl_py.bench import dtypes
    from hccl_py.core.types import DType

    return tuple(DType) if names == "all" else tuple(dtypes.parse(name) for name in names.split(","))


def _ops(names: str) -> tuple[Any, ...]:
    from hccl_py.core.types import ReduceOp

    known = {op.name.lower(): op for op in ReduceOp}
    chosen = list(known) if names == "all" else names.split(",")
    for name in chosen:
        if name not in known:
            raise ConfigError(f"-o {name}: no such operator; known: {', '.join(known)}, all")
    return tuple(known[name] for name in chosen)


def _roots(text: str, n: int) -> tuple[int, ...]:
    if text in ("all", "-1"):
        return tuple(range(n))
    if not text.isdecimal() or int(text) >= n:
        raise ConfigError(f"-r {text}: the root must be a rank from 0 to {n - 1}, or all")
    return (int(text),)
