"""Finds a library by name: in this process, or in an environment of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hccl_py.bench.control import Control
from hccl_py.bench.meter import AnyLibrary
from hccl_py.bench.peers import MPI_MARKS, Gloo, Mpi
from hccl_py.bench.remote import Remote
from hccl_py.core.env import Launch
from hccl_py.core.errors import ConfigError


def connect(
    name: str, control: Control, timeout_s: float, environments: Mapping[str, Path] | None = None
) -> AnyLibrary:
    """Return the baseline called ``name``.

    An MPI library that this job was not started with runs in processes of its own, by the mpirun of the environment
    that ``environments`` names for it, or of the folder beside this Python's that is called like it with ``-NAME``
    added (``.venv-mpich``).

    Raises:
        ConfigError: it is unknown, not installed, or cannot be had in this job.
    """
    folder = (environments or {}).get(name)
    if name == "gloo":
        return Gloo(control, timeout_s)
    if name not in MPI_MARKS:
        known = ", ".join(("gloo", *MPI_MARKS))
        raise ConfigError(f"--compare {name}: no such baseline; known: {known}")
    beside = Path(f"{sys.prefix}-{name}")
    if folder is None and name != Launch.from_environ().launcher and beside.is_dir():
        folder = beside
    return Mpi(name, control) if folder is None else Remote(name, control, timeout_s, folder)
