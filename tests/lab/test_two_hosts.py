"""Two hosts with ranks that share memory inside a host and talk by tcp between them: transports, results, bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from lab_nodes import INTERLEAVED, TWO_BY_TWO, Nodes
from lab_wire import check_wire, hierarchical_bytes, ring_bytes

from hccl_py.lab.kernel import Counters
from hccl_py.scheduler.algorithms import builtin_algorithms

UNEVEN = (0, 0, 0, 1)
PLACEMENTS = pytest.mark.parametrize(
    "hosts", [TWO_BY_TWO, INTERLEAVED, UNEVEN], ids=lambda hosts: "".join(map(str, hosts))
)
MIB = 1 << 20


def expected_transports(hosts: Sequence[int], rank: int) -> list[str]:
    """Shared memory inside a host, tcp between hosts."""
    return ["self" if peer == rank else "shm" if hosts[peer] == hosts[rank] else "tcp" for peer in range(len(hosts))]


@PLACEMENTS
def test_memory_inside_a_host_and_tcp_between_hosts(nodes: Nodes, hosts: Sequence[int]) -> None:
    found = nodes.run("transports", hosts)
    assert [rank["transports"] for rank in found] == [expected_transports(hosts, rank) for rank in range(len(hosts))]
    assert {address for rank in found for address in rank["addresses"]} <= {
        address
        for node in range(2)
        for address in (nodes.lab.address(node), f"10.78.0.{node + 1}", f"fd78::{node + 1}")
    }


def test_a_host_id_keeps_ranks_of_a_host_apart(nodes: Nodes) -> None:
    """The check of transports can see another answer."""
    found = nodes.run("transports", environ_of={1: {"HCCL_PY_HOST_ID": "elsewhere"}})
    assert [rank["transports"][1] for rank in found] == ["tcp", "self", "tcp", "tcp"]
    assert found[2]["transports"][3] == "shm"


@pytest.mark.parametrize(
    ("algorithm", "hosts"),
    [
        (None, TWO_BY_TWO),
        (None, INTERLEAVED),
        (None, UNEVEN),
        ("hierarchical", TWO_BY_TWO),
        ("hierarchical", INTERLEAVED),
        ("hierarchical", UNEVEN),
    ],
    ids=str,
)
def test_collectives(nodes: Nodes, algorithm: str | None, hosts: Sequence[int]) -> None:
    """All of them, by the plans that are chosen, or by one algorithm where it has the collective."""
    environ = {}
    if algorithm is not None:
        known = next(known for known in builtin_algorithms() if known.name == algorithm)
        forced = sorted(collective.name.lower() for collective in known.collectives)
        environ["HCCL_PY_ALGORITHM"] = ",".join(f"{collective}:{algorithm}" for collective in forced)
    ran = nodes.run("collectives", hosts, environ=environ, counts=[1, 30_011])
    assert [len(of_rank) for of_rank in ran] == [20] * len(hosts)


def test_the_check_of_results_rejects(nodes: Nodes) -> None:
    """A rank that is still in the call when another one has seen the wrong result raises what that one said."""
    errors = nodes.start("wrong_result").errors()
    assert len(errors) == 4
    assert all("planted: 1 of 1000 are wrong" in error.text for error in errors), errors
    kinds = {error.kinds[0] for error in errors}
    assert "AssertionError" in kinds
    assert kinds <= {"AssertionError", "BrokenGroupError"}


def wire_of(nodes: Nodes, size_bytes: int, algorithm: str, hosts: Sequence[int]) -> list[Counters]:
    """What the interfaces counted for one all_reduce; asserts that the algorithm did run."""
    before = [nodes.lab.counters(node) for node in range(2)]
    environ = {"HCCL_PY_ALGORITHM": f"all_reduce:{algorithm}"}
    plans = nodes.run("all_reduce_once", hosts, environ=environ, size_bytes=size_bytes)
    after = [nodes.lab.counters(node) for node in range(2)]
    assert all(plan.startswith(algorithm) for plan in plans), plans
    return [new - old for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize("size_bytes", [4 * MIB, 16 * MIB], ids=["4MiB", "16MiB"])
@pytest.mark.parametrize("hosts", [TWO_BY_TWO, INTERLEAVED], ids=["0011", "0101"])
def test_hierarchical_all_reduce_crosses_the_wire_once(nodes: Nodes, hosts: Sequence[int], size_bytes: int) -> None:
    check_wire(wire_of(nodes, size_bytes, "hierarchical", hosts), hierarchical_bytes(2, size_bytes))


@pytest.mark.parametrize("size_bytes", [4 * MIB, 16 * MIB], ids=["4MiB", "16MiB"])
def test_a_ring_in_rank_order_costs_half_as_much_again(nodes: Nodes, size_bytes: int) -> None:
    """And the check of the hierarchical one notices."""
    counted = wire_of(nodes, size_bytes, "ring", TWO_BY_TWO)
    check_wire(counted, ring_bytes(4, size_bytes))
    with pytest.raises(AssertionError, match="host 0 sent"):
        check_wire(counted, hierarchical_bytes(2, size_bytes))
