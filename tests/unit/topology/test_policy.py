"""The policy of a cluster file: every key changes plans, interfaces or the graph, and nonsense is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.planner import Planner, allowed_interfaces
from hccl_py.scheduler.by_size import table_by_size
from hccl_py.topology.config import ClusterConfig, parse_cluster
from hccl_py.topology.policy import AlgorithmEntry, PolicyEntry

BASE = """\
version: 1
hosts:
  h[0-1]:
    devices: {"cpu[0-1]": {kind: cpu}}
    nics: {nic0: {interface: eth7}, nic1: , ib0: {interface: mlx5_0}}
    links:
      - {between: ["cpu*", host], kind: memory, bandwidth: 12GB/s, latency: 1us}
      - {between: ["*n*[0-1]", host], kind: pcie, bandwidth: 12GB/s, latency: 1us}
      - {between: [ib0, host], kind: pcie, bandwidth: 12GB/s, latency: 1us}
switches: {s: , ib: }
links:
  - {between: [h*/nic*, s], kind: ethernet, bandwidth: 1GB/s, latency: 9us}
  - {between: [h*/ib0, ib], kind: infiniband, bandwidth: 1GB/s, latency: 5us}
"""
HOSTS = ["a", "a", "b", "b"]


def read(policy: str) -> ClusterConfig:
    text = BASE.replace('["*n*[0-1]", host]', '["nic[0-1]", host]')
    return parse_cluster(f"{text}policy: {{{policy}}}\n", "p.yaml")


def plans(policy: str, collective: Collective = Collective.ALL_REDUCE) -> list[tuple[int, str]]:
    """(last size, algorithm) of each run of rows."""
    env = Env(topology="p.yaml")
    rows = Planner(HOSTS, env, 0, read(policy)).table(collective).entries
    runs: dict[str, int] = {}
    for row in rows:
        runs[row.plan.algorithm] = row.upto_bytes
    return [(upto, name) for name, upto in runs.items()]


ANY = 2**63 - 1
RULES = (
    "algorithms: [{algorithm: direct, upto: 4KiB, collective: all_reduce}, {algorithm: ring, collective: all_reduce}]"
)
KEYS: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "PolicyEntry.algorithms": ("", "algorithms: [{algorithm: ring, collective: all_reduce}]", plans),
    "PolicyEntry.deterministic": ("", "deterministic: true", lambda p: Planner(HOSTS, Env(topology="p"), 0, read(p))
        .table(Collective.ALL_REDUCE).entries[-1].plan.order),
    "PolicyEntry.compression": ("", "compression: 1%", lambda p: read(p).policy.compression_error),
    "PolicyEntry.nics": ("", "nics: ['h*/nic1']", lambda p: read(p).topology.nics("h0")),
    "AlgorithmEntry.algorithm": (RULES, RULES.replace("ring", "tree"), plans),
    "AlgorithmEntry.collective": (RULES, RULES.replace("ring, collective: all_", "ring, collective: "), plans),
    "AlgorithmEntry.upto": (RULES, RULES.replace("4KiB", "8KiB"), plans),
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_something(key: str) -> None:
    before, after, ask = KEYS[key]
    assert ask(before) != ask(after)


def test_no_key_is_left_out_of_the_test_above() -> None:
    assert set(KEYS) == {f"{m.__name__}.{name}" for m in (PolicyEntry, AlgorithmEntry) for name in m.model_fields}


def test_algorithms_are_forced_by_size_in_order() -> None:
    assert plans(RULES) == [(4096, "direct"), (ANY, "ring")]
    upto = "algorithms: [{algorithm: direct, upto: 64B, collective: all_reduce}, {algorithm: tree, upto: 1MB}]"
    table = Planner(HOSTS, Env(topology="p.yaml"), 0, read(upto)).table(Collective.ALL_REDUCE)
    found = [table.choose(size).plan.algorithm for size in (0, 64, 65, 1_000_000)]
    assert found == ["direct", "direct", "tree", "tree"]
    assert plans(upto, Collective.BROADCAST)[0][1] == "tree"


def test_the_environment_has_the_last_word() -> None:
    env = Env(topology="p.yaml", algorithm=(("all_reduce", "tree"),))
    rows = Planner(HOSTS, env, 0, read(RULES)).table(Collective.ALL_REDUCE).entries
    assert {row.plan.algorithm for row in rows} == {"tree"}


def test_the_policy_is_part_of_what_ranks_agree_upon() -> None:
    digests = {
        Planner(HOSTS, Env(topology="p.yaml"), 0, read(policy)).digest() for policy in ("", RULES, "compression: 1%")
    }
    assert len(digests) == 3


def test_nics_that_are_not_allowed_are_not_part_of_the_graph() -> None:
    config = read("nics: ['h*/nic1']")
    assert config.topology.nics() == ("h0/nic1", "h1/nic1")
    assert {link.dst for link in config.topology.links_to("s")} == {"s"}
    assert allowed_interfaces(config, 3) == "nic1"
    assert allowed_interfaces(read("nics: ['*/nic*']"), 0) == "eth7,nic1"
    assert allowed_interfaces(read("nics: ['*/ib0']"), 0) is None  # tcp cannot use it by that name
    assert allowed_interfaces(read(""), 0) is None
    assert allowed_interfaces(config, 4) is None


def test_deterministic_plans_are_canonical() -> None:
    planner = Planner(HOSTS, Env(topology="p.yaml"), 0, read("deterministic: true"))
    assert {row.plan.order for row in planner.table(Collective.ALL_REDUCE).entries} == {Order.CANONICAL}


BAD = [
    ("algorithm: []", r"policy.algorithm: unknown key; did you mean 'algorithms'\?"),
    ("algorithms: [{algorithm: Ring}]", r"policy.algorithms\[0\].algorithm: 'Ring' is not the name of an algorithm"),
    ("algorithms: [{algorithm: ring, collective: allreduce}]", r"did you mean 'all_reduce'\?"),
    ("algorithms: [{algorithm: ring, upto: 64}]", r"algorithms\[0\].upto: 64 has no unit"),
    ("algorithms: [{algorithm: ring}, {algorithm: tree}]", r"algorithms\[1\]: an earlier rule has taken these sizes"),
    ("algorithms: [{algorithm: ring, upto: 2MB}, {algorithm: tree, upto: 1MB, collective: reduce}]", r"earlier rule"),
    ("deterministic: 1", r"policy.deterministic: should be a valid boolean"),
    ("compression: 5", r"policy.compression: 5 has no unit: write a share as \"50%\""),
    ("nics: []", r"policy.nics: should have at least 1 item"),
    ("nics: [h0/eth0]", r"policy.nics\[0\]: no node matches 'h0/eth0'"),
    ("nics: [h0/nic0]", r"hosts: there is no path from 'h0/cpu0' to 'h1/cpu0'"),
]


@pytest.mark.parametrize(("policy", "says"), BAD, ids=[says for _, says in BAD])
def test_nonsense_is_refused(policy: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^p.yaml:\d+: .*{says}"):
        read(policy)


def test_an_algorithm_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^p.yaml: policy.algorithms: there is no algorithm 'rign'; did you mean 'ring'"
    ):
        Planner(HOSTS, Env(topology="p.yaml"), 0, read("algorithms: [{algorithm: rign}]"))


def test_a_forced_algorithm_that_cannot_serve_is_an_error() -> None:
    planner = Planner(HOSTS, Env(topology="p.yaml"), 0, read("deterministic: true, algorithms: [{algorithm: ring}]"))
    with pytest.raises(PlanError, match="deterministic"):
        planner.table(Collective.ALL_REDUCE)


def test_limits_must_ascend() -> None:
    free = Planner(["a", "a"], Env(), 0)

    def table(_: str | None) -> object:
        return free.table(Collective.ALL_REDUCE)

    with pytest.raises(PlanError, match="not above the one before it"):
        table_by_size([(64, "ring"), (32, "tree")], table)  # type: ignore[arg-type]
