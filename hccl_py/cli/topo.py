"""``hccl-py topo``: show, discover, validate, compare and convert topologies, and the schema of the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hccl_py.bootstrap import detect
from hccl_py.core.env import Env, Launch
from hccl_py.core.errors import ConfigError
from hccl_py.planner import check_policy
from hccl_py.topology.config import load_cluster, load_topology, parse_cluster
from hccl_py.topology.diff import FACTOR, Figure, compare
from hccl_py.topology.discovery import builtin_probes, survey
from hccl_py.topology.draw import draw
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import Topology
from hccl_py.topology.importers.formats import FORMATS, convert
from hccl_py.topology.json_schema import json_schema
from hccl_py.topology.measured import Assembled
from hccl_py.topology.placement import Placement
from hccl_py.topology.probes.hwloc import run_lstopo
from hccl_py.topology.tree import summary, tree, tree_text
from hccl_py.topology.update import with_overrides

app = typer.Typer(
    help="Show a cluster's topology; discover, measure, convert, check and compare cluster files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the YAML there.")]


@app.command()
def show(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="The cluster file.")],
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Also draw a .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Print the topology as a tree."""
    config = load_cluster(cluster)
    title = config.name or cluster.name
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(tree(config.topology, config.placement, title))
    else:
        typer.echo(tree_text(config.topology, config.placement, title), nl=False)
    if picture is not None:
        draw(config.topology, picture, config.placement, title)
        typer.echo(f"picture: {picture}")


@app.command()
def discover(
    output: _Output = None,
    hwloc: Annotated[bool, typer.Option("--hwloc", help="By hwloc's lstopo, which sees PCIe switches.")] = False,
) -> None:
    """Describe this machine as a cluster file; under mpirun or torchrun the cluster, with measured links.

    Edit the file, then check it with `validate`.

    Example: mpirun -n 4 hccl-py topo discover -o cluster.yaml
    """
    found = _found(hwloc)
    if found is None:
        return
    where = "on this machine" if Launch.from_environ().size == 1 else "by the ranks of one launch"
    _write(found.topology, found.placement, found.notes, f"# Discovered {where}.", output)


@app.command()
def validate(cluster: Annotated[Path, typer.Argument(metavar="FILE", help="The cluster file.")]) -> None:
    """Check a cluster file; on a mistake, say file, line and what to write, and exit with 2."""
    config = load_cluster(cluster)
    check_policy(config.policy, str(cluster))
    typer.echo(f"{cluster}: valid: {config.placement.size} ranks; {summary(config.topology)}")


@app.command()
def diff(
    declared: Annotated[Path, typer.Argument(metavar="DECLARED.yaml", help="What should be.")],
    measured: Annotated[
        Path | None, typer.Argument(metavar="[MEASURED.yaml]", help="What `discover` wrote; else it is measured now.")
    ] = None,
    factor: Annotated[float, typer.Option(min=1.0, help="Warn where figures are farther apart than this.")] = FACTOR,
    update: Annotated[
        Path | None,
        typer.Option("--update", metavar="FILE", help="Write DECLARED with the measured links as overrides."),
    ] = None,
) -> None:
    """Compare a declared cluster with a measured one; exit with 1 where they are more than a factor of two apart.

    Example: mpirun -n 4 hccl-py topo diff cluster.yaml
    """
    ours = load_cluster(declared)
    if measured is not None:
        config = load_cluster(measured)
        theirs = config.topology, config.placement
    else:
        found = _found(False)
        if found is None:
            return
        theirs = found.topology, found.placement
    figures, notes = compare((ours.topology, ours.placement), theirs)
    far = sorted((one for one in figures if one.factor > factor), key=lambda one: -one.factor)
    for note in notes:
        typer.echo(f"note: {note}")
    for one in far:
        typer.echo(f"warning: {one}: {one.factor:.1f}x apart")
    typer.echo(f"{len(figures)} figures compared, {len(far)} more than {factor:g}x apart")
    if update is not None:
        _update(declared, update, figures, far)
    if far:
        raise typer.Exit(1)


@app.command("convert")
def convert_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Output of another tool.")],
    form: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help=f"{', '.join(FORMATS)}. [found out]")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="What to call the host that it describes.")] = "",
    output: _Output = None,
) -> None:
    """Make a cluster file of what another tool wrote: NCCL, nvidia-smi, ibnetdiscover, Slurm or hwloc."""
    try:
        data = source.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source}: cannot read: {error.strerror}") from error
    topology, notes = convert(data, str(source), form, host)
    _write(topology, None, notes, f"# Converted from {source.name}.", output)


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")] = None,
) -> None:
    """Print the JSON schema of cluster files, for editors."""
    text = json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        _write_text(output, text)
        typer.echo(f"written: {output}")


def _found(hwloc: bool) -> Assembled | None:
    """What is found here, or by the ranks of the launch; None on all of them but the first."""
    launch = Launch.from_environ()
    if launch.size > 1:
        from hccl_py.cluster_survey import survey_cluster

        env = Env.from_environ()
        bootstrap = detect(env)
        found = survey_cluster(bootstrap, env)
        return found if bootstrap.rank == 0 else None
    if hwloc:
        topology, notes = convert(run_lstopo(), "lstopo", "hwloc")
        return Assembled(topology, Placement.by_host(topology), tuple(notes))
    local = survey(builtin_probes())
    topology = Topology(local.nodes, local.links)
    return Assembled(topology, Placement.by_host(topology), local.notes)


def _write(
    topology: Topology, placement: Placement | None, notes: Sequence[str], title: str, output: Path | None
) -> None:
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    stated = None if placement is None or placement == Placement.by_host(topology) else placement
    text = f"{title}\n{comments}{dump_topology(topology, stated)}"
    parse_cluster(text) if topology.devices() else None  # what is written can be read
    if output is None:
        typer.echo(text, nl=False)
        return
    _write_text(output, text)
    typer.echo(tree_text(topology, title=output.name), nl=False)
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"written: {output}")


def _write_text(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot write: {error.strerror}") from error


def _update(declared: Path, output: Path, figures: Sequence[Figure], far: Sequence[Figure]) -> None:
    """Write the declared file with overrides for the links that are far off."""
    topology = load_topology(declared)
    links = {one.what for one in far if one.what.startswith("link ")}
    values: dict[tuple[str, str], list[float]] = {}
    for one in figures:
        if one.what in links:
            at = values.setdefault((one.src, one.dst), [0.0, 0.0])
            at[one.quantity == "latency"] = one.measured
    for src, dst in values:
        topology.link(src, dst)
    text = declared.read_text(encoding="utf-8")
    text = with_overrides(text, {ends: (at[0], at[1]) for ends, at in values.items()}) if values else text
    parse_cluster(text, str(output))
    _write_text(output, text)
    typer.echo(f"written: {output} ({len(values)} links as measured)")
