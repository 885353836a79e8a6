"""``hccl-py topo``: show, discover and validate topologies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hccl_py.core.errors import ConfigError
from hccl_py.topology.config import load_cluster
from hccl_py.topology.discovery import builtin_probes, survey
from hccl_py.topology.draw import draw
from hccl_py.topology.dump import dump_topology
from hccl_py.topology.graph import Topology
from hccl_py.topology.tree import summary, tree, tree_text

app = typer.Typer(
    help="Show a cluster's topology, discover this machine's, check a cluster file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the YAML there.")] = None,
) -> None:
    """Describe this machine as a cluster file: edit it, then check it with `validate`."""
    found = survey(builtin_probes())
    topology = Topology(found.nodes, found.links)
    topology = Topology(found.nodes, found.links)
    notes = "".join(f"# {note}\n" for note in found.notes)
    text = f"# Discovered on this machine.\n{notes}{dump_topology(topology)}"
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot write: {error.strerror}") from error
    typer.echo(tree_text(topology, title=topology.hosts()[0]), nl=False)
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"written: {output}")


@app.command()
def validate(cluster: Annotated[Path, typer.Argument(metavar="FILE", help="The cluster file.")]) -> None:
    """Check a cluster file; on a mistake, say file, line and what to write, and exit with 2."""
    config = load_cluster(cluster)
    typer.echo(f"{cluster}: valid: {config.placement.size} ranks; {summary(config.topology)}")
