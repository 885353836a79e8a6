"""Usable CPUs, from fixtures of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hccl_py.core.cpus import affinity_cpus, cpu_quota, usable_cpus


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def test_affinity_decides_where_there_is_no_quota(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path, affinity=6) == 6
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [("250000", 2), ("50000", 1), ("1600000", 8)])
def test_v2_quota_cuts_the_affinity_and_leaves_at_least_one(tmp_path: Path, quota: str, expected: int) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000")
    assert usable_cpus(tmp_path, affinity=8) == expected


def test_v2_max_is_no_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000")
    assert cpu_quota(tmp_path) is None


def test_v2_tightest_parent_counts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/slurm/job_7/step_0")
    put(tmp_path, "sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000")
    put(tmp_path, "sys/fs/cgroup/slurm/job_7/cpu.max", "150000 100000")
    put(tmp_path, "sys/fs/cgroup/slurm/cpu.max", "800000 100000")
    assert cpu_quota(tmp_path) == 1.5


def test_v2_in_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/../../docker/abcdef")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "300000 100000")
    assert cpu_quota(tmp_path) == 3.0


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpu"])
def test_v1_quota(tmp_path: Path, controllers: str) -> None:
    put(tmp_path, "proc/self/cgroup", f"4:memory:/job\n3:{controllers}:/job\n0::/")
    put(tmp_path, f"sys/fs/cgroup/{controllers}/job/cpu.cfs_quota_us", "200000")
    put(tmp_path, f"sys/fs/cgroup/{controllers}/job/cpu.cfs_period_us", "100000")
    put(tmp_path, "sys/fs/cgroup/memory/job/cpu.cfs_quota_us", "100000")
    put(tmp_path, "sys/fs/cgroup/memory/job/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) == 2.0


def test_v1_minus_one_is_no_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "3:cpu:/")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) is None


def test_nonsense_in_the_files_is_no_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/\nrubbish\n:::\n3:cpu:/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "many few")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "0")
    assert cpu_quota(tmp_path) is None


def test_this_machine() -> None:
    assert 1 <= usable_cpus() <= len(affinity_cpus()) <= (os.cpu_count() or 1)
