"""What can be a region: functions with what they do in the kernel, modules, threads; and whole executions."""

import pytest

from causal import selftest
from causal.interruption import Interruption
from tests.kernel.profiler import AHEAD_OF_OTHERS

THOROUGH = ("--duration", "4s", "--speedups", "100")


def test_time_belongs_to_callers_that_keep_no_frame_pointers(record, programs):
    recording = record(programs / "frameless", programs / "plugin.so", options=THOROUGH)
    assert recording.finished.code == 0, recording.finished.err
    for name in ("in_library", "in_kernel", "below_many", "interrupted", "on_another_stack"):
        assert 0.12 < recording.share(name) < 0.35, (name, recording.profile.samples)
    assert recording.share("only_calls") < 0.05
    losses, samples = recording.losses, recording.profile.end.samples
    assert losses["kernel_mode"] > 0.1 * samples
    assert recording.profile.end.samples_in_scope > 0.95 * samples
    # Until the library that is loaded late has been noticed, stacks end there.
    assert losses["stacks_whole"] > 0.9 * samples and losses["stacks_guessed"] < 0.02 * samples
    stacks = recording.analysis.diagnosis.stacks
    assert stacks.total == sum(losses[f"stacks_{kind}"] for kind in ("whole", "guessed", "deep", "lost"))
    assert losses["unwinding"]["modules"] >= 4


def test_modules(record, workloads):
    recording = record(workloads / "sleeper", "--beside", 2, options=[*THOROUGH, "-u", "module"])
    assert recording.finished.code == 0
    names = set(recording.profile.samples)
    assert "sleeper" in names
    # The wrappers of system calls are the C library's, and so is the time in the calls.
    assert any(name.startswith("libc") for name in names), names
    assert all(region.unit == "module" for region in recording.profile.regions)
    assert sum(map(recording.share, names)) == pytest.approx(1)
    assert any(window.arm == "treated" for window in recording.profile.windows)


def test_threads(record, workloads):
    recording = record(workloads / "pingpong", options=[*THOROUGH, "-u", "thread"])
    assert recording.finished.code == 0
    assert set(recording.profile.samples) == {"pingpong (main)", "pingpong/1"}
    assert 0.3 < recording.share("pingpong (main)") < 0.7
    assert {region.unit for region in recording.profile.regions} == {"thread"}
    assert any(window.arm == "treated" for window in recording.profile.windows)


def test_end_to_end(record, workloads, causal_bpf):
    options = ["--repeat", "13", "--only", "mix_lane", "--speedups", "100"]
    recording = record(workloads / "checksum", 40, 2000, options=options, point=None, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0
    windows = recording.profile.windows
    # The last pair or triple may not fit in.
    assert 11 <= len(windows) <= 13
    lines = recording.finished.out.splitlines()
    assert lines == lines[: len(lines) // len(windows)] * len(windows)  # as if it had been run by hand
    assert recording.analysis.progress_points == ("end-to-end",)
    assert windows[0].arm == "plain"
    assert {window.points[0].delta for window in windows} == {1}
    # Nearly all of its time is in this function.
    assert recording.gain("mix_lane") > 0.4
    shown = causal_bpf("report", recording.path)
    assert shown.code == 0 and "end-to-end" in shown.out and "mix_lane" in shown.out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of bcc, in this process for once
def test_the_self_test_states_its_error(monkeypatch):
    """`doctor --self-test`, shorter than for users: the truth is 25 %."""
    monkeypatch.setattr(selftest, "PROFILE_S", 6.0)
    monkeypatch.setattr(selftest, "_TRUTH_S", 0.3)
    found = selftest.run_self_test(Interruption())
    assert 0.15 < found.true < 0.35
    assert 0.1 < found.predicted < 0.4
    assert found.low < found.predicted < found.high
    assert 0 < found.sample_cost_ns < found.period_ns
