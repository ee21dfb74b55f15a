"""Capabilities: what each probe says when the thing is there, and when it is not."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from causal import capabilities, kernel_calls
from causal.errors import CausalError
from causal.tracefs import available_events, events_if_readable


def refuse(code):
    def call(*_arguments, **_options):
        raise OSError(code, os.strerror(code))

    return call


@pytest.fixture
def unprivileged(monkeypatch):
    """A user without capabilities to whom the kernel refuses everything."""
    monkeypatch.setattr(kernel_calls, "effective_capabilities", frozenset)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/causal-bpf", "run", "--", "./a b"])
    for name in ("create_array_map", "load_program", "open_perf_event", "create_uprobe_multi_link", "mount"):
        monkeypatch.setattr(kernel_calls, name, refuse(errno.EPERM))


def found(name):
    return next(each for each in capabilities.probe() if each.name == name)


def test_every_missing_one_has_a_remedy(unprivileged):
    missing = [each for each in capabilities.probe() if not each.ok]
    assert {"privileges", "bpf maps", "mmapable maps", "signals from BPF", "cpu-clock event"} <= {
        each.name for each in missing
    }
    assert all(each.detail and each.remedy for each in missing)


def test_the_first_missing_one_is_the_cause(unprivileged):
    missing = [each.name for each in capabilities.probe() if not each.ok and each.required]
    assert missing[0] == "privileges"


def test_require_gives_the_command_to_type(unprivileged):
    with pytest.raises(CausalError) as caught:
        capabilities.require()
    assert "privileges" in caught.value.message
    assert caught.value.hint == "run it as root: sudo /opt/venv/bin/causal-bpf run -- './a b'"
    assert caught.value.exit_code == 1


def test_require_passes_when_only_optional_ones_are_missing(monkeypatch):
    def absent():
        raise capabilities._Missing("not there", "get one")

    probes = (
        capabilities._Probe("needed", True, lambda: "there"),
        capabilities._Probe("nice", False, absent),
    )
    monkeypatch.setattr(capabilities, "_PROBES", probes)
    capabilities.require()
    assert [each.ok for each in capabilities.probe()] == [True, False]


@pytest.mark.parametrize(
    ("held", "enough"),
    [
        ({"CAP_SYS_ADMIN"}, True),
        ({"CAP_BPF", "CAP_PERFMON"}, True),
        ({"CAP_BPF"}, False),
        ({"CAP_PERFMON"}, False),
        (set(), False),
    ],
)
def test_privileges(monkeypatch, held, enough):
    monkeypatch.setattr(kernel_calls, "effective_capabilities", lambda: frozenset(held))
    assert found("privileges").ok is enough


def test_root_without_capabilities_is_told_about_containers(monkeypatch):
    monkeypatch.setattr(kernel_calls, "effective_capabilities", frozenset)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--privileged" in found("privileges").remedy


@pytest.mark.parametrize(("inode", "ok"), [(4026531836, True), (4026532201, False)])
def test_pid_namespace(monkeypatch, inode, ok):
    real_stat = os.stat

    def stat(path, *arguments, **options):
        if path == "/proc/self/ns/pid":
            return os.stat_result((0, inode, 0, 0, 0, 0, 0, 0, 0, 0))
        return real_stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert found("pid namespace").ok is ok


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("[none] integrity confidentiality\n", True),
        ("none [integrity] confidentiality\n", True),
        ("none integrity [confidentiality]\n", False),
        (None, True),
    ],
)
def test_lockdown(monkeypatch, tmp_path, text, ok):
    path = tmp_path / "lockdown"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(capabilities, "LOCKDOWN_PATH", path)
    assert found("lockdown").ok is ok


def test_foreign_bcc_is_recognised(monkeypatch, tmp_path):
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    bcc = found("bcc")
    assert not bcc.ok
    assert "another project" in bcc.detail
    assert "pip uninstall bcc" in bcc.remedy


def test_absent_bcc_has_a_remedy(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    bcc = found("bcc")
    assert not bcc.ok
    assert "python3-bpfcc" in bcc.remedy or "--system-site-packages" in bcc.remedy


def test_absent_stub(monkeypatch, tmp_path):
    monkeypatch.setattr(capabilities, "STUB_PATH", tmp_path / "libcausal-stub.so")
    assert "scripts/setup" in found("stub library").remedy


def test_stub_that_ld_so_refuses(monkeypatch, tmp_path):
    path = tmp_path / "libcausal-stub.so"
    path.write_bytes(b"not ELF")
    monkeypatch.setattr(capabilities, "STUB_PATH", path)
    stub = found("stub library")
    assert not stub.ok
    assert "cannot be preloaded" in stub.detail


def test_stub_in_a_path_that_ld_so_splits(monkeypatch, tmp_path):
    path = tmp_path / "my programs" / "libcausal-stub.so"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(capabilities, "STUB_PATH", path)
    assert "blank" in found("stub library").detail


def test_tracefs_that_is_mounted_is_used(monkeypatch, tmp_path):
    (tmp_path / "second" / "events").mkdir(parents=True)
    monkeypatch.setattr(capabilities, "TRACEFS_PATHS", (tmp_path / "first", tmp_path / "second"))
    assert capabilities.ensure_tracefs() == tmp_path / "second"


def test_events_that_cannot_be_read(monkeypatch, tmp_path):
    """The directory may be open where the file is not; whoever only wants advice goes on without."""
    (tmp_path / "events").mkdir()
    monkeypatch.setattr(capabilities, "TRACEFS_PATHS", (tmp_path,))
    (tmp_path / "available_events").write_text("sched:sched_switch\nsyscalls:sys_exit_write\n")
    assert events_if_readable() == available_events() == {"sched:sched_switch", "syscalls:sys_exit_write"}
    (tmp_path / "available_events").unlink()
    (tmp_path / "available_events").mkdir()  # fails for root, too
    with pytest.raises(CausalError, match=r"cannot read .*available_events"):
        available_events()
    assert events_if_readable() == frozenset()


def test_tracefs_is_mounted_by_root(monkeypatch, tmp_path):
    mounted = []
    monkeypatch.setattr(capabilities, "TRACEFS_PATHS", (tmp_path,))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kernel_calls, "mount", lambda *arguments: mounted.append(arguments))
    assert capabilities.ensure_tracefs() == tmp_path
    assert mounted == [("tracefs", tmp_path, "tracefs")]


@pytest.mark.parametrize("user", [0, 1000])
def test_tracefs_out_of_reach(monkeypatch, tmp_path, user):
    monkeypatch.setattr(capabilities, "TRACEFS_PATHS", (tmp_path,))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(kernel_calls, "mount", refuse(errno.EPERM))
    with pytest.raises(CausalError) as caught:
        capabilities.ensure_tracefs()
    assert caught.value.hint
    assert not found("tracefs").ok and not found("tracefs").required


def test_absent_tracepoints_are_named(monkeypatch):
    first, *others = capabilities.TRACEPOINTS
    types = SimpleNamespace(has_tracepoint=lambda name: name in others)
    monkeypatch.setattr(capabilities, "kernel_types", lambda path: types)
    assert found("tracepoints").detail == f"no {first}"


def test_tracing_that_is_forbidden_is_no_reason_not_to_profile(monkeypatch):
    monkeypatch.setattr(capabilities, "forbidden_by_yama", lambda may_trace_all: "tracing is off; boot again")
    injector = found("injector")
    assert not injector.ok and not injector.required
    assert injector.detail == "tracing is off" and "boot again" in injector.remedy


@pytest.mark.parametrize(("code", "ok"), [(errno.EBADF, True), (errno.EINVAL, False), (errno.EPERM, False)])
def test_uprobe_multi_is_told_by_the_refusal(monkeypatch, code, ok):
    monkeypatch.setattr(kernel_calls, "create_uprobe_multi_link", refuse(code))
    assert found("uprobe_multi link").ok is ok


def test_old_kernel_is_named_as_the_cause(monkeypatch):
    monkeypatch.setattr(kernel_calls, "load_program", refuse(errno.EINVAL))
    assert "newer kernel" in found("user registers").remedy


def test_hidden_proc_is_no_traceback(monkeypatch):
    monkeypatch.setattr(kernel_calls, "effective_capabilities", refuse(errno.ENOENT))
    assert not found("privileges").ok


def test_probing_imports_neither_bcc_nor_numpy():
    script = (
        "import sys; from causal import capabilities; capabilities.probe();"
        "sys.exit(str({'bcc', 'numpy'} & set(sys.modules)) if {'bcc', 'numpy'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
