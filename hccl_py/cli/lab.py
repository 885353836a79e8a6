"""``hccl-py lab``: an emulated cluster on this machine, made from a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccl_py.core.errors import ConfigError
from hccl_py.core.units import parse_bandwidth
from hccl_py.lab.network import LabNetwork, names, take_down
from hccl_py.lab.ranks import commands_for
from hccl_py.lab.supervise import run_together

app = typer.Typer(
    help="An emulated cluster on this machine: hosts as network namespaces, links with rates (root only).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Option("--name", help="Which lab: letters and digits.")]
End = Annotated[str, typer.Argument(metavar="NODE", help="A NIC, a switch, or a host with one NIC there.")]


@app.command()
def up(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="The cluster file.")], name: Name = "lab"
) -> None:
    """Make the hosts and links of a cluster file. Latencies are this machine's own; only rates are emulated."""
    made = LabNetwork.of_file(name, cluster)
    made.up()
    for host in made.blueprint.hosts:
        ports = ", ".join(f"{port.device} {port.address}" for port in made.blueprint.ports(host))
        ranks = [rank for rank, at in enumerate(made.blueprint.ranks) if at == host]
        typer.echo(f"{host}: {ports or 'no network'}; ranks {ranks}")
    for wire in made.blueprint.wires:
        typer.echo(f"{wire.a.node} - {wire.b.node}: {wire.a_to_b_bps / 1e6:g} / {wire.b_to_a_bps / 1e6:g} Mbit/s")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What each rank runs.")],
    name: Name = "lab",
    by: Annotated[str, typer.Option("--by", help="env, torchrun or mpirun.")] = "env",
    blind: Annotated[bool, typer.Option("--blind", help="Don't tell the ranks the cluster file.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds; then all is ended.")] = 3600.0,
) -> None:
    """Run a command on all ranks of the cluster file, each on its host; ends with the worst exit status."""
    network = LabNetwork.found(name)
    told = {} if blind else {"HCCL_PY_TOPOLOGY": str(network.cluster)}
    raise typer.Exit(run_together(commands_for(network, command, by, told), timeout))


@app.command("set-link")
def set_link(
    one: End, other: End, rate: Annotated[str, typer.Argument(help="Such as 200Mbit/s.")], name: Name = "lab"
) -> None:
    """Change the rate of a link, both directions, at once."""
    LabNetwork.found(name).set_link(one, other, round(parse_bandwidth(rate) * 8))


@app.command()
def cut(one: End, other: End, name: Name = "lab") -> None:
    """Pull the plug of a link: nothing arrives any more, and nobody is told."""
    LabNetwork.found(name).cut(one, other)


@app.command()
def heal(one: End, other: End, name: Name = "lab") -> None:
    """Put the plug back."""
    LabNetwork.found(name).heal(one, other)


@app.command()
def show() -> None:
    """Say which labs are up, and what runs in them."""
    for name in names():
        try:
            network = LabNetwork.found(name)
            typer.echo(f"{network.name}: {network.file}, {len(network.processes())} processes")
        except ConfigError:
            typer.echo(f"{name}: being made or taken down")


@app.command()
def down(name: Name = "lab") -> None:
    """End its processes and remove it, also what a crash has left of it."""
    take_down(name)
