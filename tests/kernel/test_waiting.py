"""Off-CPU time: counted exactly, and sped up with the right result on programs with known answers."""

import json
import os
import subprocess
import time

import pytest

from causal.profile import read_profile
from tests.kernel.profiler import AHEAD_OF_OTHERS, wait_until


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


def test_sleep_is_sped_up(record, workloads, causal_bpf):
    options = ["--speedups", "100", "--duration", "9s", "--only", "rest"]
    recording = record(workloads / "rest", 2000, 4000, "--idle", 2, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert 0.45 < recording.gain("rest") < 0.85  # the truth is 67 %
    report = json.loads(causal_bpf("report", recording.path, "--json").out)
    region = next(region for region in report["regions"] if region["region"] == "rest")
    assert 0.3 < region["off_cpu_share"] < 1.1
    # The idle pool waits too, but for what is its pause and no sleep, and nobody for a lock.
    assert report["waits"]["sleep"] > region["off_cpu_share"] + 0.5 and report["waits"].get("lock", 0) < 0.1


def test_classes_by_call_site_of_a_process_that_waits_already(workloads, causal_bpf, tmp_path):
    path, seconds = tmp_path / "profile", 3
    words = [str(workloads / "rest"), "2000", "4000", "--queue", "2"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, process_group=0) as target:
        wait_until(lambda: len(os.listdir(f"/proc/{target.pid}/task")) == 3, "the threads")
        time.sleep(0.1)  # they are at their queue
        options = ("-u", "wait", "--callers", "--only", "sleep from rest", "--speedups", "100", "-p", "progress")
        done = causal_bpf("attach", target.pid, "-q", *options, "--duration", f"{seconds}s", "-o", path)
        target.kill()
    assert done.code == 0, done
    waits = read_profile(path).waits
    # Two threads were blocked all the time; where in the code is not known.
    assert waits["I/O"]["I/O"] > 2 * seconds * 0.8e9
    assert waits["sleep from rest"]["sleep"] > seconds * 0.2e9
    treated = [window for window in read_profile(path).windows if window.arm == "treated"]
    # Only the sleep is what G grew by.
    assert treated and all(0.2 < window.delay_ns / window.wall_ns < 0.85 for window in treated)


def test_system_calls_are_a_unit(record, workloads):
    options = ["--speedups", "100", "--duration", "2s", "-u", "syscall", "--only", "clock_nanosleep"]
    recording = record(workloads / "rest", 2000, 4000, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert waits_of(recording)["clock_nanosleep"]["sleep"] > 0.5e9
    treated = [window for window in recording.profile.windows if window.arm == "treated"]
    # G grew by the time that the call took, all of it off the CPU.
    assert all(0.4 < window.delay_ns / window.wall_ns < 0.85 for window in treated)


def test_lock_waits_are_not_sped_up(record, workloads):
    recording = record(workloads / "lock", options=["--duration", "4s", "-u", "wait", "--only", "lock"])
    recording.finished.assert_error(2, "lock waits are counted, but not sped up", "code that holds it")


def test_nor_are_they_as_system_calls(record, workloads):
    options = ["--speedups", "100", "--duration", "3s", "-u", "syscall", "--only", "futex"]
    recording = record(workloads / "lock", 3000, 5000, options=options)
    assert waits_of(recording)["futex"]["lock"] > 0.4e9
    # G grew by what the call computes, and not by the waits: those were 0.3 to 0.5 threads.
    assert all(window.delay_ns < 0.1 * window.wall_ns for window in recording.profile.windows)
