"""How many CPUs this process may use: its affinity mask, cut by the CPU quota of its cgroups (v1 and v2).

A container with a quota of two CPUs on a 64-core machine has an affinity mask of 64: waiting by spinning there burns
the quota of the very ranks that are waited for.
"""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus(root: str | Path = "/", affinity: int | None = None) -> int:
    """CPUs that this process can keep busy at once; at least 1.

    Args:
        root: where ``proc`` and ``sys`` are (tests give a folder of fixtures).
        affinity: CPUs in the affinity mask; asked of the system if None.
    """
    allowed = affinity if affinity is not None else len(affinity_cpus())
    quota = cpu_quota(root)
    return max(1, allowed if quota is None else min(allowed, math.floor(quota)))


def affinity_cpus() -> frozenset[int]:
    """Numbers of the CPUs that the scheduler may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))  # not Linux: no mask to ask for


def cpu_quota(root: str | Path = "/") -> float | None:
    """The tightest quota, in CPUs (such as 1.5), of this process's cgroups and their parents; None if unlimited."""
    root = Path(root)
    quotas = [_quota_v2(folder) for folder in _cgroup_folders(root, v2=True)]
    quotas += [_quota_v1(folder) for folder in _cgroup_folders(root, v2=False)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroup_folders(root: Path, v2: bool) -> list[Path]:
    """The folders of this process's cgroup and its parents, up to the mount.

    In a container ``/proc/self/cgroup`` may show a path of the host that does not exist below the mount; the mount
    itself, which then is the container's own cgroup, is always in the list.
    """
    mounts = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if v2 != (number == "0" and controllers == ""):
            continue
        if v2:
            mount_points = [mounts, mounts / "unified"]
        elif "cpu" in controllers.split(","):
            mount_points = [mounts / controllers, mounts / "cpu"]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mount_points:
            folders += [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max`` holds "<quota us> <period us>" or "max <period us>"."""
    words = _read(folder / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    """``cpu.cfs_quota_us`` is -1 where there is no quota."""
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:  # "max", or a file that is not there
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not there, or not ours to read: no limit that we can know of
        return ""
