"""The target is sacred: it prints what it always prints, and outlives whatever happens to the profiler."""

import os
import re
import signal
import subprocess
import time

import pytest

from causal import kernel_calls
from causal.child import STUB_PATH
from causal.profile import read_profile
from tests.kernel.profiler import is_alive, target_of, wait_for_experiment, wait_until

FULL = ("--speedups", "50,100")


def assert_paused(recording):
    """The test would be none if nothing had been done to the target."""
    assert recording.losses["pauses"] > 20
    assert any(window.arm == "treated" for window in recording.profile.windows)


# --- what a target may see ------------------------------------------------------------------------------------------


def test_no_system_call_is_ever_interrupted(record, workloads):
    recording = record(workloads / "eintr", "--seconds", 6, options=FULL)
    assert recording.finished.err == ""
    assert recording.finished.code == 0
    assert re.search(r"^eintr 0$", recording.finished.out, re.MULTILINE)
    assert int(re.search(r"^calls (\d+)$", recording.finished.out, re.MULTILINE)[1]) > 100
    assert_paused(recording)


def test_output_is_the_same_byte_for_byte(record, workloads):
    arguments = (600, 3000)
    recording = record(workloads / "checksum", *arguments, options=FULL)
    alone = subprocess.run(
        [workloads / "checksum", *map(str, arguments)], capture_output=True, text=True, check=True, timeout=60
    )
    assert recording.finished.out == alone.stdout
    assert recording.finished.err == ""
    assert recording.finished.code == 0
    assert_paused(recording)


@pytest.mark.parametrize(
    "how", [("--own", "--after", 100), ("--own", "--wait"), ("--ignore",), ("--block-all", "--wait")]
)
def test_the_signal_belongs_to_the_target(record, workloads, how):
    recording = record(workloads / "handler", 2000, *how, "--seconds", 2, options=FULL)
    assert recording.finished.code == 0
    sent, handled, stolen = re.search(r"sent (\d+) handled (\d+) stolen (\d+)", recording.finished.out).groups()
    assert (sent, stolen) == (handled, "0")
    assert (int(sent) > 0) == ("--own" in how)
    if "--block-all" in how:  # that thread owes what the other is spared
        assert recording.losses["blocked_mask"] > 0


def test_a_disposition_that_never_rests(record, programs):
    recording = record(programs / "dispositions", 2500, options=FULL)
    assert recording.finished.code == 0
    assert recording.finished.out == "rounds 2500\n"
    assert recording.losses["unregistered"] > 0  # it was met without our handler
    assert_paused(recording)


def test_small_signal_stacks(record, workloads):
    recording = record(workloads / "sigstack", "--seconds", 2, options=FULL)
    assert recording.finished.code == 0
    assert "overflows 0" in recording.finished.out


def test_five_hundred_threads(record, workloads):
    threads = 500
    recording = record(workloads / "manythreads", 300, "--seconds", 5, options=FULL)
    assert recording.finished.code == 0
    rounds = int(re.match(r"rounds (\d+) ", recording.finished.out)[1])
    assert rounds > threads
    assert f"total {sum(i % threads for i in range(rounds))}\n" in recording.finished.out
    assert recording.losses["threads_lost"] == 0
    assert_paused(recording)


def test_threads_that_do_not_fit_are_counted(record, workloads):
    threads, rounds = 500, 2003
    options = [*FULL, "--max-threads", 100]
    recording = record(workloads / "manythreads", 300, "--rounds", rounds, options=options)
    assert recording.finished.code == 0
    assert f"total {sum(i % threads for i in range(rounds))}\n" in recording.finished.out
    assert recording.losses["threads_lost"] > 0
    assert any("threads did not fit" in message for message in recording.profile.end.messages)


def test_a_program_that_executes_itself(record, workloads):
    rounds, execs = 307, 2
    recording = record(workloads / "execer", 2000, rounds, "--execs", execs, options=FULL)
    assert recording.finished.code == 0
    assert f"total {rounds * (execs + 1)}\n" in recording.finished.out
    assert recording.share("work_a") > 0.9


def test_a_table_that_nobody_fills():
    """The profiler has gone: its table is still there, the handler too, and a SIGURG passes at once."""
    lines = 8192
    table = kernel_calls.create_array_map(value_size=24 * lines, flags=kernel_calls.BPF_F_MMAPABLE)
    script = "grep ^SigCgt /proc/$$/status; kill -URG $$; kill -URG $$; echo alive"
    variable = f"{table}:{lines}:{int(signal.SIGURG)}"
    try:
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60, pass_fds=[table],
            env={**os.environ, "LD_PRELOAD": str(STUB_PATH), "CAUSAL_BPF_STUB": variable},
        )  # fmt: skip
    finally:
        os.close(table)
    caught = int(re.match(r"SigCgt:\s*(\w+)\n", done.stdout)[1], 16)
    assert caught & 1 << (signal.SIGURG - 1)
    assert done.stdout.endswith("\nalive\n") and done.stderr == ""


# --- what may happen to the profiler --------------------------------------------------------------------------------


def test_profiler_killed(start_profiler, causal_bpf, workloads, tmp_path):
    path = tmp_path / "profile.jsonl"
    profiler = start_profiler(
        "run", "-q", "-p", "progress", *FULL, "-o", path, "--", workloads / "barrier", 3000, 2000, "--seconds", 6
    )
    target = target_of(path)
    wait_for_experiment(path)
    profiler.send(signal.SIGKILL)
    assert profiler.wait().code == -signal.SIGKILL
    assert is_alive(target)
    # It ends by itself, at its time, with what it always prints.
    wait_until(lambda: not is_alive(target), "the end of the target")
    rounds = int(re.fullmatch(r"rounds (\d+) seconds [\d.]+ rate [\d.]+\n", profiler.out)[1])
    assert rounds > 100
    report = causal_bpf("report", path)
    assert report.code == 0 and report.err == ""
    assert "the recording was cut off" in " ".join(report.out.split())


def test_profiler_stopped(start_profiler, programs, tmp_path):
    path, counted = tmp_path / "profile.jsonl", tmp_path / "rounds"
    profiler = start_profiler(
        "run", "-q", "-p", "progress", "--only", "work_a", "--speedups", "100", "--keep-running", "-o", path,
        "--", programs / "counted", counted,
    )  # fmt: skip
    target = target_of(path)

    def pace(seconds):
        started, before = time.monotonic(), int.from_bytes(counted.read_bytes(), "little")
        time.sleep(seconds)
        return (int.from_bytes(counted.read_bytes(), "little") - before) / (time.monotonic() - started)

    wait_for_experiment(path)
    profiler.send(signal.SIGSTOP)
    while_stopped = pace(3.0)
    profiler.send(signal.SIGCONT)
    profiler.send(signal.SIGINT)
    assert profiler.wait().code == 128 + signal.SIGINT
    # The same process, now left alone.
    assert while_stopped > 0.4 * pace(1.5)
    os.kill(target, signal.SIGKILL)
    assert any(window.arm == "treated" for window in read_profile(path).windows)
