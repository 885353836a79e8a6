"""The formats that can be imported: found out from the text, or said by name."""

from __future__ import annotations

import re

from hccl_py.core.errors import ConfigError
from hccl_py.topology.graph import Topology
from hccl_py.topology.importers.hwloc import read_hwloc
from hccl_py.topology.importers.ibnetdiscover import read_ibnetdiscover
from hccl_py.topology.importers.importer import MAX_FILE_BYTES
from hccl_py.topology.importers.nccl_xml import read_nccl_xml
from hccl_py.topology.importers.nvidia_smi import read_nvidia_smi
from hccl_py.topology.importers.slurm import read_slurm

FORMATS = ("nccl", "nvidia-smi", "ibnetdiscover", "slurm", "hwloc")


def guess(text: str) -> str | None:
    """The format that the text looks like."""
    if re.search(r"<system\b", text):
        return "nccl"
    if re.search(r"<topology\b", text):
        return "hwloc"
    if re.search(r"^\s*SwitchName=", text, re.MULTILINE | re.IGNORECASE):
        return "slurm"
    if re.search(r'^(Switch|Ca)\s+\d+\s+"', text, re.MULTILINE):
        return "ibnetdiscover"
    return "nvidia-smi" if "GPU0" in text else None


def convert(data: bytes, file: str, form: str | None = None, host: str = "") -> tuple[Topology, list[str]]:
    """A graph from another tool's output, and notes on what was assumed.

    Args:
        data: content of the file.
        file: its name, for errors.
        form: one of ``FORMATS``; None: guessed.
        host: name of the host, where the format describes one.

    Raises:
        ConfigError: not UTF-8, too large, an unknown format, or not what the format has; says file:line.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}:1: larger than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}:{line}: not UTF-8 (byte {data[error.start]:#04x})") from error
    form = form or guess(text)
    if form is None:
        raise ConfigError(f"{file}:1: looks like none of {', '.join(FORMATS)}: say which with --from")
    if form not in FORMATS:
        raise ConfigError(f"{form!r} is none of {', '.join(FORMATS)}")
    if form == "nccl":
        return read_nccl_xml(text, file, host or "localhost")
    if form == "hwloc":
        return read_hwloc(text, file, host)
    if form == "nvidia-smi":
        return read_nvidia_smi(text, file, host or "localhost")
    return read_slurm(text, file) if form == "slurm" else read_ibnetdiscover(text, file)
