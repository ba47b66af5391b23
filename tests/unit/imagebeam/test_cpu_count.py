"""The number of cores, from the affinity mask and from faked cgroup files."""

from __future__ import annotations

import os
import pathlib

import pytest

from imagebeam import concurrency


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "max\n"}, None),
        ({"cpu.max": "few 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
        ({}, None),
    ],
)
def test_quota_of_a_cgroup_is_read_in_whole_cores(
    tmp_path: pathlib.Path, files: dict[str, str], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert concurrency.cgroup_cores(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [(4, 4), (96, 96), (200, 96), (None, 96), (0, 1)], ids=["less", "same", "more", "none", "0"]
)
def test_cores_are_limited_by_the_affinity_and_by_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)
    monkeypatch.setattr(concurrency, "cgroup_cores", lambda: quota)
    assert concurrency.available_cores() == expected
