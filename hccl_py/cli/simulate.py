"""``hccl-py simulate CLUSTER.yaml``: plans of a collective run message by message on a cluster that need not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hccl_py.cli.words import collective_of
from hccl_py.core.errors import ConfigError
from hccl_py.core.units import format_bandwidth, format_bytes, format_seconds, parse_size
from hccl_py.scheduler.simulate_compare import Row, compare
from hccl_py.scheduler.simulate_draw import check_picture, draw_simulations
from hccl_py.scheduler.simulate_trace import write_trace
from hccl_py.topology.config import load_cluster


def simulate(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="The cluster file.")],
    collective: Annotated[str, typer.Option("--collective", "-c", help="all_reduce, broadcast, ...")] = "all_reduce",
    size: Annotated[str, typer.Option("--size", "-s", help="Bytes of one block: 8, 64M (power of 1024), 64MB.")] = "1M",
    root: Annotated[int, typer.Option(help="Root of broadcast, reduce, gather and scatter.")] = 0,
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", help="Only so many ranks of the placement.")] = None,
    with_: Annotated[
        str, typer.Option("--compare", metavar="NAME,NAME", help="Algorithms beside the chosen plan. Default: all.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of the table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture of links and messages: .png, .svg or .pdf.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Trace for ui.perfetto.dev (JSON).")] = None,
) -> None:
    """Simulate plans on a cluster: predicted times, the graph's lower bound, link use and timeline."""
    show_simulation(cluster, collective, size, root, ranks, with_, as_json=as_json, plot=plot, trace=trace)


def show_simulation(
    cluster: Path,
    collective: str,
    size: str,
    root: int,
    ranks: int | None,
    with_: str,
    *,
    as_json: bool,
    plot: Path | None,
    trace: Path | None,
) -> None:
    """Simulate, print and draw; the arguments are those of the command line.

    Raises:
        ConfigError, PlanError: an argument is wrong; before anything is simulated.
    """
    wanted, size_bytes = collective_of(collective), parse_size(size)
    if plot is not None:
        check_picture(plot)
    config = load_cluster(cluster)
    placement = config.placement if ranks is None else config.placement.head(ranks)
    if not 0 <= root < placement.size:
        raise ConfigError(f"--root {root}: the cluster has ranks 0 to {placement.size - 1}")
    names = tuple(name.strip() for name in with_.split(",") if name.strip())
    rows = compare(wanted, config.topology, placement, size_bytes, root=root, algorithms=names)
    hosts = len(placement.groups(config.topology))
    title = f"{wanted.name.lower()}, {placement.size} ranks on {hosts} host(s), blocks of {format_bytes(size_bytes)}"
    if as_json:
        about = {"collective": wanted.name.lower(), "ranks": placement.size, "bytes_per_block": size_bytes}
        typer.echo(json.dumps({**about, "plans": [row.as_json() for row in rows]}, indent=1))
    else:
        typer.echo(f"{title}\n{table(rows)}")
    simulations = [(row.plan.name, row.simulation) for row in rows]
    if plot is not None:
        draw_simulations(simulations, plot, f"{config.name or cluster.stem}: {title}")
    if trace is not None:
        write_trace(simulations, trace)


def table(rows: list[Row]) -> str:
    """The comparison for people."""
    cells = [("", "plan", "simulated", "cost model", "gap", "algbw", "busbw", "busiest link")]
    for row in rows:
        links = row.simulation.link_bytes
        busiest = max(links, key=lambda link: (row.simulation.utilisation(link), str(link)), default=None)
        use = "-" if busiest is None else f"{busiest}, {100 * row.simulation.utilisation(busiest):.0f}%"
        part = "" if row.simulation.times.simulated >= 1 else " (extrapolated)"
        cells.append(
            (
                "->" if row.chosen else "", row.plan.name, format_seconds(row.simulation.seconds) + part,
                format_seconds(row.predicted_s), row.gap, format_bandwidth(row.algbw_Bps),
                format_bandwidth(row.busbw_Bps), use,
            )
        )  # fmt: skip
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    bound = rows[0].bound
    return "\n".join([*lines, f"lower bound of the graph: {format_seconds(bound.seconds)} ({bound.why})"])
