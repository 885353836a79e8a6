from __future__ import annotations

import sys
import threading

import pytest

from hccl_py.bootstrap import MpiBootstrap, SingleBootstrap, ThreadBootstrap, detect
from hccl_py.core.env import Env, Launch
from hccl_py.core.errors import CollectiveTimeoutError, ConfigError


def test_a_single_rank() -> None:
    alone = SingleBootstrap()
    assert (alone.rank, alone.size, alone.allgather(b"x")) == (0, 1, [b"x"])


def test_threads_exchange_in_rank_order_again_and_again() -> None:
    meeting = ThreadBootstrap.Meeting(4)
    got: dict[int, list[list[bytes]]] = {}

    def run(rank: int) -> None:
        bootstrap = ThreadBootstrap(meeting, rank)
        got[rank] = [bootstrap.allgather(f"{rank}.{i}".encode()) for i in range(50)]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    want = [[f"{rank}.{i}".encode() for rank in range(4)] for i in range(50)]
    assert got == dict.fromkeys(range(4), want)


def test_a_thread_that_does_not_come_is_an_error() -> None:
    with pytest.raises(CollectiveTimeoutError, match="rank 1: a thread of this group did not come"):
        ThreadBootstrap(ThreadBootstrap.Meeting(2, timeout_s=0.05), 1).allgather(b"")


def test_no_launcher_is_a_world_of_one() -> None:
    assert isinstance(detect(Env(), Launch()), SingleBootstrap)
    assert isinstance(detect(Env(), Launch("torchrun", 0, 1)), SingleBootstrap)


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "slurm"])
def test_under_mpi_without_mpi4py_it_says_what_to_install(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"mpi4py cannot be used here .*pip install 'hccl-py\[mpi\]'"):
        detect(Env(), Launch(launcher, 0, 2))


def test_under_torchrun_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hccl_py.torch.store", None)
    with pytest.raises(ConfigError, match=r"started by torchrun, which needs PyTorch: pip install 'hccl-py\[torch\]'"):
        detect(Env(), Launch("torchrun", 0, 2))


def test_mpi_is_used_as_it_is_given() -> None:
    class Comm:
        def Get_rank(self) -> int:
            return 3

        def Get_size(self) -> int:
            return 5

        def allgather(self, data: bytes) -> list[bytes]:
            return [data] * 5

    pytest.importorskip("mpi4py.MPI", reason="mpi4py without an MPI library", exc_type=(ImportError, RuntimeError))  # type: ignore[arg-type]
    bootstrap = MpiBootstrap(Comm())
    assert (bootstrap.rank, bootstrap.size, bootstrap.allgather(b"a")) == (3, 5, [b"a"] * 5)
