"""Run by mpirun with pytest-mpi: processes that disagree go on after resync()."""

from __future__ import annotations

import numpy as np
import pytest

import hccl_py
from hccl_py import MPI, DesyncError, HcclError
from hccl_py.core.types import ReduceOp

pytestmark = pytest.mark.mpi(min_size=2)


def test_a_group_goes_on_after_it_was_broken() -> None:
    with hccl_py.init() as comm:
        prepared = comm.prepare_all_reduce(np.ones(3))
        for _ in range(3):
            data = np.ones(50_000, np.float32)
            caught: HcclError | None = None
            try:
                comm.all_reduce(data, op=ReduceOp.MAX if comm.rank == 1 else ReduceOp.SUM)
                comm.barrier()  # who was done before it could know hears it here
            except HcclError as error:
                caught = error
            assert isinstance(caught, DesyncError), caught
            assert all("test_resync.py:" in place for place in comm.resync())
            out = np.full(50_000, comm.rank + 1.0)
            comm.Allreduce(MPI.IN_PLACE, out)
            assert out[-1] == comm.size * (comm.size + 1) / 2
        assert comm.resync() == [""] * comm.size
        with pytest.raises(HcclError):
            prepared.run()  # of a group that is gone
        comm.barrier()
