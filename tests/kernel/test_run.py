"""How `run` behaves: exit codes, how it can be ended, what it prints where, and what it leaves behind."""

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from causal.profile import read_profile
from tests.kernel.profiler import is_alive, target_of, wait_for_experiment, wait_until

POINT = ("-u", "function", "-p", "progress")


def words_of(text):
    """The text without its line ends, which depend on the width of the terminal."""
    return " ".join(text.split())


# --- exit codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "code"), [(3, 3), (-signal.SIGKILL, 128 + signal.SIGKILL)])
def test_the_exit_code_is_that_of_the_command(causal_bpf, programs, tmp_path, how, code):
    path = tmp_path / "profile.jsonl"
    finished = causal_bpf("run", *POINT, "-o", path, "--", programs / "ending", 300, how)
    assert finished.code == code
    assert finished.err == ""
    assert finished.out.startswith("worked\n")  # the command's own, ahead of ours
    assert "see it again: causal-bpf report" in finished.out
    end = read_profile(path).end
    assert (end.reason, end.exit_status) == ("exit", code)


def test_end_of_the_duration(causal_bpf, programs, tmp_path):
    """Also the whole output: table, diagnosis, and the way back to them; the profile has a name of its own."""
    finished = causal_bpf("run", *POINT, "--duration", "5s", "--", programs / "counted", tmp_path / "rounds")
    assert finished.code == 0
    assert finished.err == ""  # quiet on what is no terminal
    assert "\x1b" not in finished.out
    again = re.search(r"^see it again: causal-bpf report (causal-counted-[\d-]+\.jsonl)$", finished.out, re.MULTILINE)
    assert finished.out.endswith(f"{again[0]}\n")
    path = tmp_path / again[1]
    profile = read_profile(path)
    assert profile.end.reason == "duration"
    assert not is_alive(profile.header.pid)
    assert "Progress point progress" in finished.out
    assert re.search(r"^work_a +\d+%", finished.out, re.MULTILINE)
    assert re.search(r"[1-9]\d* experiments?; [12] regions? tried; [\d,]+ samples", words_of(finished.out))
    assert re.search(r"[\d,]+ visits of progress", words_of(finished.out))
    shown = causal_bpf("report", path)
    assert shown.code == 0
    assert shown.out.strip() == finished.out[: finished.out.index("\nsee it again")].strip()


def test_keep_running(causal_bpf, programs, tmp_path):
    path, counted = tmp_path / "profile.jsonl", tmp_path / "rounds"
    finished = causal_bpf(
        "run", *POINT, "--duration", "2s", "--keep-running", "-o", path, "--", programs / "counted", counted
    )
    assert finished.code == 0
    target = target_of(path)
    assert f"process {target}" in finished.out
    before = counted.read_bytes()
    wait_until(lambda: counted.read_bytes() != before, "progress of a target left alone")
    assert is_alive(target)
    os.kill(target, signal.SIGKILL)


def test_a_static_program(start_profiler, tmp_path):
    """Nothing can be preloaded into it: the handler is injected once it runs."""
    source, program = Path(__file__).resolve().parents[1] / "workloads" / "barrier.c", tmp_path / "static"
    flags = ("-std=gnu11", "-O2", "-g", "-fno-omit-frame-pointer", "-fno-inline-functions", "-pthread", "-w", "-static")
    subprocess.run(["cc", *flags, "-o", program, source], check=True, timeout=60)
    path = tmp_path / "profile.jsonl"
    words = ("run", "-q", *POINT, "--speedups", "100", "--only", "work_a", "-o", path, "--", program, 3000, 2000)
    profiler = start_profiler(*words)
    wait_for_experiment(path)
    profiler.send(signal.SIGINT)
    assert profiler.wait().err == ""
    end = read_profile(path).end
    assert end.diagnosis["pauses"] > 10 and end.diagnosis["unregistered"] == 0
    assert not [message for message in end.messages if "paused" in message]


# --- ended from outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "options"), [(signal.SIGINT, ()), (signal.SIGTERM, ("-q",))])
def test_interrupted_once(start_profiler, programs, tmp_path, number, options):
    path = tmp_path / "profile.jsonl"
    profiler = start_profiler("run", *POINT, *options, "-o", path, "--", programs / "counted", tmp_path / "rounds")
    target = target_of(path)
    wait_for_experiment(path)
    profiler.send(number)
    finished = profiler.wait()
    assert finished.code in (128 + signal.SIGINT, 128 + number)
    assert finished.err == ""
    if options:
        assert finished.out == ""
    else:
        assert "Progress point progress" in finished.out and "see it again" in finished.out
    assert not is_alive(target)
    profile = read_profile(path)
    assert profile.end.reason == "interrupt" and not profile.truncated


def test_interrupted_twice(start_profiler, workloads, tmp_path):
    """A target that does not end at SIGTERM: the second Ctrl-C does not wait for it."""
    path = tmp_path / "profile.jsonl"
    # It looks for SIGTERM once a round, and a round takes an hour.
    profiler = start_profiler("run", *POINT, "-o", path, "--", workloads / "handler", 3_600_000_000)
    target = target_of(path)
    wait_until(lambda: read_profile(path).windows, "a window")
    profiler.send(signal.SIGINT)
    wait_until(lambda: read_profile(path).end, "the end of the recording")
    profiler.send(signal.SIGINT)
    finished = profiler.wait()
    assert finished.code == 128 + signal.SIGINT
    assert "Traceback" not in finished.err
    assert is_alive(target)


def test_target_killed(start_profiler, programs, tmp_path):
    path = tmp_path / "profile.jsonl"
    profiler = start_profiler("run", *POINT, "-o", path, "--", programs / "counted", tmp_path / "rounds")
    target = target_of(path)
    wait_for_experiment(path)
    os.kill(target, signal.SIGKILL)
    finished = profiler.wait()
    assert finished.code == 128 + signal.SIGKILL
    assert finished.err == "" and "Progress point progress" in finished.out
    end = read_profile(path).end
    assert (end.reason, end.exit_status) == ("exit", 128 + signal.SIGKILL)


# --- what is printed ------------------------------------------------------------------------------------------------


def test_progress_on_a_terminal(start_profiler, programs, tmp_path):
    ours, theirs = pty.openpty()
    profiler = start_profiler(
        "run", *POINT, "--duration", "3s", "--", programs / "counted", tmp_path / "rounds",
        stderr=theirs, environment={"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last one who had it open has closed it
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert profiler.wait().code == 0
    text = shown.decode()
    assert re.search(r"profiling \d+ s .*\d s left .*Ctrl-C ends it", text)
    assert re.search(r"[\d.]+ visits/s of progress", text)
    assert re.search(r"work_[ab] \d+% (treated|placebo)", text)


def test_quiet_leaves_the_streams_to_the_command(record, programs):
    recording = record(programs / "ending", 300, 0)
    assert recording.finished.out == "worked\n"
    assert recording.finished.err == ""
    assert recording.finished.code == 0


def test_an_existing_profile_is_not_overwritten(causal_bpf, tmp_path):
    path, marker = tmp_path / "profile.jsonl", tmp_path / "marker"
    path.write_text("precious")
    words = ("run", "-q", "-p", "write@libc", "-o", path)
    finished = causal_bpf(*words, "--", "touch", marker)
    finished.assert_error(1, "exists", "--force")
    assert finished.out == ""
    assert path.read_text() == "precious"
    assert not marker.exists()  # nothing was started
    assert causal_bpf(*words, "--force", "--", "touch", marker).code == 0
    assert marker.exists()
    assert read_profile(path).end.exit_status == 0


def test_a_progress_point_is_suggested(causal_bpf, programs, tmp_path):
    finished = causal_bpf("run", "--duration", "4s", "--", programs / "counted", tmp_path / "rounds")
    *listed, error, hint = finished.err.splitlines()
    assert finished.code == 2
    assert error.startswith("error: no progress point given")
    assert re.search("^hint: .* -p [a-z_]+ -- ", hint)
    assert any(re.fullmatch(r" *[\d,]+\.\d +-p progress", line) for line in listed)
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_program_that_ends_before_one_can_be_suggested(causal_bpf, programs):
    finished = causal_bpf("run", "--", programs / "ending", 1, 0)
    finished.assert_error(2, "no progress point given", "--repeat")


def test_the_command_runs_as_the_user_of_sudo(causal_bpf, tmp_path):
    path = tmp_path / "profile.jsonl"
    user = {"SUDO_UID": "65534", "SUDO_GID": "65534"}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ("run", "-q", "-p", "write@libc", "-u", "thread", "-o", path, "--", "id")
    finished = causal_bpf(*words, environment=user | {"TMPDIR": str(temporary)})
    assert finished.code == 0
    assert re.fullmatch(r"uid=65534\S* gid=65534\S* groups=65534\S*\n", finished.out)
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    assert list(temporary.iterdir()) == []
