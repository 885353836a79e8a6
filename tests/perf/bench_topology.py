"""`make bench-topology`: what the topology side must show, as claims in out/bench/topology.json; 1 if one is missed.

``python tests/perf/bench_topology.py [--part configs,rail,speed,simgrid,simgrid128,lab_simulation,lab,graphs,files]
[--table]``; ``--table`` also writes the table of cluster configs into docs/BENCHMARKS.md. Parts that need root
(lab...) are missing claims elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from claims import OUT, Claims
from pages import BENCHMARKS, replace_between

from hccl_py.core.errors import HcclError
from hccl_py.core.types import Collective
from hccl_py.core.units import format_seconds
from hccl_py.scheduler.algorithm import Algorithm
from hccl_py.scheduler.algorithms.rails import parse_rails, write_rails
from hccl_py.scheduler.algorithms.ring import RING
from hccl_py.scheduler.algorithms.tree import TREE
from hccl_py.scheduler.bounds import lower_bound
from hccl_py.scheduler.cost import EngineCosts
from hccl_py.scheduler.plan import ParamValue
from hccl_py.scheduler.program import Program
from hccl_py.scheduler.select import build_table
from hccl_py.scheduler.simulate import Simulable, simulate, simulate_programs
from hccl_py.scheduler.simulate_classes import RankClasses, peers_of
from hccl_py.scheduler.template import Template
from hccl_py.scheduler.writer import Writer
from hccl_py.topology.config import ClusterConfig, load_cluster, parse_cluster

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "cluster_configs"
COMMAND = "make bench-topology"
SLOW_RAIL = "gpu1024_fat_tree_2to1_slow_rail"
UNEVEN = ("slow", "uneven", "lab_star", "lab_two_sites", "wan", "desktop")  # words in the names of configs
GIB = 1 << 30
SIZES_BYTES = (64 << 20, 256 << 20, GIB)
KEPT = OUT / "topology" / "others.json"  # what does not change from run to run: simulated times of the others
ROWS = OUT / "topology" / "rows.json"  # of the table of configs, as last measured
_CHUNKS = (1, 2, 3, 4)  # of rings per rail
_PIECES, _GRAPHS_EACH = 15, 20  # random graphs
_BEGIN = "<!-- table: tests/perf/bench_topology.py -->"


@dataclass(frozen=True)
class Sketch:
    """An algorithm written out for any number of ranks, to be compared with: simulated, never run, so not verified."""

    name: str
    algorithm: Algorithm
    world: int
    params: Mapping[str, ParamValue]

    def program(self, rank: int, /) -> Program:
        """That of one rank."""
        shape = self.algorithm.shape(Collective.ALL_REDUCE, self.world, self.params)
        writer = Writer(Collective.ALL_REDUCE, self.world, 0, rank, shape.slots, self.params, channels=shape.channels)
        self.algorithm.write(writer)
        return writer.program()

    @cached_property
    def rank_classes(self) -> RankClasses | None:
        """Rings are the same everywhere."""
        if self.algorithm is not RING:
            return None
        order = self.params.get("order", tuple(range(self.world)))
        assert isinstance(order, tuple)
        peers: list[tuple[int, ...]] = [()] * self.world
        for place, rank in enumerate(order):
            after, before = order[(place + 1) % self.world], order[place - 1]
            assert isinstance(rank, int) and isinstance(after, int) and isinstance(before, int)
            peers[rank] = (after, before) if after != before else (after,)
        return RankClasses((0,) * self.world, (0,), tuple(peers))


def baselines(cluster: ClusterConfig) -> dict[str, list[Simulable]]:
    """What plans are compared with; of each the best counts. Rings and trees stream, so more chunks are nothing new."""
    world, groups = cluster.placement.size, cluster.placement.groups(cluster.topology)
    order = tuple(rank for group in groups for rank in group)
    found: dict[str, list[Simulable]] = {
        "rank-order ring": [Sketch("rank-order ring", RING, world, {})],
        "host-order ring": [Sketch("host-order ring", RING, world, {"order": order})],
        "double tree": [Sketch("double tree", TREE, world, {"order": order})],
    }
    rails = _equal_rails(cluster)
    if rails:  # before the double tree, which takes longest to simulate
        found = {"rings per rail": rails, **found}
    return found


def _equal_rails(cluster: ClusterConfig) -> list[Simulable]:
    """Hierarchical rings, one for each rail, with equal shares, in one, two and four chunks."""
    groups = cluster.placement.groups(cluster.topology)
    if len(groups) < 2 or len({len(group) for group in groups}) > 1 or len(groups[0]) < 2:
        return []
    found: list[Simulable] = []
    for chunks in _CHUNKS if len(groups) <= 16 else _CHUNKS[:2]:
        params = {"groups": groups, "shares": (1,) * len(groups[0]), "chunks": (1,) * chunks}
        rails = parse_rails(params, cluster.placement.size)
        classes = tuple(write_rails(rails, rail) for rail in range(len(groups[0])))
        found.append(_RailSketch("rails", tuple(params.items()), Collective.ALL_REDUCE, rails.slots, 2, classes))
    return found


class _RailSketch(Template):
    """As `Sketch`, by classes."""

    def __post_init__(self) -> None:
        pass  # not verified

    def program(self, rank: int) -> Program:
        """That of one rank."""
        return self.bare_program(rank)


def best_s(plans: list[Simulable], cluster: ClusterConfig, size_bytes: int) -> float:
    """Simulated time of the fastest of these."""
    return min(seconds(plan, cluster, size_bytes) for plan in plans)


def seconds(plan: Simulable, cluster: ClusterConfig, size_bytes: int, engine: EngineCosts | None = None) -> float:
    """Simulated. Large double trees with events up to 1/2000 of the time apart taken together."""
    if plan.rank_classes is not None or plan.world <= 64:
        return simulate(plan, cluster.topology, cluster.placement, size_bytes, engine=engine).seconds
    programs = [plan.program(rank) for rank in range(plan.world)]
    classes = RankClasses(tuple(range(plan.world)), tuple(range(plan.world)), tuple(map(peers_of, programs)))
    merge_s = size_bytes / 40e9 / 2000
    return simulate_programs(
        programs.__getitem__, classes, cluster.topology, cluster.placement, size_bytes, engine=engine, merge_s=merge_s
    ).seconds


def chosen(cluster: ClusterConfig, size_bytes: int) -> Simulable:
    """The plan that would serve."""
    table = build_table(
        Collective.ALL_REDUCE, cluster.topology, cluster.placement, declared=True, only_bytes=size_bytes
    )
    found: Simulable = table.choose(size_bytes).plan
    return found


def configs(claims: Claims) -> list[list[str]]:
    """Every shipped config at 1 GiB: ours, the bound, the others. Returns the rows of the table.

    The others are simulated once and kept; with OTHERS_S no further one is begun after so many seconds.
    """
    rows, gaps, ratios = [], {}, {}
    sources = _sources()
    done = _measured().get(sources, {})
    begin_s, budget_s = time.monotonic(), float(os.environ.get("OTHERS_S", "inf"))
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    for file in sorted(CONFIGS.glob("*.yaml"), key=lambda file: (load_cluster(file).placement.size, file.name)):
        cluster = load_cluster(file)
        name, world = file.stem, cluster.placement.size
        if name in done:
            row, gaps[name], known = done[name]
            rows.append(row)
            ratios.update(known)
            continue
        bound_s = lower_bound(cluster.topology, cluster.placement, Collective.ALL_REDUCE, GIB).seconds
        even = not any(word in name for word in UNEVEN)
        for size in SIZES_BYTES if even else (GIB,):  # 1 GiB is the last: that is what the table shows
            try:
                plan = chosen(cluster, size)
                ours_s = seconds(plan, cluster, size)
            except HcclError as error:
                print(f"{name}: {error}")
                gaps[name] = float("inf")
                break
            key = f"{name} {size} {sources}"
            others = kept.setdefault(key, {})
            for what, other in baselines(cluster).items():
                if what not in others and time.monotonic() - begin_s < budget_s:
                    others[what] = best_s(other, cluster, size)
                    KEPT.parent.mkdir(parents=True, exist_ok=True)
                    KEPT.write_text(json.dumps(kept) + "\n", encoding="utf-8")
            best = min((others[what] for what in others if what != "rank-order ring"), default=float("nan"))
            if even:  # the simulator is not more exact than that
                ratios[f"{name}, {size >> 20} MiB"] = round(ours_s / best, 4)
        if name in gaps:
            continue
        gaps[name] = ours_s / bound_s - 1
        times = [format_seconds(others[what]) if what in others else "-" for what in
                 ("rank-order ring", "host-order ring", "rings per rail", "double tree")]  # fmt: skip
        rows.append([name, str(world), getattr(plan, "name", "?"), format_seconds(ours_s), format_seconds(bound_s),
                     f"{100 * gaps[name]:+.1f}%", *times])  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
        known = {which: ratio for which, ratio in ratios.items() if which.startswith(f"{name}, ")}
        done[name] = (rows[-1], gaps[name], known)
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        ROWS.write_text(json.dumps({**_measured(), sources: done}) + "\n", encoding="utf-8")
    claims.record(
        "config_gap",
        max(gaps.values()),
        command=COMMAND,
        n=len(gaps),
        samples=gaps,
        baseline="lower bound of the graph",
    )
    claims.record(
        "even_configs", max(ratios.values(), default=float("nan")), command=COMMAND, n=len(ratios), samples=ratios,
        baseline="best of host-order ring, rings per rail, double tree, simulated",
    )  # fmt: skip
    return rows


def _measured() -> dict[str, dict[str, tuple[list[str], float, dict[str, float]]]]:
    """By the state of the sources: the rows of the table of configs, so that a run that was stopped goes on."""
    return json.loads(ROWS.read_text("utf-8")) if ROWS.exists() else {}  # type: ignore[no-any-return]


def _sources() -> str:
    files = sorted(
        path for folder in ("scheduler", "topology", "cluster_configs") for path in (ROOT / folder).rglob("*")
    )
    whole = b"".join(path.read_bytes() for path in files if path.suffix in (".py", ".yaml"))
    return hashlib.sha256(whole).hexdigest()[:16]


def rail(claims: Claims) -> None:
    """The oversubscribed fat tree with a rail at half speed."""
    cluster = load_cluster(CONFIGS / f"{SLOW_RAIL}.yaml")
    others = baselines(cluster)
    samples: dict[str, dict[str, float]] = {}
    for size in SIZES_BYTES:
        found = {what: best_s(other, cluster, size) for what, other in others.items()}
        found["ours"] = seconds(chosen(cluster, size), cluster, size)
        samples[str(size)] = found
        print(f"{size >> 20} MiB: " + ", ".join(f"{k} {format_seconds(v)}" for k, v in found.items()), flush=True)
    worst = min(
        min(v for k, v in found.items() if k not in ("ours", "rank-order ring")) / found["ours"]
        for found in samples.values()
    )
    claims.record(
        "slow_rail", worst, command=COMMAND, n=len(samples), samples=samples,
        baseline="best of host-order ring, rings per rail, double tree, simulated",
    )  # fmt: skip


def small(hosts: int) -> ClusterConfig:
    """The same with fewer hosts."""
    text = (CONFIGS / f"{SLOW_RAIL}.yaml").read_text("utf-8").replace("[000-127]", f"[000-{hosts - 1:03d}]")
    return parse_cluster(text, f"{SLOW_RAIL}, {hosts} hosts")


def speed(claims: Claims) -> None:
    """CPU time of planning and simulating: a process that plans nothing else, loading of the file left out."""
    for id_, hosts in (("plan_128_s", 16), ("plan_1024_s", 128)):
        cluster = small(hosts)
        begin_s = time.process_time()
        found_s = seconds(chosen(cluster, GIB), cluster, GIB)
        took_s = time.process_time() - begin_s
        print(f"{cluster.placement.size} ranks: planned and simulated in {took_s:.2f} s of CPU: {found_s * 1e3:.2f} ms")
        claims.record(id_, took_s, command=COMMAND, n=1, samples=[took_s], baseline="-")


def simgrid(claims: Claims) -> None:
    """The stored answers."""
    import simgrid_answers as script

    answers = json.loads(script.ANSWERS.read_text("utf-8"))
    pure = EngineCosts(0.0, 0.0, 0.0, 1e18, script.SEGMENT_BYTES, 0)
    known = {(row["graph"], row["digest"], row["bytes_per_block"]): row["seconds"] for row in answers}
    ratios = []
    for graph, _, plan, size_bytes in script.cases():
        asked_s = known.get((graph, plan.digest.hex()[:16], size_bytes))
        if asked_s is not None:
            topology, placement = script.GRAPHS[graph]()
            ours = simulate(plan, topology, placement, size_bytes, engine=pure, channel_bytes=1 << 30).seconds
            ratios.append(ours / asked_s)
    worst = max(abs(ratio - 1) for ratio in ratios)
    claims.record(
        "simgrid_off", worst, command=COMMAND, n=len(ratios), samples=ratios, baseline="SimGrid 3.32, stored answers"
    )


def simgrid128(claims: Claims) -> None:
    """128 ranks, a rail at half speed: SimGrid's stored answers about ours and the others, and how far we are off."""
    import simgrid_answers as script

    answers = json.loads(script.LARGE_ANSWERS.read_text("utf-8"))
    known = {(row["graph"], row["digest"], row["bytes_per_block"]): row["seconds"] for row in answers}
    cluster = small(script.LARGE_HOSTS)
    found: dict[int, dict[str, float]] = {}
    missing = []
    for what, number, plan, size in script.large():
        asked_s = known.get((cluster.topology.digest(), script.key_of(plan), size))
        if asked_s is None:
            missing.append(f"{what} {number} at {size >> 20} MiB")
            continue
        times = found.setdefault(size, {})
        times[what] = min(asked_s, times.get(what, float("inf")))
    if missing:
        print(f"simgrid128: no answer for {', '.join(missing)}: run tests/perf/simgrid_answers.py --large again")
        return
    for size, times in found.items():
        said = ", ".join(f"{what} {format_seconds(took_s)}" for what, took_s in times.items())
        print(f"SimGrid, 128 ranks, {size >> 20} MiB: {said}")
    value = min(
        min(took_s for what, took_s in times.items() if what != "ours") / times["ours"] for times in found.values()
    )
    claims.record(
        "slow_rail_simgrid", value, command=COMMAND, n=len(found),
        samples={str(size): times for size, times in found.items()},
        baseline="the others in SimGrid 3.32, stored answers",
    )  # fmt: skip


def lab_simulation(claims: Claims) -> None:
    """The simulator against real ranks in the lab."""
    import lab_simulation as script

    rows = script.measure()
    print(script.show(rows))
    worst = max(abs(row.off) for row in rows)
    samples = {f"{row.plan}, {row.size_bytes}": [row.simulated_s, *row.seconds] for row in rows}
    claims.record(
        "lab_off", worst, command=script.COMMAND, n=len(rows), samples=samples, baseline="real ranks in the lab"
    )


def lab(claims: Claims) -> None:
    """Plans for uneven networks against gloo."""
    import lab_topology

    lab_topology.record(claims)


def _tests(claims: Claims, id_: str, *words: str, **environ: str) -> None:
    """1 if a test fails."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, **environ})  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    print(f"{' '.join(words)}: {last}")
    failed = 0.0 if done.returncode == 0 else 1.0
    command = " ".join([*(f"{key}={value}" for key, value in environ.items()), "pytest", *words])
    claims.record(id_, failed, command=command, n=1, samples=[failed], baseline="-")


def graphs(claims: Claims) -> None:
    """Random graphs: verified, and not below the bound. In pieces; those that passed are kept for these sources."""
    file = OUT / "topology" / "graphs.json"
    passed = json.loads(file.read_text("utf-8")).get(_sources(), []) if file.exists() else []
    words = ["tests/unit/scheduler/test_forest.py", "-k", "on_random_graphs", "-o", "timeout=900"]
    failed = []
    for piece in range(_PIECES):
        if piece in passed:
            continue
        seed = {"RANDOM_GRAPHS": str(_GRAPHS_EACH), "RANDOM_SEED": str(piece)}
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words], cwd=ROOT,
                              text=True, capture_output=True, env={**os.environ, **seed})  # fmt: skip
        print(f"piece {piece} of {_PIECES}: {done.stdout.strip().splitlines()[-1]}", flush=True)
        if done.returncode:
            failed.append(piece)
            continue
        passed.append(piece)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({_sources(): passed}) + "\n", encoding="utf-8")
    claims.record(
        "random_graphs", float(len(failed)), command=f"{COMMAND} PART=graphs", n=_GRAPHS_EACH * _PIECES,
        samples=failed, baseline="-",
    )  # fmt: skip


def files(claims: Claims) -> None:
    """Malformed cluster files."""
    _tests(claims, "malformed_files", "tests/unit/topology", "-k", "malformed or hostile or document or config")


PARTS: dict[str, tuple[Callable[[Claims], object], tuple[str, ...]]] = {
    "configs": (configs, ("config_gap", "even_configs")),
    "rail": (rail, ("slow_rail",)),
    "speed": (speed, ("plan_1024_s", "plan_128_s")),
    "simgrid": (simgrid, ("simgrid_off",)),
    "simgrid128": (simgrid128, ("slow_rail_simgrid",)),
    "lab_simulation": (lab_simulation, ("lab_off",)),
    "lab": (lab, ("lab_star_gloo", "lab_star_bound", "lab_sites_gloo", "lab_sites_bound")),
    "graphs": (graphs, ("random_graphs",)),
    "files": (files, ("malformed_files",)),
}


def write_table(rows: list[list[str]], path: Path = BENCHMARKS) -> None:
    """Put the tables of claims and of configs between their marks in the page."""
    head = ["config", "ranks", "chosen plan", "simulated", "lower bound", "gap", "rank-order ring", "host-order ring",
            "rings per rail", "double tree"]  # fmt: skip
    lines = [head, ["---", "---:", "---", *["---:"] * 7], *rows]
    table = [["claim", "wanted", "measured", "n", "met"], ["---", "---", "---:", "---:", "---"]]
    for claim in json.loads((OUT / "topology.json").read_text("utf-8")):
        value = "not measured" if claim["value"] is None else f"{claim['value']:.3g} {claim['unit']}"
        met = "yes" if claim["met"] else "**no**"
        table.append([claim["name"], claim["wanted"], value, str(claim["n"]), met])
    asked = [f"| {' | '.join(line)} |" for line in table]
    today = time.strftime("%Y-%m-%d", time.gmtime())
    about = (
        "All-reduce of 1 GiB, simulated; the bound is that of the graph; rings per rail in one to four chunks, "
        f"the best of them; -: does not apply or was not simulated. `{COMMAND} PART=configs TABLES=1`, {today}."
    )
    text = "\n".join([*asked, "", about, "", *(f"| {' | '.join(line)} |" for line in lines)])
    replace_between(path, _BEGIN, text)


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    names = [name for name in asked.part.split(",") if name] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    claims = Claims("topology", [id_ for name in names for id_ in PARTS[name][1]])
    rows = [row for row, *_ in _measured().get(_sources(), {}).values()]
    for name in names:
        print(f"-- {name}", flush=True)
        found = PARTS[name][0](claims)
        if name == "configs" and isinstance(found, list):
            rows = found
    code = claims.finish(OUT / "topology.json")
    if asked.table:
        write_table(rows)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
