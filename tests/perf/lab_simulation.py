"""The simulator against the lab: four hosts behind unequal links, real ranks, several plans and sizes (root only).

``python tests/perf/lab_simulation.py [ring|tree|forest ...]`` prints a table; bench_topology.py makes it a claim.
Links are simulated at their set rates times the share that TCP left as payload, measured in the same lab.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lab_topology import CONFIGS, FILES, _payload_share

from hccl_py.core.env import child_environ
from hccl_py.core.types import Collective
from hccl_py.lab.network import LabNetwork
from hccl_py.scheduler.select import build_table
from hccl_py.scheduler.simulate import simulate
from hccl_py.topology.config import load_cluster
from hccl_py.topology.graph import Topology

SIZES_BYTES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
ALGORITHMS = ("ring", "tree", "forest")
COMMAND = "python tests/perf/lab_simulation.py"
_SECONDS_EACH = 3.0  # about so long each size is repeated, twice at least


@dataclass(frozen=True)
class Row:
    """One plan at one size: what the ranks took, the slowest in each round, and what was foretold."""

    plan: str
    size_bytes: int
    seconds: list[float]
    simulated_s: float

    @property
    def off(self) -> float:
        """Simulated over the median of what was measured, minus one."""
        return self.simulated_s / statistics.median(self.seconds) - 1


def measure(algorithms: Sequence[str] = ALGORITHMS) -> list[Row]:
    """Bring the star up, run the plans at all sizes on it, take it down."""
    file = CONFIGS / FILES["star"]
    cluster = load_cluster(file)
    rows = []
    with LabNetwork.of_file("perfsim", file) as network:
        topology = payload(cluster.topology, _payload_share(network, cluster))
        for algorithm in algorithms:
            table = build_table(
                Collective.ALL_REDUCE, cluster.topology, cluster.placement, forced=algorithm, declared=True
            )
            plans = [table.choose(size).plan for size in SIZES_BYTES]
            foretold = [simulate(plan, topology, cluster.placement, size).seconds
                        for plan, size in zip(plans, SIZES_BYTES, strict=True)]  # fmt: skip
            rounds = [max(2, min(31, int(_SECONDS_EACH / seconds))) for seconds in foretold]
            ran = _run(network, algorithm, rounds)
            for plan, size, found, seconds in zip(plans, SIZES_BYTES, ran, foretold, strict=True):
                if found["plan"] != plan.name:
                    raise RuntimeError(f"the ranks ran {found['plan']}, {plan.name} was simulated")
                rows.append(Row(plan.name, size, found["seconds"], seconds))
    return rows


def payload(topology: Topology, share: float) -> Topology:
    """The graph with what TCP leaves of the rates of network links."""
    return topology.with_estimates(
        {
            (link.src, link.dst): (link.bandwidth_Bps * share, link.latency_s)
            for link in topology.links
            if link.kind.is_network
        }
    )


def _run(network: LabNetwork, algorithm: str, rounds: list[int]) -> list[dict[str, object]]:
    """Real ranks; a dictionary with ``plan`` and ``seconds`` for each size."""
    words = [sys.executable, "-m", "hccl_py.cli.main", "lab", "run", "--name", network.name, "--"]
    asked = [f"{size}:{times}" for size, times in zip(SIZES_BYTES, rounds, strict=True)]
    run = [*words, sys.executable, __file__, "--rank", *asked]
    environ = child_environ(OMP_NUM_THREADS="1", HCCL_PY_ALGORITHM=f"all_reduce:{algorithm}")
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, timeout=300, check=True, env=environ)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert isinstance(found, list)
    return found


def _rank(asked: list[str]) -> None:
    """What each rank does."""
    import os
    import time

    import numpy as np

    import hccl_py
    from hccl_py.core.types import ReduceOp

    found = []
    with hccl_py.init(timeout_s=60.0) as comm:
        for text in asked:
            size, rounds = map(int, text.split(":"))
            data, slowest = np.empty(size // 4, "float32"), np.empty(1, "float64")
            seconds = []
            for turn in range(rounds + 1):
                data.fill(comm.rank + 1)
                comm.barrier()
                start_s = time.perf_counter()
                comm.all_reduce(data)
                slowest[0] = time.perf_counter() - start_s
                assert (data == comm.size * (comm.size + 1) / 2).all()
                comm.all_reduce(slowest, op=ReduceOp.MAX)
                if turn:  # the first one warms up
                    seconds.append(float(slowest[0]))
            plan = comm.engine.planner.table(Collective.ALL_REDUCE).choose(size).plan.name
            found.append({"plan": plan, "seconds": seconds})
        if comm.rank == 0:
            os.write(1, (json.dumps(found) + "\n").encode())


def show(rows: list[Row]) -> str:
    """A table for people."""
    lines = [f"{'plan':36}  {'size':>7}  {'measured':>10}  {'simulated':>10}  {'off':>6}"]
    for row in rows:
        measured = statistics.median(row.seconds)
        lines.append(
            f"{row.plan:36}  {row.size_bytes >> 20:3d} MiB  {measured * 1e3:7.1f} ms  {row.simulated_s * 1e3:7.1f} ms  "
            f"{100 * row.off:+5.1f}%"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(sys.argv[2:])
    else:
        print(show(measure(sys.argv[1:] or ALGORITHMS)))
