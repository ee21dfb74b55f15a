"""Just-in-time compiled code: functions from /tmp/perf-PID.map."""

from pathlib import Path


def test_functions_compiled_before_and_during_the_run(record, workloads):
    """The program alternates: 1 part `early`, 3 parts `late`, which appears later."""
    recording = record(workloads / "jit", 300, options=["--duration", "2s", "--no-pauses"])
    path = Path(f"/tmp/perf-{recording.profile.header.pid}.map")
    path.unlink()
    assert recording.finished.code == 0, recording.finished
    early, late = recording.share("JS:early function.js:1:1"), recording.share("late")
    assert late > early > 0.1 and early + late > 0.9, recording.profile.samples
