from __future__ import annotations

from pathlib import Path

import pytest

from hccl_py.core.env import Env
from hccl_py.core.errors import ConfigError, HcclError, PlanError
from hccl_py.core.types import Collective, Order
from hccl_py.planner import Planner

TWO_HOSTS = ["a-0", "a-0", "b-2", "b-2"]
CONFIGS = Path(__file__).parents[2] / "cluster_configs"


def test_hosts_become_groups_of_the_graph() -> None:
    planner = Planner(TWO_HOSTS, Env(), 0)
    assert planner.placement.groups(planner.topology) == ((0, 1), (2, 3))
    in_turns = Planner(["a", "b", "a", "b"], Env(), 0)
    assert in_turns.placement.groups(in_turns.topology) == ((0, 2), (1, 3))


def test_equal_knowledge_gives_equal_plans_and_digests() -> None:
    first, second = (Planner(TWO_HOSTS, Env(), 4096) for _ in range(2))
    assert first.digest() == second.digest()
    for collective in Collective:
        plans = [[row.plan.digest for row in planner.table(collective).entries] for planner in (first, second)]
        assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("hosts", "env", "slot_bytes"),
    [
        (TWO_HOSTS, Env(deterministic=True), 4096),
        (TWO_HOSTS, Env(algorithm=(("*", "direct"),)), 4096),
        (TWO_HOSTS, Env(), 8192),
        (["a", "b", "a", "b"], Env(), 4096),
    ],
)
def test_what_changes_plans_changes_the_digest(hosts: list[str], env: Env, slot_bytes: int) -> None:
    assert Planner(hosts, env, slot_bytes).digest() != Planner(TWO_HOSTS, Env(), 4096).digest()


def test_settings_that_do_not_choose_plans_may_differ() -> None:
    usual = Planner(TWO_HOSTS, Env(), 4096).digest()
    assert Planner(TWO_HOSTS, Env(timeout_s=3.0, spin=5, log_level="error", host_id="x"), 4096).digest() == usual


def test_forced_and_deterministic_reach_the_table() -> None:
    forced = Planner(["a"] * 4, Env(algorithm=(("all_reduce", "ring"),)), 0)
    assert {row.plan.algorithm for row in forced.table(Collective.ALL_REDUCE).entries} == {"ring"}
    assert {row.plan.algorithm for row in forced.table(Collective.BARRIER).entries} != {"ring"}
    strict = Planner(["a"] * 4, Env(deterministic=True), 0)
    assert {row.plan.order for row in strict.table(Collective.ALL_REDUCE).entries} == {Order.CANONICAL}
    with pytest.raises(PlanError, match="deterministic"):
        Planner(["a"] * 4, Env(deterministic=True, algorithm=(("*", "ring"),)), 0).table(Collective.ALL_REDUCE)


def test_shared_slots_change_the_table() -> None:
    with_slots, without = (Planner(["a"] * 4, Env(), slots).table(Collective.ALL_REDUCE) for slots in (65536, 0))
    assert with_slots.choose(8).plan.one_round
    assert str(with_slots) != str(without)


def test_a_cluster_file_replaces_what_was_found() -> None:
    env = Env(topology=str(CONFIGS / "four_hosts_uneven.yaml"))
    hosts = ["a", "b", "c", "d", "a", "b"]
    planner = Planner(hosts, env, 0)
    assert planner.placement.groups(planner.topology) == ((0, 4), (1, 5), (2,), (3,))
    assert planner.topology.digest() != Planner(hosts, Env(), 0).topology.digest()
    assert planner.digest() != Planner(hosts, Env(), 0).digest()


@pytest.mark.parametrize("hosts", [["a"] * 6, ["a", "b", "c", "d", "b", "a"], ["a", "b", "c", "d", "e", "f"]])
def test_a_cluster_file_that_puts_ranks_elsewhere_is_refused(hosts: list[str]) -> None:
    env = Env(topology=str(CONFIGS / "four_hosts_uneven.yaml"))
    with pytest.raises(
        ConfigError, match=r"four_hosts_uneven\.yaml puts ranks .* on one host, but rank \d shares .*placement"
    ):
        Planner(hosts, env, 0)


def test_a_cluster_file_with_too_few_devices_is_refused() -> None:
    with pytest.raises(HcclError, match="9"):
        Planner(["a"] * 9, Env(topology=str(CONFIGS / "single_host_4cpu.yaml")), 0)


def test_uneven_tables_take_uneven_blocks() -> None:
    table = Planner(TWO_HOSTS, Env(), 0).table(Collective.ALL_GATHER, uneven=True)
    assert all(row.plan.uneven for row in table.entries)


def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("hosts: {")
    with pytest.raises(HcclError, match=r"cluster\.yaml"):
        Planner(["a"] * 2, Env(topology=str(path)), 0)
    with pytest.raises(ConfigError):
        Planner(["a"] * 2, Env(topology=str(tmp_path / "none.yaml")), 0)
