"""``hccl-py plan CLUSTER.yaml``: which plans could serve a collective on a cluster, which one is chosen, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccl_py.cli.simulate import show_simulation
from hccl_py.cli.words import collective_of
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective, Order
from hccl_py.core.units import format_bytes, format_seconds, parse_size
from hccl_py.planner import check_policy
from hccl_py.scheduler.bounds import gap, lower_bound
from hccl_py.scheduler.by_size import table_by_size
from hccl_py.scheduler.cost import CostModel, EngineCosts
from hccl_py.scheduler.rehearse import Candidate
from hccl_py.scheduler.select import PlanTable, build_table, candidates
from hccl_py.topology.config import load_cluster
from hccl_py.topology.graph import Topology
from hccl_py.topology.placement import Placement

_MAX_LINKS = 4


def plan(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="The cluster file.")],
    collective: Annotated[str, typer.Option("--collective", "-c", help="all_reduce, broadcast, ...")] = "all_reduce",
    size: Annotated[str, typer.Option("--size", "-s", help="Bytes of one block: 8, 64M (power of 1024), 64MB.")] = "1M",
    root: Annotated[int, typer.Option(help="Root of broadcast, reduce, gather and scatter.")] = 0,
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", help="Only so many ranks of the placement.")] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", "-a", help="Force it: it serves, or fails.")] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Only canonical plans: the same bits at any size. Says what it costs."),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also print the chosen plan's steps and links.")] = False,
    with_: Annotated[
        str | None, typer.Option("--compare", metavar="NAME,NAME", help="Also simulate it beside these algorithms.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the simulation, as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture of the simulation.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Trace of the simulation for Perfetto.")] = None,
) -> None:
    """Show the plans for a collective on a cluster: predicted times, the choice by size, and the reason."""
    wanted, size_bytes = collective_of(collective), parse_size(size)
    simulated = with_ is not None or as_json or plot is not None or trace is not None

    def simulate() -> None:
        show_simulation(cluster, collective, size, root, ranks, with_ or "", as_json=as_json, plot=plot, trace=trace)

    if as_json:
        return simulate()
    config = load_cluster(cluster)
    check_policy(config.policy, str(cluster))
    placement = config.placement if ranks is None else config.placement.head(ranks)
    if not 0 <= root < placement.size:
        raise ConfigError(f"--root {root}: the cluster has ranks 0 to {placement.size - 1}")
    found = _candidates(wanted, config.topology, placement, root, size_bytes)
    deterministic = deterministic or config.policy.deterministic
    limits = config.policy.forced(wanted) if algorithm is None else ((None, algorithm),)

    def build(forced: str | None) -> PlanTable:
        return build_table(
            wanted, config.topology, placement, root=root, deterministic=deterministic, forced=forced, declared=True
        )

    table = table_by_size(limits, build)
    chosen = table.choose(size_bytes).plan
    hosts = len(placement.groups(config.topology))
    typer.echo(
        f"{wanted.name.lower()}, {placement.size} ranks on {hosts} host(s), blocks of {format_bytes(size_bytes)}"
    )
    typer.echo(f"\ncandidates at this size\n{_indent(_table(found, chosen.digest))}")
    typer.echo(f"\nchosen by size\n{_indent(str(table))}")
    typer.echo(f"\nchosen here: {chosen.name}; {table.choose(size_bytes).why}")
    bound = lower_bound(config.topology, placement, wanted, size_bytes, root)
    here_s = _chosen(found, table, size_bytes).curve_s[0]
    typer.echo(
        f"predicted {format_seconds(here_s)}; lower bound of the graph {format_seconds(bound.seconds)} ({bound.why}), "
        f"gap {gap(here_s, bound.seconds)}"
    )
    if deterministic:
        typer.echo(_price(found, table, size_bytes))
    if explain:
        typer.echo("")
        typer.echo(chosen.explain())
        typer.echo(_links(CostModel(config.topology, placement), _chosen(found, table, size_bytes), size_bytes))
    if simulated:
        typer.echo("\nsimulated")
        simulate()


def _chosen(found: list[Candidate], table: PlanTable, size_bytes: int) -> Candidate:
    """The candidate that the table chooses for this size."""
    digest = table.choose(size_bytes).plan.digest
    return next(candidate for candidate in found if candidate.plan.digest == digest)


def _candidates(
    collective: Collective, topology: Topology, placement: Placement, root: int, size_bytes: int
) -> list[Candidate]:
    model = CostModel(topology, placement, EngineCosts.of(topology, placement))
    groups = placement.groups(topology)
    found = candidates(collective, model, groups, [size_bytes], root=root, everything=True, declared=True)
    return sorted(found, key=lambda candidate: candidate.curve_s[0])


def _table(found: list[Candidate], chosen: bytes) -> str:
    width = max(len(candidate.plan.name) for candidate in found)
    lines = []
    for candidate in found:
        mark = "->" if candidate.plan.digest == chosen else "  "
        seconds = format_seconds(candidate.curve_s[0])
        slower = candidate.curve_s[0] / max(found[0].curve_s[0], 1e-12)
        order = candidate.plan.order.name.lower()
        lines.append(f"{mark} {candidate.plan.name:{width}}  {seconds:>9}  {slower:6.2f}x  {order}")
    return "\n".join(lines)


def _price(found: list[Candidate], table: PlanTable, size_bytes: int) -> str:
    """What deterministic mode costs at this size."""
    ours, fastest = _chosen(found, table, size_bytes), found[0]
    if fastest.plan.order is Order.CANONICAL:
        return "determinism costs nothing here: the fastest plan is canonical"
    ratio = ours.curve_s[0] / fastest.curve_s[0]
    times = f"{format_seconds(ours.curve_s[0])} instead of {format_seconds(fastest.curve_s[0])}"
    return f"determinism costs {ratio:.2f}x here: {times} ({fastest.plan.name}, free)"


def _links(model: CostModel, chosen: Candidate, size_bytes: int) -> str:
    if model.uses_slots(chosen.plan, size_bytes):
        return "  links     none: at this size ranks read each other's INPUT in shared memory"
    loads = model.link_bytes(chosen.plan, size_bytes)
    busiest = sorted(loads, key=lambda link: (-loads[link] / link.bandwidth_Bps, str(link)))[:_MAX_LINKS]
    if not busiest:
        return "  links     none"
    lines = ["  links     busiest first"]
    for link in busiest:
        seconds = format_seconds(loads[link] / link.bandwidth_Bps)
        lines.append(f"    {link}: {format_bytes(loads[link])}, busy for {seconds}")
    return "\n".join(lines)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
