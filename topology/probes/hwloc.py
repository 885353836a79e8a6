"""lstopo, hwloc's program, if it is installed: it knows PCIe switches, which sysfs does not tell in a simple way."""

from __future__ import annotations

import shutil
import subprocess

from hccl_py.core.errors import ConfigError

_TIMEOUT_S = 30.0


def run_lstopo(program: str = "lstopo-no-graphics") -> bytes:
    """Its XML of this machine.

    Args:
        program: tried first, then ``lstopo``.

    Raises:
        ConfigError: it is not installed, or fails.
    """
    path = shutil.which(program) or shutil.which("lstopo")
    if path is None:
        raise ConfigError("lstopo is not installed: install hwloc, or leave --hwloc out")
    command = [path, "--of", "xml", "--whole-io"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} could not be run: {error}") from error
    if done.returncode:
        raise ConfigError(f"{path} failed: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout
