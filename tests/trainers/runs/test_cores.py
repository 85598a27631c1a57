"""Cores within the quota of control groups, read from files as the kernel writes them."""

import os

import pytest

from trainers.runs.cores import core_quota, usable_cores


@pytest.mark.parametrize(
    ("own", "files", "quota", "most"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None, None),
        ("0::/\n", {}, None, None),
        ("0::/slice/job\n", {"slice/cpu.max": "50000 100000\n", "slice/job/cpu.max": "max 100000\n"}, 0.5, 1),
        ("0::/on/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0, 2),
        ("1:memory:/a\n", {"memory/a/cpu.max": "100000 100000\n"}, None, None),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            2.5,
            3,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, None),
    ],
)
def test_the_quota_is_the_smallest_of_the_control_groups_above_this_process(tmp_path, own, files, quota, most):
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content)
    assert core_quota(tmp_path / "groups", tmp_path / "own") == quota
    cores = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path / "groups", tmp_path / "own") == min(cores, most or cores)


def test_without_control_groups_they_are_those_that_this_process_may_run_on(tmp_path):
    assert usable_cores(tmp_path, tmp_path / "missing") == len(os.sched_getaffinity(0))
