"""The parts of the torch backend, each alone, in one process: checks, copies, works, store, rendezvous."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hccl_py.core.errors import CollectiveTimeoutError, ConfigError, DesyncError
from hccl_py.core.types import Collective, DType, ReduceOp
from hccl_py.torch import dynamo, movements, reductions, tensors
from hccl_py.torch.completer import Completer
from hccl_py.torch.dtypes import REDUCIBLE, reduce_op, reduce_type, wire_type
from hccl_py.torch.rendezvous import needs_mpi
from hccl_py.torch.store import StoreBootstrap, environment_bootstrap
from hccl_py.torch.work import HcclWork, WorkGroup, to_seconds


class Operation:
    """Stands for an operation of the engine; ends when told."""

    def __init__(self, error: Exception | None = None, source: int = -1) -> None:
        self.ended = threading.Event()
        self.error = error
        self.source = source

    def wait(self, timeout_s: float | None = None) -> None:
        if not self.ended.wait(timeout_s):
            raise CollectiveTimeoutError("still under way")
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self.ended.is_set()


@pytest.fixture
def completer():
    made = Completer("test-futures")
    yield made
    made.close(10.0)


# Element types and operators


def test_every_element_type_of_the_engine_is_reached():
    assert {pair[0] for pair in REDUCIBLE.values()} == set(DType)
    for dtype, (ours, units) in REDUCIBLE.items():
        assert ours.itemsize * units == dtype.itemsize, dtype


def test_operators_in_both_of_torchs_forms():
    options = dist.AllreduceOptions()
    for theirs, ours in ((dist.ReduceOp.SUM, ReduceOp.SUM), (dist.ReduceOp.BXOR, ReduceOp.BXOR)):
        options.reduceOp = theirs
        assert reduce_op(theirs) is reduce_op(options.reduceOp) is ours


def test_unknown_types_move_as_bytes_but_do_not_reduce():
    assert wire_type(torch.float8_e5m2fnuz, "call") == (DType.UINT8, 1)
    with pytest.raises(ConfigError, match="moved but not reduced"):
        reduce_type(ReduceOp.SUM, torch.float8_e5m2fnuz, "call")
    with pytest.raises(ConfigError, match="scales"):
        wire_type(torch.qint8, "call")


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(ReduceOp.AVG, torch.int32), (ReduceOp.BAND, torch.float32), (ReduceOp.MAX, torch.complex64)],
)
def test_undefined_reductions_are_refused(op, dtype):
    with pytest.raises(ConfigError, match=op.name):
        reduce_type(op, dtype, "call")


# Memory


def test_plain_tensors_are_used_directly():
    x = torch.arange(6.0).reshape(2, 3)
    assert tensors.readable(x) is x and tensors.writable(x, "call") == (x, ())
    assert tensors.read_blocks(list(x), "call").data_ptr() == x.data_ptr()
    assert tensors.write_blocks(list(x), "call")[1] == ()


def test_strided_and_lazy_tensors_go_through_copies():
    for x in (torch.arange(12.0)[::2], torch.ones(2, 3).t(), torch.ones(3, dtype=torch.cfloat).conj()):
        copy = tensors.readable(x)
        assert torch.equal(copy, x) and copy.data_ptr() != x.data_ptr() and tensors.is_plain(copy)
        home, copies = tensors.writable(x, "call")
        home.fill_(5)
        tensors.copy_home(copies)
        assert (x == 5).all()


def test_results_reach_leaves_and_inference_tensors():
    leaf = torch.nn.Parameter(torch.zeros(4, 2))
    with torch.inference_mode():
        frozen = torch.zeros(4, 2)
    for x in (leaf.t(), frozen.t()):
        home, copies = tensors.writable(x, "call")
        home.fill_(3)
        tensors.copy_home(copies)
        assert (x == 3).all()


@pytest.mark.parametrize(
    "x", [torch.ones(1).expand(3), torch.ones(5).unfold(0, 3, 1), torch.ones(4).as_strided((2, 2), (1, 1))]
)
def test_results_in_shared_elements_are_refused(x):
    with pytest.raises(ConfigError, match="share memory"):
        tensors.writable(x, "call")


def test_dense_layouts_are_not_mistaken_for_overlap():
    for x in (torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.ones(4, 1, 6)[:, :, ::2]):
        tensors.refuse_overlap(x, "call")
    tensors.refuse_overlap(torch.ones(0, 3).t(), "call")


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_memory_that_is_not_there_is_refused():
    for x, words in (
        (torch.eye(2).to_sparse(), "to_dense"),
        (torch.ones(2, device="meta"), "meta"),
        (torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2)), "no memory"),
    ):
        with pytest.raises(ConfigError, match=words):
            tensors.check(x, "call")


def test_overlapping_source_is_copied_unless_in_place():
    whole = torch.arange(8.0)
    block_bytes = 2 * 4
    own, shifted, elsewhere = whole[2:4], whole[3:5], torch.ones(2)
    assert tensors.apart(own, whole, 4 * block_bytes, block_bytes) is own
    assert tensors.apart(elsewhere, whole, 4 * block_bytes, block_bytes) is elsewhere
    copied = tensors.apart(shifted, whole, 4 * block_bytes, block_bytes)
    assert copied.data_ptr() != shifted.data_ptr() and torch.equal(copied, shifted)


# Requests


def test_counts_are_in_engine_elements_per_block():
    out, own = torch.zeros(8, dtype=torch.complex64), torch.zeros(4, dtype=torch.complex64)
    request = movements.all_gather_single(out, own, 0, 2)
    assert (request.dtype, request.count, request.in_counts) == (DType.FLOAT32, 8, None)
    uneven = movements.all_gather([torch.zeros(1), torch.zeros(3)], torch.zeros(3), 1, 2)
    assert [(call.collective, call.root, call.count) for call in uneven] == [
        (Collective.BROADCAST, 0, 1),
        (Collective.BROADCAST, 1, 3),
    ]
    uneven = reductions.reduce_scatter(torch.zeros(3), [torch.zeros(1), torch.zeros(3)], ReduceOp.SUM, 1, 2)
    assert [(call.collective, call.root, call.count) for call in uneven] == [
        (Collective.REDUCE, 0, 1),
        (Collective.REDUCE, 1, 3),
    ]
    rows = movements.all_to_all_single(torch.zeros(3, 2), torch.zeros(2, 2), [1, 2], [0, 2], 2)
    assert (rows.in_counts, rows.out_counts) == ([0, 4], [2, 4])


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("outputs for 2 ranks", lambda x: movements.all_gather([x], x, 0, 2)),
        ("elements, but outputs", lambda x: movements.all_gather([x, x], torch.zeros(3), 0, 2)),
        ("different types", lambda x: movements.all_gather([x, x], x.double(), 0, 2)),
        ("do not make", lambda x: movements.all_gather_single(torch.zeros(9), x, 0, 2)),
        ("does not make", lambda x: reductions.reduce_scatter_single(x, torch.zeros(9), ReduceOp.SUM, 0, 2)),
        ("the output has", lambda x: reductions.reduce_scatter(x, [torch.zeros(3), x], ReduceOp.SUM, 0, 2)),
        ("must not pass outputs", lambda x: movements.gather([x, x], x, 1, 0, 2)),
        ("must not pass inputs", lambda x: movements.scatter(x, [x, x], 1, 0, 2)),
        ("block of rank 1", lambda x: movements.scatter(x, [x, torch.zeros(3)], 0, 0, 2)),
        ("root 2", lambda x: movements.broadcast(x, 2, 0, 2)),
        ("root -1", lambda x: reductions.reduce(x, ReduceOp.SUM, -1, 0, 2)),
        ("do not divide", lambda x: movements.all_to_all_single(torch.zeros(3), torch.zeros(3), [], [], 2)),
        ("add up", lambda x: movements.all_to_all_single(x, x, [1, 1], [2, 2], 2)),
        ("split sizes", lambda x: movements.all_to_all_single(x, x, [4], [4], 2)),
    ],
)
def test_wrong_arguments_are_refused(words, call):
    with pytest.raises(ConfigError, match=words):
        call(torch.zeros(4))


# Works


def test_work_brings_results_home_once(completer):
    target, staging = torch.zeros(2), torch.ones(2)
    operation = Operation(source=3)
    work = HcclWork(operation, [target], completer, [(target, staging)])
    assert not work.is_completed()
    operation.ended.set()
    assert work.is_completed() and (target == 1).all()
    staging.fill_(2)
    assert work.wait() and (target == 1).all() and work.source_rank() == 3


def test_error_stays_and_reaches_everyone(completer):
    operation = Operation(DesyncError("ranks disagree"))
    work = HcclWork(operation, [torch.zeros(1)], completer)
    future = work.get_future()  # before the end: resolved by the completer
    operation.ended.set()
    with pytest.raises(Exception, match="ranks disagree"):
        future.wait()
    for _ in range(2):
        with pytest.raises(DesyncError):
            work.wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), DesyncError)
    late = HcclWork(operation, [torch.zeros(1)], completer).get_future()  # after the end: resolved at once
    with pytest.raises(Exception, match="ranks disagree"):
        late.wait()


def test_short_wait_leaves_the_work_alive(completer):
    operation = Operation()
    work = HcclWork(operation, [torch.zeros(1)], completer)
    with pytest.raises(CollectiveTimeoutError):
        work.wait(timedelta(milliseconds=1))
    assert work.exception() is None
    operation.ended.set()
    assert work.wait()


def test_times_that_mean_the_groups_own():
    assert to_seconds(None) is to_seconds(timedelta(0)) is to_seconds(timedelta(milliseconds=-1)) is None
    assert to_seconds(timedelta(seconds=2)) == 2.0


def test_group_of_works_waits_for_all_and_raises_the_first_error(completer):
    good, bad = Operation(), Operation(DesyncError("second"))
    works = [HcclWork(operation, [torch.zeros(1)], completer) for operation in (good, bad)]
    group = WorkGroup(works, completer)
    bad.ended.set()
    assert not group.is_completed()
    good.ended.set()
    with pytest.raises(DesyncError, match="second"):
        group.wait()
    assert group.is_completed() and not group.is_success() and isinstance(group.exception(), DesyncError)


def test_messages_do_not_wait_for_collectives(completer):
    never, message = Operation(), Operation()
    collective = HcclWork(never, [torch.zeros(1)], completer).get_future()
    arrived = HcclWork(message, [torch.ones(1)], completer, in_order=False).get_future()
    message.ended.set()
    assert (arrived.wait()[0] == 1).all() and not collective.done()
    never.ended.set()
    collective.wait()


def test_callbacks_are_known_as_such(completer):
    operation = Operation()
    seen = HcclWork(operation, [torch.zeros(1)], completer).get_future().then(lambda _: completer.is_current())
    assert not completer.is_current()
    operation.ended.set()
    assert seen.wait() is True


# Bootstrap, rendezvous, Dynamo


@pytest.mark.parametrize("kind", ["hash", "file"])
def test_store_exchange_leaves_no_keys(kind, tmp_path):
    shared = dist.HashStore()

    def exchange(rank: int) -> tuple[list[list[bytes]], dist.Store]:
        store = shared if kind == "hash" else dist.FileStore(str(tmp_path / "store"), 3)
        bootstrap = StoreBootstrap(store, rank, 3, timeout_s=20.0)
        return [bootstrap.allgather(b"%d of %d" % (rank, round_)) for round_ in range(3)], store

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(exchange, range(3)))
    expected = [[b"%d of %d" % (rank, round_) for rank in range(3)] for round_ in range(3)]
    assert all(gathered == expected for gathered, _ in results)
    own_keys = 1 if kind == "file" else 0  # a FileStore counts its users in one
    assert results[0][1].num_keys() == own_keys


def test_store_names_the_rank_that_does_not_come():
    with pytest.raises(CollectiveTimeoutError, match="rank 1 to join") as caught:
        StoreBootstrap(dist.HashStore(), 0, 2, timeout_s=0.05).allgather(b"here")
    assert (caught.value.rank, caught.value.peer) == (0, 1)


def test_environment_bootstrap_says_what_is_missing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK"):
        environment_bootstrap(1.0)


def test_mpi_is_asked_only_where_it_alone_knows():
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    torchs = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert needs_mpi(mpi) and needs_mpi({"PMI_SIZE": "2", "PMI_RANK": "0"}) and needs_mpi(mpi | {"RANK": "1"})
    assert not needs_mpi({}) and not needs_mpi(mpi | torchs) and not needs_mpi({"OMPI_COMM_WORLD_SIZE": "1"})
    assert not needs_mpi(mpi | {"TORCHELASTIC_RUN_ID": "x"})


def test_frames_are_skipped_and_old_torch_falls_back(monkeypatch):
    class Owner:
        def method(self) -> int:
            return 7

    unmarked = Owner.method
    dynamo.skip_frames(Owner)
    assert Owner.method is unmarked, "marking needs no wrapper"
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "_FrameExecStrategy")
    dynamo.skip_frames(Owner)
    assert Owner.method is not unmarked and Owner().method() == 7
