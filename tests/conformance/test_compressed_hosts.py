"""Compressed all-reduce between hosts of several ranks: exact inside, encoded once between them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py.buffers import Buffer, describe
from hccl_py.communicator import Communicator
from hccl_py.compressed import CompressedAllReduce
from hccl_py.compressed_hosts import HostExchange
from hccl_py.compression.codec import Array
from hccl_py.compression.feedback import ErrorFeedback, merged
from hccl_py.compression.span import Span, placed
from hccl_py.core.errors import HcclError
from hccl_py.core.types import ReduceOp

HOSTS = {"even": [0, 0, 1, 1], "in turns": [0, 1, 0, 1], "uneven": [0, 0, 0, 1, 1], "one alone": [0, 0, 1]}
SPANS = (Span(4, 2000, rows=20), Span(0, 7), Span(9, 0), Span(2, 1500, 512), Span(1, 1))
OTHER_SPANS = (Span(2, 1500, 512), Span(1, 1), Span(4, 2000, rows=20), Span(9, 0), Span(0, 7))
COUNT = sum(span.count for span in SPANS)
TEXTS = ["bf16", "int8", "sign", "topk:0.05", "threshold:1.5", "blocksparse:0.3", "lossless"]


def group_of(hosts: list[int]) -> Ranks:
    return Ranks("tcp", len(hosts), lambda rank: {"transports": ("shm", "tcp"), "host_id": f"host{hosts[rank]}"})


@pytest.fixture(scope="module", params=HOSTS)
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[list[int], Ranks]]:
    with group_of(HOSTS[request.param]) as group:
        yield HOSTS[request.param], group


@pytest.fixture(scope="module")
def even() -> Iterator[Ranks]:
    with group_of(HOSTS["even"]) as group:
        yield group


def data_of(rank: int, step: int = 0, count: int = COUNT) -> Array:
    return np.random.default_rng([rank, step]).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("text", TEXTS)
def test_each_host_is_encoded_once(hosts: tuple[list[int], Ranks], text: str) -> None:
    """What comes is what the codec makes of the hosts' exact sums, by one rank a host, the same on all ranks."""
    host_of, group = hosts

    def task(comm: Communicator) -> tuple[Array, bool]:
        reduce = CompressedAllReduce(comm, text, seed=11)
        out = np.empty(COUNT, np.float32)
        reduce(data_of(comm.rank), out, ReduceOp.AVG, SPANS, 3)
        return out, isinstance(reduce._exchange, HostExchange)

    results = group.run(task)
    assert all(used for _, used in results)
    assert all(out.tobytes() == results[0][0].tobytes() for out, _ in results)
    size = len(host_of)
    ranks_of = [[rank for rank in range(size) if host_of[rank] == host] for host in sorted(set(host_of))]
    sums = [sum(data_of(rank) for rank in ranks) for ranks in ranks_of]

    def flat(comm: Communicator) -> Array:
        """One rank for each host: its sum, divided by the number of ranks."""
        data = np.array(sums[comm.rank], np.float32)
        out = np.empty(COUNT, np.float32)
        reduce = CompressedAllReduce(comm, text, seed=11)
        reduce._exchange.run(*_buffers(data, out), SPANS, 1 / size, 3)
        return out

    with Ranks("loopback", len(sums)) as pair:
        wanted = pair.run(flat)[0]
    if max(map(len, ranks_of)) < 3:
        assert np.array_equal(results[0][0], wanted)
    else:  # three addends inside a host have an order
        assert np.mean(np.abs(results[0][0] - wanted) > 1e-5) < 0.01


def _buffers(data: Array, out: Array) -> tuple[Buffer, Buffer]:
    return describe(data, "data"), describe(out, "out")


@pytest.mark.parametrize("text", TEXTS)
def test_results_and_errors_are_the_inputs(hosts: tuple[list[int], Ranks], text: str) -> None:
    """Also where shards change hands on the way."""
    _, group = hosts

    def task(comm: Communicator) -> tuple[dict[int, Array], ErrorFeedback]:
        feedback = ErrorFeedback()
        reduce = CompressedAllReduce(comm, text, feedback=feedback)
        total = {span.parameter: np.zeros(span.count) for span in SPANS}
        for step in range(4):
            spans = OTHER_SPANS if step == 2 else SPANS
            out = reduce(in_order(data_of(comm.rank, step), spans), op=ReduceOp.AVG, spans=spans, step=step)
            for place, span in placed(spans):
                total[span.parameter] += out[place]
        return total, feedback

    results = group.run(task)
    for place, span in placed(SPANS):
        got = results[0][0][span.parameter].copy()
        end = span.offset + span.count
        for _, feedback in results:
            got += feedback.total("owner", span.parameter, end)[span.offset :]
            got += feedback.total("host", span.parameter, end)[span.offset :] / group.size
        exact = [data_of(rank, step)[place].astype(np.float64) for rank in range(group.size) for step in range(4)]
        assert np.abs(got - sum(exact) / group.size).max(initial=0) < 1e-4


def in_order(values: Array, spans: tuple[Span, ...]) -> Array:
    """An array of SPANS in another order of them."""
    parts = {span.parameter: values[place] for place, span in placed(SPANS)}
    return np.concatenate([parts[span.parameter] for span in spans])


@pytest.mark.parametrize("text", ["int8", "sign", "topk:0.05"])
def test_another_partition_changes_no_bit(even: Ranks, text: str) -> None:
    def train(layouts: list[tuple[Span, ...]]) -> list[list[bytes]]:
        def task(comm: Communicator) -> list[bytes]:
            reduce = CompressedAllReduce(comm, text, feedback=ErrorFeedback())
            found = []
            for step, spans in enumerate(layouts):
                out = reduce(in_order(data_of(comm.rank, step), spans), op=ReduceOp.AVG, spans=spans, step=step)
                found.append(b"".join(part.tobytes() for part in _by_parameter(out, spans)))
            return found

        return even.run(task)

    same, moved = train([SPANS] * 5), train([SPANS, SPANS, OTHER_SPANS, OTHER_SPANS, SPANS])
    assert same[0] == moved[0] and all(found == moved[0] for found in moved)


def _by_parameter(values: Array, spans: tuple[Span, ...]) -> list[Array]:
    return [values[place] for place, _ in sorted(placed(spans), key=lambda each: each[1].parameter)]


def test_codecs_and_worlds_may_change_and_no_error_is_lost(even: Ranks) -> None:
    texts = ["int4", "topk:0.05", "sign", "randomk:0.1", "int8"]

    def task(comm: Communicator) -> tuple[Array, Any]:
        feedback = ErrorFeedback()
        total = np.zeros(COUNT)
        for step, text in enumerate(texts):
            reduce = CompressedAllReduce(comm, text, feedback=feedback)
            total += reduce(data_of(comm.rank, step), op=ReduceOp.AVG, spans=SPANS, step=step)
        return total, feedback.state_dict()

    results = even.run(task)
    states = [state for _, state in results]
    assert any(key.startswith("host/") for key in states[0])
    with Ranks("loopback", 2) as pair:  # one host, fewer ranks: the errors of hosts are taken up by the ranks

        def go_on(comm: Communicator) -> tuple[Array, Array]:
            feedback = ErrorFeedback()
            feedback.load_state_dict(merged(states, comm.rank, 2))
            out = CompressedAllReduce(comm, "int8", feedback=feedback)(
                np.zeros(COUNT, np.float32), op=ReduceOp.AVG, spans=SPANS
            )
            assert not feedback.holds("host")
            left = [
                feedback.total(stage, span.parameter, span.offset + span.count)[span.offset :] / share
                for stage, share in (("send", 2), ("owner", 1))
                for span in SPANS
            ]
            return out, np.concatenate(left[: len(SPANS)]) + np.concatenate(left[len(SPANS) :])

        after = pair.run(go_on)
    got = results[0][0] + after[0][0] + sum(left for _, left in after)
    wanted = sum(data_of(rank, step).astype(np.float64) for rank in range(4) for step in range(len(texts))) / 4
    assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.parametrize(("text", "bits"), [("int8", 8.13), ("topk:0.01", 64 * 0.01)])
def test_bytes_between_hosts_are_those_of_one_rank_a_host(even: Ranks, text: str, bits: float) -> None:
    """Counted by the kernel, over all connections between the hosts; ranks of a host have none among themselves."""
    count, calls = 1 << 18, 4
    reducers = even.run(lambda comm: CompressedAllReduce(comm, text))

    def task(comm: Communicator) -> None:
        parts = comm.by_host()
        assert parts is not None and parts.across is not None
        assert {parts.local.engine.transport_to(peer) for peer in range(2)} == {"self", "shm"}
        for step in range(calls):
            reducers[comm.rank](data_of(comm.rank, step, count), step=step)
        comm.barrier()

    even.run(task)
    before = received_bytes()
    even.run(task)
    total = received_bytes() - before
    wanted = 2 * calls * count * bits / 8  # each of two hosts sends what one rank of a pair would
    assert wanted < total < 1.05 * wanted + 20_000
    assert sum(reducer.sent_bytes for reducer in reducers) / 2 == pytest.approx(wanted, rel=0.05)


def received_bytes() -> int:
    """By all TCP connections of this process, ever: tcpi_bytes_received."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("<Q", info, 128)[0]
        except OSError:  # no socket
            continue
    return total


def test_a_damaged_frame_between_hosts_is_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with group_of(HOSTS["even"]) as group:
        reducers = group.run(lambda comm: CompressedAllReduce(comm, "int8"))
        parts = group.comms[1].by_host()
        assert parts is not None and parts.across is not None
        original = parts.across.all_to_all

        def damage(sendbuf: Array, recvbuf: Array) -> Array:
            sendbuf[100] ^= 4
            return np.asarray(original(sendbuf, recvbuf))

        monkeypatch.setattr(parts.across, "all_to_all", damage)
        outcomes = group.outcomes(lambda comm: reducers[comm.rank](data_of(comm.rank)))
        assert all(isinstance(outcome, HcclError) for outcome in outcomes), outcomes


def test_sums_that_are_exact_anyway_take_no_parts(even: Ranks) -> None:
    for text in ("powersgd:2", "randomk:0.1"):
        kinds = even.run(lambda comm, text=text: type(CompressedAllReduce(comm, text)._exchange))  # type: ignore[misc]
        assert HostExchange not in kinds
