"""The program that `run` starts: held at its gate, with the stub in its environment, and its end as shells tell it."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from causal.child import STUB_PATH, Child, Owner, Preload, invoking_user
from causal.errors import CausalError

SHELL = shutil.which("sh")
PATIENCE_S = 30


@pytest.fixture
def start():
    """`start("exit 3")` is a Child that waits at its gate to run this in a shell."""
    children = []

    def fork(script, preload=None, program=SHELL):
        children.append(Child.start(program, ["sh", "-c", script], preload, owner=None))
        return children[-1]

    yield fork
    for child in children:
        if child.status is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


def soon(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_how_it_ended(start, script, status):
    child = start(script)
    child.release()
    assert child.wait() == status
    assert child.poll() == child.wait() == status  # as often as one likes


def test_it_waits_at_its_gate(start, tmp_path):
    marker = tmp_path / "marker"
    child = start(f"echo here > {marker}")
    time.sleep(0.05)
    assert child.poll() is None and not marker.exists()
    child.release()
    assert child.wait() == 0 and marker.exists()


def test_it_never_runs_when_the_profiler_gives_up_before(start, tmp_path):
    marker = tmp_path / "marker"
    child = start(f"echo here > {marker}")
    os.close(child._gate)
    assert child.wait() == 126
    assert not marker.exists()


def test_while_it_runs_there_is_no_status(start):
    child = start("exec sleep 60")
    child.release()
    assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    soon(lambda: child.poll() == 137)


def unreadable(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    return path


def directory(tmp_path):
    return tmp_path


def interpreter_missing(tmp_path):
    path = tmp_path / "script"
    path.write_text("#!/nowhere/interpreter\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("make", "code"),
    [(lambda path: path / "none", 127), (interpreter_missing, 127), (unreadable, 126), (directory, 126)],
)
def test_what_cannot_be_executed(start, tmp_path, make, code):
    child = start("", program=str(make(tmp_path)))
    with pytest.raises(CausalError) as caught:
        child.release()
    assert caught.value.exit_code == code
    assert "cannot execute sh" in caught.value.message and caught.value.hint
    assert child.status is not None  # nothing is left behind


def test_terminated(start):
    child = start("exec sleep 60")
    child.release()
    assert child.terminate(PATIENCE_S, time.sleep) == 143


def test_never_more_than_asked_to_end(start, tmp_path):
    ready = tmp_path / "ready"
    child = start(f"trap '' TERM; echo > {ready}; while :; do sleep 0.05; done")
    child.release()
    soon(ready.exists)
    slept = []

    def sleep(seconds):
        slept.append(seconds)

    assert child.terminate(1.0, sleep) is None
    assert sum(slept) == pytest.approx(1.0, abs=0.05)
    assert child.poll() is None


def test_terminating_what_has_ended(start):
    child = start("exit 4")
    child.release()
    child.wait()
    assert child.terminate(1.0, time.sleep) == 4


# --- what it inherits -----------------------------------------------------------------------------------------------


@pytest.fixture
def printed(start, tmp_path):
    """Run a shell script under a Child and return what it prints."""

    def run(script, preload=None):
        output = tmp_path / "output"
        child = start(f"exec > {output}; {script}", preload)
        child.release()
        assert child.wait() == 0
        return output.read_text()

    return run


def masks(text):
    return {line.split(":")[0]: int(line.split()[1], 16) for line in text.splitlines()}


def test_signals_are_as_a_shell_gives_them(printed):
    """Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays ignored when a program is executed."""
    show = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    alone = subprocess.run([SHELL, "-c", show], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert masks(printed(show)) == masks(alone.stdout)


def test_descriptors_are_as_a_shell_gives_them(printed):
    show = "ls /proc/self/fd"
    alone = subprocess.run(
        [SHELL, "-c", show], capture_output=True, text=True, check=True, timeout=PATIENCE_S, close_fds=False
    )
    assert printed(show).split() == alone.stdout.split()


@pytest.mark.parametrize("others", ["", "/some/other.so"])
def test_the_stub_and_what_it_needs(printed, monkeypatch, others):
    monkeypatch.setenv("LD_PRELOAD", others)
    reading, writing = os.pipe()
    try:
        out = printed("echo $LD_PRELOAD $CAUSAL_BPF_STUB; ls /proc/$$/fd", Preload(reading, 4096, 23, writing, 64))
    finally:
        os.close(reading)
        os.close(writing)
    words = out.split()
    assert words[0] == (f"{STUB_PATH}:{others}" if others else str(STUB_PATH))
    descriptor, lines, number, counters, its_lines = words[1].split(":")
    assert (lines, number, its_lines) == ("4096", "23", "64")
    assert min(int(descriptor), int(counters)) >= 600  # out of the way of the program's own
    assert {descriptor, counters} <= set(words[2:])


def test_without_a_preload_the_environment_is_ours(printed, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("SOME_VARIABLE", "value")
    assert printed("echo $SOME_VARIABLE-$LD_PRELOAD-$CAUSAL_BPF_STUB") == "value--\n"


# --- who called sudo ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "environ", "owner"),
    [
        (0, {"SUDO_UID": "1000", "SUDO_GID": "100"}, Owner(1000, 100)),
        (0, {"SUDO_UID": "1000"}, Owner(1000, 1000)),
        (0, {"SUDO_UID": "0", "SUDO_GID": "0"}, None),
        (0, {"SUDO_UID": "x"}, None),
        (0, {}, None),
        (1000, {"SUDO_UID": "1001"}, None),
    ],
)
def test_the_user_behind_sudo(monkeypatch, uid, environ, owner):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert invoking_user(environ) == owner


def test_the_stub_is_where_the_package_says():
    assert Path(STUB_PATH).name == "libcausal-stub.so" and Path(STUB_PATH).parent.name == "stub"
