"""Stands in for ssh when mpirun starts its daemons on the hosts of a lab: ``agent LAB [-x ...] ADDRESS COMMAND...``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hccl_py.core.errors import ConfigError
from hccl_py.lab.network import LabNetwork


def command_of(arguments: Sequence[str]) -> list[str]:
    """What to run instead of ssh. Raises ConfigError if no host has the address."""
    lab = LabNetwork.found(arguments[0])
    words = list(arguments[1:])
    while words and words[0].startswith("-"):
        words.pop(0)
    if len(words) < 2:
        raise ConfigError("usage: agent LAB [options of ssh] ADDRESS COMMAND...")
    for host in lab.blueprint.hosts:
        if words[0] == host or any(port.address.partition("/")[0] == words[0] for port in lab.blueprint.ports(host)):
            return [*lab.prefix(host), "sh", "-c", " ".join(words[1:])]
    raise ConfigError(f"no host of lab {lab.name!r} has the address {words[0]!r}")


if __name__ == "__main__":
    command = command_of(sys.argv[1:])
    os.execvp(command[0], command)
