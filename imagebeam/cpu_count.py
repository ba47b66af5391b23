"""The number of CPU cores that this process may use: its affinity, and the limit of its container (cgroup)."""

from __future__ import annotations

import os

_CGROUP_ROOT = "/sys/fs/cgroup"


def available_cores() -> int:
    """Returns the number of cores for this process, at least 1.

    The kernel's affinity mask counts the cores of the whole machine even in a container that may use only a few of
    them: a pod with a limit of 4 CPUs on a machine of 96 sees 96. So the CPU quota of the cgroup, rounded up to whole
    cores, limits the number too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
    return cores if quota is None else min(cores, max(1, quota))


def cgroup_cores(root: str = _CGROUP_ROOT) -> int | None:
    """Returns the CPU quota of the container in cores, rounded up; None if there is no quota.

    Reads the files of cgroup v2 (`cpu.max`), and where they do not exist those of v1 (`cpu/cpu.cfs_quota_us`). Both
    hold microseconds of CPU time per period; "max" and -1 mean no limit.

    Args:
        root: folder where the cgroups are mounted.
    """
    values = _read_words(f"{root}/cpu.max")
    if not values:
        values = _read_words(f"{root}/cpu/cpu.cfs_quota_us") + _read_words(f"{root}/cpu/cpu.cfs_period_us")
    try:
        quota, period = (int(value) for value in values)
    except ValueError:  # "max", or a file is missing
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def _read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []
