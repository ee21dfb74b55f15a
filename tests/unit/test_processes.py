"""Processes as a user names them: found in a made-up /proc, and refused with a reason."""

import errno
import os
import socket
import subprocess

import pytest

from causal.errors import CausalError
from causal.processes import Claims, Process, descendants, in_cgroup, look_up, named, obstacle, refuse_traced

KERNEL_THREAD = 0x00200040


@pytest.fixture
def proc(tmp_path):
    """`proc(pid, ...)` adds a process to a /proc, which is `proc.path`."""

    class Proc:
        path = tmp_path / "proc"

        def __call__(self, pid, name="prog", state="S", parent=1, flags=64, start=777, exe="/bin/prog", **status):
            place = self.path / str(pid)
            (place / "ns").mkdir(parents=True)
            (place / "task" / str(pid)).mkdir(parents=True)
            fields = [state, parent, 0, 0, 0, 0, flags, *([0] * 12), start, 0]
            (place / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
            status = {"Name": name, "Tgid": pid, "TracerPid": 0, "Uid": "1000 1000 1000 1000", "Seccomp": 0} | status
            text = "".join(f"{key}:\t{value}\n" for key, value in status.items())
            (place / "status").write_text(text)
            (place / "task" / str(pid) / "status").write_text(text)
            if exe:
                (place / "exe").symlink_to(exe)
            return place

    (tmp_path / "proc").mkdir()
    return Proc()


def refused(call, *arguments, **options):
    with pytest.raises(CausalError) as caught:
        call(*arguments, **options)
    assert caught.value.hint
    return caught.value.message


def test_a_process_is_its_number_and_its_start(proc):
    proc(12, name="a (b) c", start=4711)
    assert look_up(12, proc.path) == Process(12, 4711, "a (b) c", "/bin/prog")


def test_what_is_no_program(proc):
    proc(2, name="kthreadd", flags=KERNEL_THREAD, exe=None)
    proc(5, state="Z", exe=None)
    proc(7, Tgid=6)
    assert "there is no process 99" in refused(look_up, 99, proc=proc.path)
    assert "a thread of the kernel" in refused(look_up, 2, proc=proc.path)
    assert "zombie" in refused(look_up, 5, proc=proc.path)
    assert "7 is a thread of process 6" in refused(look_up, 7, proc=proc.path)
    assert "causal-bpf itself" in refused(look_up, os.getpid())


def test_by_name(proc):
    proc(10, name="server")
    proc(11, name="worker", exe="/usr/sbin/server")
    proc(12, name="server", state="Z")
    proc(13, name="other")
    assert sorted(named("server", proc.path)) == [10, 11]
    assert "no process is called serve" in refused(named, "serve", proc=proc.path)


def test_children_and_theirs(proc):
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1), (14, 13), (15, 10)):
        proc(pid, parent=parent)
    assert sorted(descendants([10], proc.path)) == [11, 12, 15]
    assert sorted(descendants([10, 13], proc.path)) == [11, 12, 14, 15]
    assert sorted(descendants([10, 11], proc.path)) == [12, 15]


def test_by_control_group(tmp_path):
    group = tmp_path / "system.slice" / "a.service"
    (group / "below").mkdir(parents=True)
    (group / "cgroup.procs").write_text("10\n0\n")
    (group / "below" / "cgroup.procs").write_text(f"11\n{os.getpid()}\n")
    (tmp_path / "system.slice" / "cgroup.procs").write_text("")
    assert sorted(in_cgroup("system.slice/a.service", tmp_path)) == [10, 11]
    assert sorted(in_cgroup(str(group), tmp_path)) == [10, 11]
    assert "no control group nothing" in refused(in_cgroup, "nothing", root=tmp_path)
    (group / "cgroup.procs").write_text("")
    (group / "below" / "cgroup.procs").write_text("")
    assert "has no processes" in refused(in_cgroup, "system.slice", root=tmp_path)


@pytest.mark.parametrize(("level", "may_trace_all", "why", "remedy"), [
    (None, False, None, None), (0, False, None, None), (1, True, None, None), (2, True, None, None),
    (1, False, "own children", "ptrace_scope=0"), (2, False, "needs CAP_SYS_PTRACE", "run as root"),
    (3, True, "switched off", "boot"), (3, False, "switched off", "boot"),
])  # fmt: skip
def test_what_may_be_traced(proc, tmp_path, level, may_trace_all, why, remedy):
    proc(10)
    yama = tmp_path / "ptrace_scope"
    if level is not None:
        yama.write_text(f"{level}\n")
    found = obstacle(look_up(10, proc.path), may_trace_all, proc.path, yama)
    if why is None:
        assert found is None
    else:
        assert why in found and f"ptrace_scope = {level}" in found and remedy in found


def test_programs_that_may_not_be_read(proc, monkeypatch):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "readlink", refuse)
    proc(10, name="server", Uid="4294967 0 0 0")
    assert "process 10 (server) belongs to another user" in refused(look_up, 10, proc=proc.path)
    proc(11, name="agent", Uid=f"{os.getuid()} 0 0 0")
    assert "process 11 (agent) hides what it executes" in refused(look_up, 11, proc=proc.path)


def test_the_tracer_is_named(proc):
    proc(10, name="server", TracerPid=20)
    proc(20, name="gdb")
    message = refused(refuse_traced, look_up(10, proc.path), proc.path)
    assert message == "process 10 (server) is being traced already by process 20 (gdb)"


def test_where_nobody_can_pause(proc, tmp_path):
    proc(10)
    proc(11, Seccomp=2)
    small = tmp_path / "small"
    small.write_bytes(b"\x7fELF\x01")
    proc(12, exe=small)
    found = [obstacle(look_up(pid, proc.path), True, proc.path, tmp_path / "none") for pid in (10, 11, 12)]
    assert found[0] is None and "seccomp" in found[1] and "32-bit" in found[2]


def test_one_profiler_at_a_time():
    """A mark of another process is seen here, and goes away with it."""
    process = Process(4_194_305, 1, "server", "/bin/server")
    with subprocess.Popen(
        ["python3", "-c", "import socket, sys; s = socket.socket(socket.AF_UNIX); "
         f"s.bind('\\0causal-bpf/{process.pid}/{process.start}'); print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"1\n"
        claims = Claims()
        assert "another causal-bpf" in refused(claims.claim_or_refuse, process)
        other.stdin.close()
        other.wait()
    claims.claim_or_refuse(process)
    with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(ConnectionRefusedError):
        stranger.connect(f"\0causal-bpf/{process.pid}/{process.start}")
    assert claims.claim(process)  # again is no conflict
    assert not Claims().claim(process)
    claims.release(process.pid + 1)
    assert not Claims().claim(process)
    claims.release(process.pid)
    assert claims.claim(process)
    claims.close()


def test_without_descriptors_nothing_is_marked(monkeypatch):
    def none_left(*_):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("socket.socket", none_left)
    assert Claims().claim(look_up(os.getppid()))
