"""What is predicted on programs with known answers: direction and order, with bounds wide enough for a busy machine.

How exact the predictions are is for scripts/bench accuracy to say. The bounds here are such that they fail when debts
do not travel with wakeups (rule 4 of bpf/clock.h), or cores carry no clocks (rule 8).
"""

import json
import os
import subprocess

import pytest

from causal.analysis.results import Verdict
from tests.kernel.profiler import AHEAD_OF_OTHERS

ONLY_FULL = ("--speedups", "100")


@pytest.fixture
def predict(record, workloads):
    """Profile a workload for some seconds, trying only these functions at full speedup."""

    def run(workload, *arguments, only, seconds, options=ONLY_FULL):
        chosen = [word for name in only for word in ("--only", name)]
        duration = ("--duration", f"{seconds}s")
        words = [*duration, *options, *chosen]
        recording = record(workloads / workload, *arguments, options=words, **AHEAD_OF_OTHERS)
        assert recording.finished.code == 0, recording.finished
        assert recording.losses["pauses"] > 100
        assert recording.losses["threads_lost"] == 0
        return recording

    return run


def test_the_longer_side_of_a_barrier(predict, workload):
    """Beside a program that is not ours and computes all the time: it gets the CPU of whoever pauses, for a while."""
    workload("worksleep", 10_000, 0)
    recording = predict("barrier", 4000, 2000, "--apart", only=["work_a", "work_b"], seconds=15)
    # The truth is 50 % and nothing. Nothing and less is predicted where threads wait in vain for what pauses give away.
    assert recording.gain("work_a") > 0.25
    assert recording.gain("work_b") < 0.12
    assert recording.gain("work_a") > recording.gain("work_b") + 0.08
    # Half of the time the shorter side waits, and the longer one is alone.
    longer, shorter = (recording.result(name) for name in ("work_a", "work_b"))
    assert longer.serial_share > longer.cpu_share and shorter.serial_share < shorter.cpu_share


def test_the_shorter_side_of_a_barrier_once_the_longer_one_is_fixed(predict, causal_bpf):
    given = ("--given", "work_a=100%", "--speedups", "50")
    recording = predict("barrier", 3000, 2000, only=["work_b"], seconds=3, options=given)
    assert recording.profile.given == {"work_a": 1.0}
    windows = recording.profile.windows
    baselines = [window for window in windows if window.arm == "placebo"]
    assert baselines and all(window.delay_ns > 0.2 * window.effective_ns for window in baselines)
    assert {window.region for window in windows} == {"work_b", ""}
    assert "work_a 100% faster already" in causal_bpf("report", recording.path).out


def test_the_slow_stage_of_a_pipeline(predict):
    recording = predict("pipeline", 4000, 8000, only=["stage_slow"], seconds=12)
    assert recording.gain("stage_slow") > 0.25  # the truth is 50 %
    assert all(window.audit["linked_ns"] > 0.5 * window.audit["others_ns"] for window in recording.profile.windows[1:])


def test_a_turn_between_threads(predict, causal_bpf):
    recording = predict("pingpong", only=["ping_work"], seconds=12)
    assert 0.3 < recording.gain("ping_work") < 0.7  # the truth is 50 %
    finished = causal_bpf("report", recording.path, "--json")
    assert finished.code == 0 and finished.err == ""
    report = json.loads(finished.out)
    region = next(region for region in report["regions"] if region["region"] == "ping_work")
    assert region["progress_point"] == "progress" and region["unit"] == "function"
    assert 0.3 < region["cpu_share"] < 0.7
    full = next(point for point in region["points"] if point["speedup"] == 1.0)
    assert full["experiments"] >= 3 and full["ci"][0] <= full["program_speedup"] <= full["ci"][1]
    assert report["diagnosis"]["visits"]["progress"] > 100
    # At the end it was left alone, and went on.
    assert 0.5 < report["overhead"]["undisturbed_rate"] / region["baseline_rate"] < 3


def test_more_threads_than_cores(predict):
    recording = predict("oversub", only=["work_a"], seconds=12)
    assert 0.3 < recording.gain("work_a") < 0.8  # the truth is 55 %
    # They have nothing to do with each other, unlike the two of a pipeline: there is no store of work between them.
    assert all(window.audit["linked_ns"] < 0.1 * window.audit["others_ns"] for window in recording.profile.windows)


def test_forked_workers(predict):
    recording = predict("forker", only=["work_a"], seconds=12)
    assert 0.3 < recording.gain("work_a") < 0.8  # the truth is 55 %
    # The parent does nothing: both the samples and the visits are those of the children.
    assert recording.share("work_a") > 0.35
    assert recording.analysis.diagnosis.visits["progress"] > 100


def test_a_deadline_is_not_worth_optimising(predict):
    recording = predict("deadline", 10000, 5000, only=["work_a"], seconds=20)
    result = recording.result("work_a")
    assert result.pairs >= 3
    assert result.verdict is not Verdict.OPTIMISE
    assert result.dilation is not None and result.dilation.gain > 0.05  # what gives it away


def test_a_turn_between_threads_that_spin(predict):
    """A thread that spins until the other is through waits, though nothing wakes it."""
    recording = predict("spin", 1000, 1000, only=["work_a"], seconds=12)
    assert 0.35 < recording.gain("work_a") < 0.65  # the truth is 50 %, and 22 % where spinning is taken for work
    assert sum(window.audit["spins"] for window in recording.profile.windows) > 100


def test_workers_that_take_turns_on_an_outside_client(predict, workloads):
    """The same request is paid for once, whoever served the one before (rule 5)."""
    # The port is that of nobody else who tests at the same time on this machine.
    port = ("--port", str(20_000 + os.getpid() % 10_000))
    client = subprocess.Popen([workloads / "pool_client", "4000", *port], stdout=subprocess.DEVNULL)
    try:
        recording = predict("pool", 6000, 2000, "--workers", "4", *port, only=["work_a"], seconds=12)
    finally:
        client.kill()
        client.wait()
    assert 0.25 < recording.gain("work_a") < 0.6  # the truth is 43 %, and below -60 % when every worker pays
