"""The measuring loop and the report, on three ranks that are threads and on a library made of NumPy and barriers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hccl_py.bench import report
from hccl_py.bench.cases import CASES
from hccl_py.bench.connect import connect
from hccl_py.bench.control import Control, refuse_lonely_ranks
from hccl_py.bench.peers import Bound, Request, UnsupportedError
from hccl_py.bench.run import TURNS, Benchmark, Row, Settings, turns
from hccl_py.bench.watchdog import Watchdog
from hccl_py.bootstrap import ThreadBootstrap
from hccl_py.core.env import Launch
from hccl_py.core.errors import ConfigError
from hccl_py.core.types import DType, ReduceOp

N = 3


class Toy:
    """An all_reduce over threads: every rank shows its buffer, adds up all, and one may be made to err."""

    version = "1"

    def __init__(self, name: str, control: Control, wrong: bool = False, absent: tuple[bool, ...] = ()) -> None:
        self.name, self._control, self._wrong, self._absent = name, control, wrong, absent
        self.calls = 0

    def prepare(self, request: Request) -> Bound:
        if request.in_place in self._absent:
            raise UnsupportedError(f"{self.name} has no such form")
        send, recv = request.buffers.send, request.buffers.recv
        assert send is not None and recv is not None

        def run() -> None:
            self.calls += 1
            parts = [np.frombuffer(data, send.dtype) for data in self._control.allgather(send.tobytes())]
            recv[:] = sum(parts)
            if self._wrong and self._control.rank == 1:
                recv[0] += 1

        return Bound(run, recv)

    def close(self) -> None:
        pass


def on_ranks(work: Callable[[Control], Any]) -> list[Any]:
    meeting = ThreadBootstrap.Meeting(N, timeout_s=30)
    with ThreadPoolExecutor(N) as pool:
        return list(pool.map(lambda rank: work(Control(ThreadBootstrap(meeting, rank))), range(N)))


def measure(control: Control, settings: Settings, *libraries: Toy) -> list[Row]:
    with Watchdog(control.rank, timeout_s=60, end=lambda _: None) as watchdog:
        return Benchmark(control, libraries, settings, watchdog).run(lambda _: None)


SETTINGS = Settings(cases=("all_reduce",), sizes_bytes=(8, 64), samples=6, warmup=1, calls=2)


def test_turns_alternate_forwards_and_backwards() -> None:
    order = list(turns(["a", "b"], 20))
    assert [name for name, _ in order] == ["a", "b", "b", "a"] * (TURNS // 2)
    assert len(order) == 2 * TURNS and {share for _, share in order} == {2, 3}


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 21])
def test_turns_give_every_library_all_its_samples(samples: int) -> None:
    order = list(turns(["a", "b", "c"], samples))
    assert {name: sum(share for other, share in order if other == name) for name in "abc"} == dict.fromkeys(
        "abc", samples
    )


def test_all_libraries_are_measured_and_checked() -> None:
    def work(control: Control) -> list[Row]:
        return measure(control, SETTINGS, Toy("hccl_py", control), Toy("slow", control, wrong=True))

    ranks = on_ranks(work)
    assert ranks[0] == ranks[1] == ranks[2], "every rank has the times of the slowest"
    rows = ranks[0]
    assert [(row.library, row.size_bytes) for row in rows] == [
        ("hccl_py", 8),
        ("slow", 8),
        ("hccl_py", 64),
        ("slow", 64),
    ]
    for row in rows:
        for cell in (row.out_of_place, row.in_place):
            assert len(cell.samples_s) == 6 and all(time_s > 0 for time_s in cell.samples_s)
            assert cell.wrong == (0 if row.library == "hccl_py" else 2), "one element, before and after"
    assert report.count_wrong(rows) == 8


def test_every_library_makes_the_same_number_of_calls() -> None:
    def work(control: Control) -> list[int]:
        toys = [Toy("hccl_py", control), Toy("other", control)]
        measure(control, SETTINGS, *toys)
        return [toy.calls for toy in toys]

    assert all(first == second > 0 for first, second in on_ranks(work))


def test_a_form_that_a_library_lacks_is_marked_and_the_rest_measured() -> None:
    rows = on_ranks(
        lambda control: measure(control, SETTINGS, Toy("hccl_py", control), Toy("half", control, absent=(True,)))
    )[0]
    assert rows[1].in_place.absent == "half has no such form" and rows[1].out_of_place.samples_s
    assert "N/A" in report.line(rows[1], N, 7)


def test_a_baseline_that_cannot_do_it_at_all_is_an_error() -> None:
    def work(control: Control) -> str:
        with pytest.raises(UnsupportedError) as caught:
            measure(control, SETTINGS, Toy("hccl_py", control), Toy("none", control, absent=(True, False)))
        return str(caught.value)

    assert set(on_ranks(work)) == {"none has no such form"}


def test_operators_that_a_type_lacks_are_left_out_and_nothing_left_is_an_error() -> None:
    wide = Settings(
        cases=("all_reduce",), sizes_bytes=(8,), ops=(ReduceOp.SUM, ReduceOp.BAND), dtypes=(DType.FLOAT32,), samples=1
    )
    none = Settings(cases=("all_reduce",), sizes_bytes=(8,), ops=(ReduceOp.BAND,), dtypes=(DType.FLOAT32,), samples=1)
    assert [row.op for row in on_ranks(lambda control: measure(control, wide, Toy("hccl_py", control)))[0]] == [
        ReduceOp.SUM
    ]

    def work(control: Control) -> None:
        with pytest.raises(ConfigError, match="nothing to measure"):
            measure(control, none, Toy("hccl_py", control))

    on_ranks(work)


def test_report_has_nccl_tests_columns_and_the_comparison() -> None:
    rows = on_ranks(lambda control: measure(control, SETTINGS, Toy("hccl_py", control), Toy("other", control)))[0]
    text = "\n".join([*report.preamble(N, SETTINGS, {"hccl_py": "1", "other": "1"}), *report.columns("all_reduce", 7)])
    for word in (
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "out-of-place",
        "in-place",
    ):
        assert word in text
    words = report.line(rows[0], N, 7).split()
    assert words[:6] == ["hccl_py", "8", "2", "float", "sum", "-1"]
    assert words[9] == words[14] == "0", "the #wrong columns"
    end = report.footer(rows, N)
    assert end[0] == "# Out of bounds values : 0 OK" and end[1].startswith("# Avg bus bandwidth")
    assert end[2].startswith("# hccl_py against other: ")


def test_report_says_failed_where_an_element_is_wrong() -> None:
    rows = on_ranks(lambda control: measure(control, SETTINGS, Toy("hccl_py", control, wrong=True)))[0]
    assert report.footer(rows, N)[0] == "# Out of bounds values : 8 FAILED"


def test_document_holds_every_sample_and_can_be_written() -> None:
    rows = on_ranks(lambda control: measure(control, SETTINGS, Toy("hccl_py", control)))[0]
    record = json.loads(json.dumps(report.document(rows, N, "hccl-py bench", {"hccl_py": "1"}, SETTINGS)))
    assert record["ranks"] == N and record["command"] == "hccl-py bench" and record["machine"]["cores_usable"] >= 1
    cell = record["rows"][0]["in_place"]
    assert len(cell["samples_s"]) == 6 and cell["low_s"] <= cell["time_s"] <= cell["high_s"]
    assert cell["busbw_Bps"] == pytest.approx(cell["algbw_Bps"] * CASES["all_reduce"].bus_factor(N))
    assert cell["algbw_Bps"] == pytest.approx(8 / cell["time_s"])


def test_ranks_that_are_alone_under_a_launcher_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"openmpi started 4 ranks.*world of 1"):
        refuse_lonely_ranks(Launch("openmpi", 0, 4, 0, 4), 1)
    refuse_lonely_ranks(Launch("openmpi", 0, 4, 0, 4), 4)
    refuse_lonely_ranks(Launch(), 1)


def test_unknown_baseline_is_an_error_that_names_the_known() -> None:
    meeting = ThreadBootstrap.Meeting(1)
    with pytest.raises(ConfigError, match="gloo, openmpi, mpich"):
        connect("nccl", Control(ThreadBootstrap(meeting, 0)), 1.0)


def test_watchdog_lets_a_fed_rank_live_and_ends_a_silent_one(capfd: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    with Watchdog(2, timeout_s=0.2, grace_s=0.01, end=end) as watchdog:
        watchdog.feed("all_reduce 8 B")
        assert ended.wait(10), "nobody fed it, so it must bark"
    assert statuses == [124]
    text = capfd.readouterr().err
    assert "[rank 2] no progress" in text and "all_reduce 8 B" in text and "test_run.py" in text
