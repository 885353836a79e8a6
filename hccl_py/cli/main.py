"""The entry of ``hccl-py``: finds the subcommand, imports that one only, and turns errors of ours into one line."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from hccl_py.core.env import Launch
from hccl_py.core.errors import HcclError

# subcommand -> its line in `hccl-py --help`; hccl_py/cli/<subcommand>.py holds a Typer `app`, or a function of the name
COMMANDS = {
    "doctor": "What works on this machine, and every setting.",
    "topo": "Show a cluster's topology.",
    "plan": "Show and explain the plan of a collective.",
    "simulate": "Run plans on a cluster that need not exist.",
    "bench": "Time and check collectives (under mpirun, torchrun).",
    "watch": "What the scheduler of a running job sees and does.",
    "lab": "An emulated cluster on this machine.",
    "demo": "Train over gloo and hccl_py; benchmark; pictures.",
}


def build(wanted: str | None) -> typer.Typer:
    """Return the command line; only the subcommand ``wanted`` is real, the others are there for the help."""
    root = typer.Typer(
        name="hccl-py",
        help="Collectives on a topology graph: look at clusters and plans, check this machine, measure.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @root.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        pass

    for name, summary in COMMANDS.items():
        if name == wanted:
            _mount(root, name)
        else:
            root.command(name, help=summary)(_placeholder)
    return root


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``hccl-py``. Exits 2 with one line on standard error where hccl_py refuses, 1 where a check failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wanted = next((word for word in words if not word.startswith("-")), None)
    launch = Launch.from_environ()
    try:
        build(wanted)(words, prog_name="hccl-py")
    except HcclError as error:
        rank = f" [rank {launch.rank}]" if launch.size > 1 else ""
        sys.stderr.write(f"hccl-py{rank}: {type(error).__name__}: {error}\n")
        _leave(2, launch)
    except Exception:
        traceback.print_exc()
        _leave(1, launch)


def _leave(status: int, launch: Launch) -> None:
    """Exit; one of several ranks at once, for the clean end of MPI or torch would wait for peers that wait for us."""
    sys.stdout.flush()
    sys.stderr.flush()
    if launch.size > 1:
        os._exit(status)
    sys.exit(status)


def _mount(root: typer.Typer, name: str) -> None:
    module = importlib.import_module(f"hccl_py.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        root.command(name, help=COMMANDS[name] if not getattr(module, name).__doc__ else None)(getattr(module, name))
    elif len(app.registered_commands) == 1 and not app.registered_groups and app.registered_callback is None:
        only = app.registered_commands[0]  # a Typer of one function is that function: `plan FILE`, not `plan plan FILE`
        root.command(name, help=only.help)(only.callback)
    else:
        root.add_typer(app, name=name)


def _placeholder() -> None:
    raise AssertionError("only stands in the help")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hccl-py {importlib.metadata.version('hccl-py')}")
        raise typer.Exit()


if __name__ == "__main__":
    main()
