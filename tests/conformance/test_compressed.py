"""Compressed all-reduce: what the reference codecs say, the same on all ranks; errors are kept, moved and conserved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance_ranks import Ranks

from hccl_py import BrokenGroupError, ConfigError
from hccl_py.communicator import Communicator
from hccl_py.compressed import CompressedAllReduce
from hccl_py.compression.blocks import BlockCodec
from hccl_py.compression.codec import Array, CodecId
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import OWNER, Draw
from hccl_py.compression.elements import narrow, widen
from hccl_py.compression.feedback import ErrorFeedback, merged
from hccl_py.compression.span import Span
from hccl_py.core.errors import HcclError, TransportError
from hccl_py.core.types import DType, ReduceOp

BLOCK_TEXTS = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "sign"]
OTHERS = ["topk:0.05", "threshold:1.5", "randomk:0.1", "blocksparse:0.3", "lossless", "powersgd:2"]
SPANS = (Span(4, 600, rows=20), Span(0, 7), Span(9, 0), Span(2, 1500, 512), Span(1, 1))
COUNT = sum(span.count for span in SPANS)
STEP, SEED = 3, 11


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks("loopback", request.param) as group:
        yield group


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks("loopback", 3) as group:
        yield group


def data_of(rank: int, count: int = COUNT, step: int = 0) -> Array:
    return np.random.default_rng([rank, step]).standard_normal(count).astype(np.float32)


def reference(text: str, inputs: list[Array], factor: float) -> Array:
    """What the codecs under compression/ make of the ranks' arrays."""
    codec = parse_codec(text)
    size = len(inputs)
    total = np.zeros_like(inputs[0])
    at = 0
    for span in SPANS:
        place = slice(at, at + span.count)
        at += span.count
        for rank in range(size):
            draw = Draw(SEED, span.parameter, STEP, rank)
            code = codec.encode(inputs[rank][place], draw, span.offset)
            if codec.id is CodecId.RANDOMK:
                total[place] += codec.decode(code, span.count, draw, span.offset)  # type: ignore[call-arg]
            elif rank == 0:
                total[place] = codec.decode(code, span.count)
            else:
                codec.decode_add(code, total[place])
        total[place] *= np.float32(factor)
        if isinstance(codec, BlockCodec):
            code = codec.encode(total[place], Draw(SEED, span.parameter, STEP, OWNER), span.offset)
            total[place] = codec.decode(code, span.count)
    return total


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG], ids=lambda op: op.name.lower())
@pytest.mark.parametrize("text", [*BLOCK_TEXTS, *OTHERS[:-1]])
def test_result_is_that_of_the_reference_on_all_ranks(ranks: Ranks, text: str, op: ReduceOp) -> None:
    def task(comm: Communicator) -> Array:
        out = np.empty(COUNT, np.float32)
        CompressedAllReduce(comm, text, seed=SEED)(data_of(comm.rank), out, op, SPANS, STEP)
        return out

    results = ranks.run(task)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    inputs = [data_of(rank) for rank in range(ranks.size)]
    wanted = reference(text, inputs, 1 / ranks.size if op is ReduceOp.AVG else 1.0)
    if text.startswith("randomk"):  # summed by a plan of the engine, in its order
        assert np.abs(results[0] - wanted).max() < 1e-5
    else:
        assert np.array_equal(results[0], wanted)


@pytest.mark.parametrize("text", ["int8", "topk:0.05", "powersgd:2"])
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.name.lower())
def test_other_element_types_are_rounded_once_at_the_end(three: Ranks, text: str, dtype: DType) -> None:
    kind: Any = {DType.FLOAT64: np.float64, DType.FLOAT16: np.float16}.get(dtype, ml_dtypes.bfloat16)

    def bits(array: Array) -> Array:
        return array.view(np.uint16) if array.itemsize == 2 else array

    def task(comm: Communicator) -> tuple[Array, Array]:
        data = data_of(comm.rank).astype(kind)
        single = widen(bits(data), dtype)
        CompressedAllReduce(comm, text)(data, spans=SPANS)
        CompressedAllReduce(comm, text)(single, spans=SPANS)
        return bits(data), narrow(single, dtype)

    for got, wanted in three.run(task):
        assert np.array_equal(got, wanted)


LARGE = 3 * 5 * 256 * 256 + 77  # five pieces of a shard, and an end


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("count", [1, 255, 2000, LARGE])
def test_lossless_is_the_exact_sum_in_rank_order_and_keeps_no_errors(ranks: Ranks, count: int, dtype: DType) -> None:
    """In float32, rounded once; also of infinities, denormals and zeros."""
    kind: Any = {DType.FLOAT32: np.float32, DType.FLOAT16: np.float16}.get(dtype, ml_dtypes.bfloat16)

    def of(rank: int) -> Array:
        data = data_of(rank, count)
        data[::7], data[1::50] = 0, 1e-41
        data[3::700] = np.inf
        return np.asarray(data.astype(kind))

    def task(comm: Communicator) -> tuple[Array, dict[str, Array], int]:
        feedback = ErrorFeedback()
        reduce = CompressedAllReduce(comm, "lossless", feedback=feedback)
        out = reduce(of(comm.rank), op=ReduceOp.AVG)
        return np.asarray(out), feedback.state_dict(), reduce.sent_bytes

    with np.errstate(all="ignore"):
        total = of(0).astype(np.float32)
        for rank in range(1, ranks.size):
            total += of(rank).astype(np.float32)
        wanted = (total * np.float32(1 / ranks.size)).astype(kind)
    for out, errors, sent_bytes in ranks.run(task):
        assert out.tobytes() == wanted.tobytes() and errors == {}
        if count == LARGE:
            assert sent_bytes <= 0.95 * 2 * (ranks.size - 1) / ranks.size * wanted.nbytes


def test_lossless_refuses_float64_before_anything_is_sent(three: Ranks) -> None:
    with pytest.raises(ConfigError, match="float64"):
        CompressedAllReduce(three.comms[0], "lossless")(np.zeros(10))


@pytest.mark.parametrize("call", ["iall_to_all", "iall_gather"])
def test_a_damaged_lossless_frame_is_an_error_and_breaks_the_group(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with Ranks("loopback", 3) as group:
        original = getattr(group.comms[1], call)

        def damage(sendbuf: Array, recvbuf: Array) -> Any:
            sendbuf[100] ^= 4
            return original(sendbuf, recvbuf)

        monkeypatch.setattr(group.comms[1], call, damage)
        outcomes = group.outcomes(lambda comm: CompressedAllReduce(comm, "lossless")(data_of(comm.rank)))
        assert type(outcomes[0]) is TransportError and "rank 1" in str(outcomes[0])
        assert isinstance(outcomes[2], HcclError)  # rank 1 may have all that it needs
        assert all(isinstance(outcome, HcclError) for outcome in group.outcomes(lambda comm: comm.barrier()))


def test_power_sgd_sums_and_leaves_vectors_exact(ranks: Ranks) -> None:
    def task(comm: Communicator) -> Array:
        data = data_of(comm.rank)
        data[:600] = (np.arange(20.0)[:, None] * np.arange(1, 31.0) * (comm.rank + 1)).reshape(-1)  # of rank one
        return np.asarray(CompressedAllReduce(comm, "powersgd:2")(data, spans=SPANS))

    results = ranks.run(task)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    wanted = sum(data_of(rank).astype(np.float64) for rank in range(ranks.size))
    factor = sum(rank + 1 for rank in range(ranks.size))
    wanted[:600] = (np.arange(20.0)[:, None] * np.arange(1, 31.0)).reshape(-1) * factor
    assert np.abs(results[0] - wanted).max() < 1e-3


@pytest.mark.parametrize("text", [*BLOCK_TEXTS, *OTHERS])
def test_decoded_and_errors_are_the_inputs(three: Ranks, text: str) -> None:
    """Over six steps, of averages: sum of results + errors of owners + mean errors of senders = mean of inputs."""

    def task(comm: Communicator) -> tuple[Array, ErrorFeedback]:
        feedback = ErrorFeedback()
        reduce = CompressedAllReduce(comm, text, feedback=feedback)
        total = np.zeros(COUNT)
        for step in range(6):
            total += reduce(data_of(comm.rank, step=step), op=ReduceOp.AVG, spans=SPANS, step=step)
        return total, feedback

    results = three.run(task)
    at = 0
    for span in SPANS:
        place = slice(at, at + span.count)
        at += span.count
        got = results[0][0][place].copy()
        for _, feedback in results:
            end = span.offset + span.count
            got += feedback.total("owner", span.parameter, end)[span.offset :]
            got += feedback.total("send", span.parameter, end)[span.offset :] / 3
        wanted = sum(data_of(rank, step=step)[place].astype(np.float64) for rank in range(3) for step in range(6)) / 3
        assert np.abs(got - wanted).max(initial=0) < 1e-4


PARTS = ((Span(0, 700), Span(1, 300), Span(2, 1000)),)
OTHER_PARTS = ((Span(2, 1000),), (Span(1, 300), Span(0, 700)))
CUT_PARTS = ((Span(2, 512), Span(0, 700)), (Span(2, 488, 512), Span(1, 300)))
STARTS = {0: 0, 1: 700, 2: 1000}


def train(comm: Communicator, text: str, layouts: list[Any], states: list[Any] | None = None) -> tuple[Array, Any]:
    """A result for each step; ``layouts``: the buckets of each step."""
    feedback = ErrorFeedback()
    if states is not None:
        feedback.load_state_dict(states[comm.rank])
    reduce = CompressedAllReduce(comm, text, feedback=feedback)
    first = 0 if states is None else 3
    out = np.zeros((len(layouts), 2000), np.float32)
    for step, buckets in enumerate(layouts):
        gradients = data_of(comm.rank, 2000, step + first)
        for spans in buckets:
            at = [STARTS[span.parameter] + span.offset for span in spans]
            bucket = np.concatenate([gradients[a : a + s.count] for a, s in zip(at, spans, strict=True)])
            reduce(bucket, op=ReduceOp.AVG, spans=spans, step=step + first)
            for a, s, values in zip(at, spans, np.split(bucket, np.cumsum([s.count for s in spans])[:-1]), strict=True):
                out[step, a : a + s.count] = values
    return out, feedback.state_dict()


@pytest.mark.parametrize("text", ["fp8_e4m3", "int8", "int4", "sign", "topk:0.05", "blocksparse:0.5", "lossless"])
def test_another_partition_changes_no_bit(three: Ranks, text: str) -> None:
    layouts = [PARTS, PARTS, OTHER_PARTS, OTHER_PARTS, PARTS]
    if text in (*BLOCK_TEXTS, "lossless"):
        layouts += [CUT_PARTS, CUT_PARTS]
    same = three.run(lambda comm: train(comm, text, [PARTS] * len(layouts))[0])
    moved = three.run(lambda comm: train(comm, text, layouts)[0])
    assert np.array_equal(same[0], moved[0])
    assert all(np.array_equal(moved[0], other) for other in moved)


@pytest.mark.parametrize("text", ["int4", "sign", "topk:0.05", "powersgd:2"])
def test_saved_and_resumed_is_the_same_bit_for_bit(three: Ranks, text: str) -> None:
    whole = three.run(lambda comm: train(comm, text, [PARTS] * 6)[0])
    states = [state for _, state in three.run(lambda comm: train(comm, text, [PARTS] * 3))]
    resumed = three.run(lambda comm: train(comm, text, [OTHER_PARTS, PARTS, PARTS], states)[0])
    assert np.array_equal(whole[0][3:], resumed[0])


@pytest.mark.parametrize("size", [2, 5])
def test_a_world_of_another_size_conserves_the_errors(three: Ranks, size: int) -> None:
    states = [state for _, state in three.run(lambda comm: train(comm, "int4", [PARTS] * 3))]
    loaded = []
    for rank in range(size):
        feedback = ErrorFeedback()
        feedback.load_state_dict(merged(states, rank, size))
        loaded.append(feedback)
    for stage, old, new in (("send", 3, size), ("owner", 1, 1)):
        for parameter, count in ((0, 700), (1, 300), (2, 1000)):
            before = sum(_errors(state, stage, parameter, count) for state in states) / old
            after = sum(feedback.total(stage, parameter, count) for feedback in loaded) / new
            assert before.any() and np.abs(before - after).max() < 1e-5
    summed = merged(states, 0, 1, averages=False)
    assert np.allclose(_errors(summed, "send", 0, 700), sum(_errors(state, "send", 0, 700) for state in states))
    if size == 2:
        with Ranks("loopback", 2) as two:
            resumed = [merged(states, rank, 2) for rank in range(2)]
            out = two.run(lambda comm: train(comm, "int4", [PARTS] * 2, resumed)[0])
            assert np.array_equal(out[0], out[1])


def _errors(state: dict[str, Array], stage: str, parameter: int, count: int) -> Array:
    feedback = ErrorFeedback()
    feedback.load_state_dict(state)
    return feedback.total(stage, parameter, count)


def test_codecs_may_change_and_errors_go_on(three: Ranks) -> None:
    """Owners' errors of a block codec are taken up by the sparse one that follows."""

    def task(comm: Communicator) -> tuple[Array, Array]:
        feedback = ErrorFeedback()
        total = np.zeros(2000)
        for step, text in enumerate(
            ["int4", "int4", "lossless", "topk:0.05", "sign", "lossless", "randomk:0.1", "int8"]
        ):
            reduce = CompressedAllReduce(comm, text, feedback=feedback)
            total += reduce(data_of(comm.rank, 2000, step), op=ReduceOp.AVG, step=step)
        return total, feedback.total("send", 0, 2000) / 3 + feedback.total("owner", 0, 2000)

    results = three.run(task)
    got = results[0][0] + sum(errors for _, errors in results)
    wanted = sum(data_of(rank, 2000, step).astype(np.float64) for rank in range(3) for step in range(8)) / 3
    assert np.abs(got - wanted).max() < 1e-4


def test_not_a_number_is_seen_and_not_fed_back(three: Ranks) -> None:
    def task(comm: Communicator) -> tuple[Array, ErrorFeedback]:
        feedback = ErrorFeedback()
        data = data_of(comm.rank, 600)
        data[5] = np.nan if comm.rank == 1 else 0
        return np.array(CompressedAllReduce(comm, "int8", feedback=feedback)(data)), feedback

    for result, feedback in three.run(task):
        assert np.isnan(result[:256]).all() and np.isfinite(result[256:]).all()
        assert np.isfinite(feedback.total("send", 0, 600)).all() and np.isfinite(feedback.total("owner", 0, 600)).all()


def test_a_damaged_frame_is_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks("loopback", 3) as group:
        original = group.comms[1].all_to_all

        def damage(sendbuf: Array, recvbuf: Array) -> Array:
            sendbuf[100] ^= 4
            return np.asarray(original(sendbuf, recvbuf))

        monkeypatch.setattr(group.comms[1], "all_to_all", damage)
        outcomes = group.outcomes(lambda comm: CompressedAllReduce(comm, "int8")(data_of(comm.rank)))
        assert type(outcomes[0]) is TransportError and "rank 1" in str(outcomes[0])
        assert all(isinstance(outcome, HcclError) for outcome in outcomes)
        after = group.outcomes(lambda comm: comm.barrier())
        assert all(isinstance(outcome, (BrokenGroupError, HcclError)) for outcome in after)


def test_all_reduce_takes_a_codec(three: Ranks) -> None:
    def task(comm: Communicator) -> list[Array]:
        found = []
        for codec in ("int8", "int8", parse_codec("topk:0.5")):
            out = np.zeros(900, np.float32)
            assert comm.all_reduce(data_of(comm.rank, 900), out, codec=codec) is out
            found.append(out)
        assert comm.all_reduce(np.zeros(0, np.float32), codec="int8").size == 0
        return found

    results = three.run(task)
    exact = sum(data_of(rank, 900).astype(np.float64) for rank in range(3))
    first, second, sparse = results[0]
    assert 0 < np.abs(first - exact).max() < 0.25 and not np.array_equal(first, second)  # other random numbers
    assert np.abs(sparse - exact).max() > 0
    assert all(np.array_equal(a, b) for result in results for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": ReduceOp.MAX}, "adds up or averages"), ({"spans": [Span(0, 9)]}, "the spans have 9"),
        ({"spans": [Span(0, 6), Span(0, 4)]}, "overlaps"), ({"out": np.zeros(9, np.float32)}, "out has 9"),
        ({"out": np.zeros(10)}, "FLOAT64"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_sent(
    three: Ranks, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CompressedAllReduce(three.comms[0], "int8")(np.zeros(10, np.float32), **arguments)
    with pytest.raises(ConfigError):
        CompressedAllReduce(three.comms[0], "int8")(np.zeros(10, np.int32))
    with pytest.raises(ConfigError, match="multiples of 256"):
        Span(0, 5, 100)
    with pytest.raises(ConfigError, match="no matrix"):
        Span(0, 5, rows=2)


@pytest.mark.parametrize("state", [{"send/0": [0.0]}, {"send/a/0": [0.0]}, {"send/0/0": [[0.0]]}])
def test_a_wrong_state_is_refused_and_changes_nothing(state: dict[str, Any]) -> None:
    feedback = ErrorFeedback()
    feedback.memory("send", (Span(0, 2),))[:] = 1
    with pytest.raises(ConfigError):
        feedback.load_state_dict(state)
    assert feedback.total("send", 0, 2).tolist() == [1, 1]
    feedback.clear()
    assert not feedback.total("send", 0, 2).any()
