"""CPU quotas: how often the control groups of a process were throttled, in both versions of the hierarchy."""

import os

import pytest

from causal.quota import throttled_periods

PID = 42


@pytest.fixture
def groups(tmp_path):
    """`groups(cgroup_text, {path: text})`: what /proc and the control group file system say; returns the count."""

    def count(membership, files):
        proc, root = tmp_path / "proc", tmp_path / "cgroup"
        (proc / str(PID)).mkdir(parents=True)
        (proc / str(PID) / "cgroup").write_text(membership)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return throttled_periods(PID, root, proc)

    return count


STAT = "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 77\n"


def test_version_2(groups):
    assert groups("0::/user/app\n", {"user/app/cpu.stat": STAT}) == 3


def test_version_1(groups):
    membership = "12:cpu,cpuacct:/app\n5:memory:/app\n3:cpuset:/app\n"
    assert groups(membership, {"cpu/app/cpu.stat": "nr_periods 9\nnr_throttled 4\n", "cpuset/app/cpu.stat": STAT}) == 4


def test_both_at_once(groups):
    membership = "4:cpu:/app\n0::/app\n"
    assert groups(membership, {"cpu/app/cpu.stat": "nr_throttled 4\n", "app/cpu.stat": STAT}) == 7


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {}),  # the root group has no such file
        ("0::/app\n", {"app/cpu.stat": "usage_usec 5\n"}),  # no quota
        ("0::/app\n", {"app/cpu.stat": "nonsense\n"}),
        ("0::/a:b\n", {}),
        ("", {}),
    ],
)
def test_no_quota(groups, membership, files):
    assert groups(membership, files) == 0


def test_a_colon_in_the_name_of_a_group(groups):
    assert groups("0::/a:b\n", {"a:b/cpu.stat": STAT}) == 3


def test_a_process_that_has_ended(tmp_path):
    assert throttled_periods(PID, tmp_path, tmp_path) == 0


def test_this_process():
    assert throttled_periods(os.getpid()) >= 0
