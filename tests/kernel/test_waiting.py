"""Off-CPU time: counted exactly, and sped up with the right result on programs with known answers."""

import json

import pytest

from causal.profile import read_profile
from tests.kernel.profiler import AHEAD_OF_OTHERS

FULL = ("--speedups", "100", "--duration")


def waits_of(recording):
    return read_profile(recording.path).waits


def test_what_threads_wait_for_and_where(record, workloads):
    """A prime number of sleeps of a known length, and no other sleep."""
    rounds, rest_us = 307, 5000
    options = ["--duration", "20s", "--only", "work_a"]
    recording = record(workloads / "rest", 500, rest_us, "--rounds", rounds, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    slept_s = waits_of(recording)["rest"]["sleep"] / 1e9
    # The last round ends with the process, in a sleep or not; what happened before the hooks is missing.
    assert slept_s == pytest.approx(rounds * rest_us / 1e6, rel=0.06)
    assert waits_of(recording)["rest"].get("lock", 0) == 0


def test_sleep_is_sped_up_and_an_idle_pool_is_not(record, workloads, causal_bpf):
    options = [*FULL, "24s", "--only", "rest", "--only", "idle_rest"]
    recording = record(workloads / "rest", 2000, 4000, "--idle", 2, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert 0.4 < recording.gain("rest") < 0.9  # the truth is 67 %
    assert recording.gain("idle_rest") < 0.2  # and nothing
    report = json.loads(causal_bpf("report", recording.path, "--json").out)
    regions = {region["region"]: region for region in report["regions"]}
    assert 0.3 < regions["rest"]["off_cpu_share"] < 1.1
    assert regions["idle_rest"]["off_cpu_share"] > 1.2


def test_classes_and_system_calls_are_units(record, workloads):
    options = [*FULL, "10s", "-u", "wait", "--only", "sleep"]
    recording = record(workloads / "rest", 2000, 4000, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert 0.4 < recording.gain("sleep") < 0.9
    options = [*FULL, "10s", "-u", "syscall", "--only", "clock_nanosleep"]
    recording = record(workloads / "rest", 2000, 4000, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert 0.4 < recording.gain("clock_nanosleep") < 0.9
