"""The environment: every ``HCCL_PY_*`` setting in one frozen value, and the launcher that started this process.

This file is the only one of the package that reads ``os.environ`` (tests/architecture/test_env.py keeps it so).
A name that is unknown and a value that is wrong are errors: a typing mistake never falls back to a default silently.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from hccl_py.core.errors import ConfigError
from hccl_py.core.types import Collective
from hccl_py.core.units import parse_size

PREFIX = "HCCL_PY_"


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words[text.lower()]


def _seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError("not a positive number")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names) or len(set(names)) < len(names):
        raise ValueError("not a list of names")
    return names


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("not one of the words")
        return text.lower()

    return parse


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError("out of range")
        return value

    return parse


def _size(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = parse_size(text)
        if not low <= value <= high:
            raise ValueError("out of range")
        return value

    return parse


def _port_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    ports = int(low), int(high or low)
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ValueError("not a range of ports")
    return ports


def _algorithms(text: str) -> tuple[tuple[str, str], ...]:
    collectives = {collective.name.lower() for collective in Collective}
    pairs = []
    for item in text.split(","):
        collective, _, algorithm = item.strip().rpartition(":")
        if collective and collective not in collectives:
            raise ValueError(f"{collective!r} is not a collective")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", algorithm):
            raise ValueError(f"{algorithm!r} is not the name of an algorithm")
        pairs.append((collective or "*", algorithm))
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a collective is named twice")
    return tuple(pairs)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text


def _setting(default: Any, parse: Callable[[str], Any], allowed: str, doc: str) -> Any:
    return field(default=default, metadata={"parse": parse, "allowed": allowed, "doc": doc})


@dataclass(frozen=True)
class Setting:
    """One row of the table that ``hccl-py doctor`` and the documentation print."""

    name: str  # the variable: HCCL_PY_TIMEOUT_S
    value: str  # as one would write it in the environment; "" = unset
    default: str
    origin: str  # "default" or "environment"
    allowed: str
    doc: str


@dataclass(frozen=True)
class Env:
    """Every setting of hccl_py. Field ``timeout_s`` is the variable ``HCCL_PY_TIMEOUT_S``; None: engine chooses."""

    transports: tuple[str, ...] = _setting(
        ("shm", "tcp"), _names, "names separated by commas, best first", "Transports that may be used."
    )
    timeout_s: float = _setting(
        600.0, _seconds, "seconds > 0", "A collective, or a group's start, that takes longer is an error."
    )
    algorithm: tuple[tuple[str, str], ...] = _setting(
        (),
        _algorithms,
        "ALGORITHM, or COLLECTIVE:ALGORITHM,...",
        "Forces the algorithm, everywhere or where named; one that cannot serve is an error, never replaced.",
    )
    deterministic: bool = _setting(
        False, _flag, "0 or 1", "Only plans in canonical order: the same bits whatever the size, bucket or algorithm."
    )
    strict: bool = _setting(
        False, _flag, "0 or 1", "Between hosts, check the contract before any byte is written (one round trip)."
    )
    check_sites: bool = _setting(
        False, _flag, "0 or 1", "PyTorch: ranks must make each call in the same line; finds swapped calls of one shape."
    )
    topology: str | None = _setting(
        None, _text, "path of a YAML file", "The cluster's description; unset: the local machine is discovered."
    )
    host_id: str | None = _setting(
        None, _text, "any text", "Overrides the identity of this host: ranks with different texts never share memory."
    )
    interfaces: str | None = _setting(
        None,
        _text,
        "interface names or networks, separated by commas (eth0, 10.77.0.0/24)",
        "Network interfaces that tcp may use (^ in front: all but these); unset: all that are up.",
    )
    port_range: tuple[int, int] | None = _setting(
        None, _port_range, "LOW-HIGH within 1-65535", "Ports on which tcp listens; unset: any free one."
    )
    family: str = _setting(
        "any", _one_of("any", "ipv4", "ipv6"), "any, ipv4 or ipv6", "Address family of tcp; any: what both sides have."
    )
    connections: int | None = _setting(None, _integer(1, 64), "1 to 64", "TCP connections per pair of ranks.")
    congestion: str | None = _setting(
        None,
        _text,
        "a name of net.ipv4.tcp_allowed_congestion_control",
        "Congestion control of tcp; unset: the system's, but cubic for bbr where a round trip takes less than 1 ms.",
    )
    ring_bytes: int | None = _setting(
        None, _size(4096, 1 << 30), "a size, 4K to 1G", "Shared memory per channel between two ranks of a host."
    )
    slot_bytes: int | None = _setting(
        None, _size(64, 1 << 26), "a size, 64 to 64M", "Shared memory per rank for messages that go in one round."
    )
    shared_from_bytes: int | None = _setting(
        None,
        _size(0, 1 << 40),
        "a size, 0 to 1T",
        "From which size on a message within a host is left in memory that its ranks share, for the peer; 0: never.",
    )
    private_from_bytes: int | None = _setting(
        None,
        _size(0, 1 << 40),
        "a size, 0 to 1T",
        "From which size on a message within a host is read from the sender's private memory (four times that where it "
        "is folded; sums in place pass through the rings); 0: never.",
    )
    segment_bytes: int | None = _setting(
        None, _size(64, 1 << 26), "a size, 64 to 64M", "Largest piece in which a message is passed on while it streams."
    )
    spin: int | None = _setting(
        None,
        _integer(0, 1_000_000),
        "0 to 1000000",
        "Polls before a waiting rank yields, fewer if in vain; unset: 1000 with a core for each rank, else 0.",
    )
    gpu_sms: int | None = _setting(
        None,
        _integer(2, 128),
        "2 to 128",
        "Multiprocessors that a collective on a GPU may use; unset: 64. Fewer leave more to a backward pass.",
    )
    gpu_wire: str = _setting(
        "same",
        _one_of("same", "bf16"),
        "same or bf16",
        "Type in which sums and averages of float32 travel between GPUs in all_reduce; they add up in float32.",
    )
    cache: str | None = _setting(
        None, _text, "path of a folder", "Where compiled GPU kernels are kept; unset: ~/.cache/hccl_py."
    )
    scheduler: bool = _setting(
        False,
        _flag,
        "0 or 1",
        "Gradient buckets and plans follow the network while a job trains (DistributedDataParallel).",
    )
    status: str | None = _setting(
        None,
        _text,
        "path of a folder",
        "Rank 0 of a job writes there what its scheduler sees; `hccl-py watch` shows it.",
    )
    pickle: str = _setting(
        "plain",
        _one_of("plain", "any"),
        "plain or any",
        "Objects that hccl_py.MPI's methods in lower case take: plain data, or any (whoever can send runs code here).",
    )
    log_level: str = _setting(
        "warning",
        _one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error",
        "Least severe message that goes to the logger hccl_py.",
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Env:
        """Read the settings from ``environ`` (None: this process's).

        Raises ConfigError for an unknown ``HCCL_PY_*`` name, with the nearest valid one, and for a wrong value.
        """
        environ = os.environ if environ is None else environ
        known = {variable(setting): setting for setting in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith(PREFIX):
                continue
            setting = known.get(name)
            if setting is None:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                raise ConfigError(f"{name} is no setting of hccl_py; did you mean {near}? `hccl-py doctor` lists all")
            try:
                values[setting.name] = setting.metadata["parse"](text)
            except (ValueError, KeyError) as error:
                detail = f" ({error})" if isinstance(error, ValueError) else ""
                raise ConfigError(f"{name}={text!r} is wrong{detail}; allowed: {setting.metadata['allowed']}") from None
        return cls(**values)

    def algorithm_for(self, collective: Collective) -> str | None:
        """Return the algorithm forced for ``collective``, or None if the selector is free."""
        forced = dict(self.algorithm)
        return forced.get(collective.name.lower(), forced.get("*"))

    def cache_folder(self) -> Path:
        """Where compiled kernels are kept."""
        return Path(self.cache).expanduser() if self.cache else Path("~/.cache/hccl_py").expanduser()

    def table(self, environ: Mapping[str, str] | None = None) -> list[Setting]:
        """Return all settings in order, each with its value and origin (``environ`` None: this process's)."""
        environ = os.environ if environ is None else environ
        return [
            Setting(
                variable(f),
                _show(getattr(self, f.name)),
                _show(f.default),
                "environment" if variable(f) in environ else "default",
                f.metadata["allowed"],
                f.metadata["doc"],
            )
            for f in fields(self)
        ]


def variable(setting: Field[Any]) -> str:
    """Return the name of the environment variable of a field of :class:`Env`."""
    return PREFIX + setting.name.upper()


def _show(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        if value and isinstance(value[0], tuple):
            return ",".join(name if collective == "*" else f"{collective}:{name}" for collective, name in value)
        return ("-" if value and isinstance(value[0], int) else ",").join(map(str, value))
    return str(value)


def markdown_table() -> str:
    """Return the settings as the table of the documentation, one row a variable."""
    rows = ["| variable | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for row in Env().table({}):
        rows.append(f"| `{row.name}` | {f'`{row.default}`' if row.default else 'unset'} | {row.allowed} | {row.doc} |")
    return "\n".join(rows) + "\n"


@dataclass(frozen=True)
class Launch:
    """Who started this process, and as which rank of how many, as far as the launcher's variables tell."""

    launcher: str = ""  # "torchrun", "openmpi", "mpich", "slurm", "environment" (RANK and WORLD_SIZE), or "" = none
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Launch:
        """Recognise the launcher by its variables in ``environ`` (None: this process's); the innermost one wins."""
        environ = os.environ if environ is None else environ
        for launcher, mark, rank, size, local_rank, local_size in (
            ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
            ("openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("mpich", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
            ("slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
            ("environment", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ):  # fmt: skip
            if mark in environ:
                read = [int(environ.get(name, fallback)) for name, fallback in
                        ((rank, "0"), (size, "1"), (local_rank, "0"), (local_size, "1"))]  # fmt: skip
                return cls(launcher, *read)
        return cls()


def child_environ(**changes: str) -> dict[str, str]:
    """Return a copy of this process's environment with ``changes``, for a child process."""
    return {**os.environ, **changes}
