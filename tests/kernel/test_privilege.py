"""What the profiler needs: three capabilities and no root, and what it leaves behind."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from causal.profile import read_profile
from tests.kernel.profiler import PROGRAM, wait_for_experiment

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 47_110  # nobody else's number, so that what belongs to it is ours
WANTED = "-all,+bpf,+perfmon,+sys_ptrace"
SHARED = ("/tmp", "/var/tmp", "/dev/shm")


@pytest.fixture
def as_user():
    """Put before a command: without root, and with three capabilities alone."""
    for path in (PROGRAM, PROGRAM.resolve(), ROOT / "causal"):
        if not all(os.stat(each).st_mode & 0o1 for each in path.parents):
            pytest.skip(f"{path} is in a directory that is closed to others")
    return (
        shutil.which("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
        f"--inh-caps={WANTED}", f"--ambient-caps={WANTED}", "--",
    )  # fmt: skip


@pytest.fixture
def place():
    """A directory of that user."""
    directory = Path(tempfile.mkdtemp(prefix="causal-bpf-test-"))
    directory.chmod(0o755)
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


def of_that_user(directories):
    """What belongs to it."""
    paths = [Path(directory, name) for directory in directories for name in os.listdir(directory)]
    return [path for path in paths if path.exists() and path.stat().st_uid == NOBODY]


def test_three_capabilities_are_enough(start_profiler, workloads, as_user, place):
    program, path = shutil.copy(workloads / "barrier", place), place / "profile.jsonl"
    target = subprocess.Popen(
        [program, "3000", "2000"], stdout=subprocess.DEVNULL, user=NOBODY, group=NOBODY, extra_groups=[]
    )
    try:
        words = ("attach", target.pid, "-q", "-p", "progress", "-u", "function", "--only", "work_a")
        profiler = start_profiler(*words, "--speedups", "100", "-o", path, wrapper=as_user)
        wait_for_experiment(path, patience_s=40)
        profiler.send(signal.SIGINT)
        finished = profiler.wait()
        assert (finished.code, finished.out, finished.err) == (0, "", "")
        assert target.poll() is None
    finally:
        target.send_signal(signal.SIGKILL)
        target.wait()
    profile = read_profile(path)
    assert profile.end.diagnosis["pauses"] > 20 and profile.end.diagnosis["unregistered"] == 0
    assert sum(window.points[0].delta for window in profile.windows) > 20
    # Its profile, and nothing else anywhere.
    assert of_that_user([place]) == [path] and of_that_user(SHARED) == [place]


def test_the_command_gets_none_of_them(causal_bpf, as_user, place):
    words = ("run", "-q", "-p", "write@libc", "-u", "thread", "-o", place / "profile.jsonl", "--")
    finished = causal_bpf(*words, "grep", "-E", "^Cap(Eff|Amb)", "/proc/self/status", wrapper=as_user)
    assert finished.code == 0
    assert [int(line.split()[1], 16) for line in finished.out.splitlines()] == [0, 0]
