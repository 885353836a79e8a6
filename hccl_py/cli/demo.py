"""``hccl-py demo``: the main job from end to end on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccl_py.core.errors import ConfigError


def demo(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="Processes on this machine.")] = 4,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and figures.")] = Path("out/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps and sizes only, to see that all works.")] = False,
    backends: Annotated[
        str, typer.Option(help="Backends of the training by comma, the baseline first.")
    ] = "gloo,hccl_py",
    compare: Annotated[str, typer.Option(help="Baselines of the benchmark by comma; empty for none.")] = "gloo,openmpi",
) -> None:
    """Train with DDP over gloo and over hccl_py, run the all-reduce benchmark, print one table, draw the pictures.

    Example: hccl-py demo --ranks 2 --out out/demo2
    """
    try:
        from hccl_py.demo.run import demo as run
    except ImportError as error:
        raise ConfigError(
            f"the demonstration needs {error.name}: pip install 'hccl-py[torch,mpi,viz]' scikit-learn"
        ) from None
    run(ranks, out, quick, backends.split(","), [name for name in compare.split(",") if name])
