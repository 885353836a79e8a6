"""Plans for uneven networks against gloo, on emulated hosts: the lab's lines of `make bench-topology` (root only).

``python tests/perf/lab_topology.py [star|sites|ordered ...]`` prints a table; :func:`record` makes claims of it. Rounds
are kept in out/bench/topology/: ``--rounds 10 sites`` measures until there are ten; claims are made of `ROUNDS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "lab"))

from claims import OUT
from transfer import transfer_s

from hccl_py.core.env import child_environ
from hccl_py.core.types import Collective
from hccl_py.lab.network import LabNetwork
from hccl_py.scheduler.bounds import lower_bound
from hccl_py.topology.config import ClusterConfig, load_cluster
from hccl_py.topology.graph import Topology

CONFIGS = Path(__file__).parents[2] / "cluster_configs"
SIZE_BYTES = 16 << 20
ROUNDS = 31
FILES = {"star": "lab_star.yaml", "sites": "lab_two_sites.yaml", "ordered": "lab_two_sites_ordered.yaml"}
COMMAND = "python tests/perf/lab_topology.py"


@dataclass(frozen=True)
class Measured:
    """Seconds of each round by backend, and the bound with the payload share that TCP had on the narrowest link."""

    seconds: dict[str, list[float]]
    bound_s: float
    payload_share: float

    def and_more(self, other: Measured) -> Measured:
        """The rounds of both; the larger payload share counts."""
        seconds = {backend: [*times, *other.seconds[backend]] for backend, times in self.seconds.items()}
        share = max(self.payload_share, other.payload_share)
        return Measured(seconds, self.bound_s * self.payload_share / share, share)

    @property
    def against_gloo(self) -> float:
        """Median of gloo's time over ours, pair by pair."""
        pairs = zip(self.seconds["gloo"], self.seconds["hccl_py"], strict=True)
        return statistics.median(gloo / ours for gloo, ours in pairs)

    @property
    def of_bound(self) -> float:
        """The bound over our median time: 1 is the most that the network allows."""
        return self.bound_s / statistics.median(self.seconds["hccl_py"])


def measure(which: str, rounds: int = ROUNDS, size_bytes: int = SIZE_BYTES) -> Measured:
    """Bring a cluster up, run both backends on it in turns, take it down."""
    file = CONFIGS / FILES[which]
    cluster = load_cluster(file)
    with LabNetwork.of_file(f"perf{which}", file) as network:
        share = _payload_share(network, cluster)
        worker = Path(__file__).with_name("lab_ranks.py")
        words = [sys.executable, "-m", "hccl_py.cli.main", "lab", "run", "--name", network.name, "--"]
        run = [*words, sys.executable, str(worker), str(size_bytes), str(rounds)]
        environ = child_environ(OMP_NUM_THREADS="1")
        done = subprocess.run(run, stdout=subprocess.PIPE, text=True, timeout=900, check=True, env=environ)
    seconds = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    bound_s = lower_bound(cluster.topology, cluster.placement, Collective.ALL_REDUCE, size_bytes).seconds
    return Measured(seconds, bound_s / share, share)


def collected(which: str, rounds: int) -> Measured:
    """As `measure`, but only the rounds that are missing; what is measured is kept."""
    file = OUT / "topology" / f"rounds_{which}.json"
    found = Measured(**json.loads(file.read_text("utf-8"))) if file.exists() else None
    missing = rounds - (len(found.seconds["gloo"]) if found else 0)
    if missing > 0:
        more = measure(which, missing)
        found = found.and_more(more) if found else more
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    assert found is not None
    return found


def _payload_share(network: LabNetwork, cluster: ClusterConfig) -> float:
    """What TCP leaves of a rate as payload: the best of three transfers over the narrowest way between two ranks."""
    topology, placement = cluster.topology, cluster.placement
    ways = [(src, dst) for src in range(placement.size) for dst in range(placement.size) if src != dst]
    rates = {way: Topology.bottleneck_Bps(placement.path(*way, topology)) for way in ways}
    source, sink = (placement.host(rank, topology) for rank in min(ways, key=rates.__getitem__))
    return max(_transfer_Bps(network, source, sink) for _ in range(3)) / min(rates.values())


def _transfer_Bps(network: LabNetwork, source: str, sink: str, nbytes: int = 16 << 20) -> float:
    address = network.blueprint.address(sink)
    return nbytes / transfer_s(network.prefix(source), network.prefix(sink), address, nbytes, timeout_s=50.0)


def record(claims: Any, which: Sequence[str] = ("star", "sites", "ordered")) -> None:
    """Measure and record ``lab_<which>_gloo`` and ``lab_<which>_bound``; the ordered sites are shown only."""
    for name in which:
        found = collected(name, ROUNDS)
        print(_line(name, found))
        if name == "ordered":
            continue
        for id_, value in ((f"lab_{name}_gloo", found.against_gloo), (f"lab_{name}_bound", found.of_bound)):
            baseline = "gloo, same run" if id_.endswith("gloo") else f"lower bound, {found.payload_share:.1%} payload"
            claims.record(
                id_, value, command=COMMAND, n=len(found.seconds["gloo"]), samples=found.seconds, baseline=baseline
            )


def _line(name: str, found: Measured) -> str:
    medians = {backend: statistics.median(times) for backend, times in found.seconds.items()}
    return (
        f"{name:8s} 16 MiB: gloo {medians['gloo'] * 1e3:7.1f} ms, hccl_py {medians['hccl_py'] * 1e3:7.1f} ms "
        f"({found.against_gloo:.2f}x), {found.of_bound:.1%} of the bound {found.bound_s * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", default=list(FILES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    for wanted in asked.which:
        print(_line(wanted, collected(wanted, asked.rounds)), flush=True)
