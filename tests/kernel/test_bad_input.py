"""What goes wrong for users: each mistake gets one `error:` line, one `hint:` line and the right exit code."""

import os
import shutil
import subprocess

import pytest

from causal.profile import read_profile
from tests.kernel.profiler import is_alive, target_of, wait_until

TINY = "int main(void) { return 0; }\n"


@pytest.fixture
def compiled(tmp_path):
    """`compiled(*flags)`: a small program built with these flags."""

    def build(*flags):
        source, program = tmp_path / "tiny.c", tmp_path / "tiny"
        source.write_text(TINY)
        subprocess.run(["gcc", "-O1", *flags, "-o", program, source], check=True, timeout=60)
        return program

    return build


@pytest.fixture
def stripped(workloads, tmp_path):
    program = tmp_path / "stripped"
    subprocess.run(["strip", "-o", program, workloads / "sleeper"], check=True, timeout=60)
    return program


# --- the command ----------------------------------------------------------------------------------------------------


def test_command_not_found(causal_bpf, tmp_path):
    run = ("run", "-p", "progress", "--")
    causal_bpf(*run, "no-such-command").assert_error(127, "command not found: no-such-command", "spelling")
    causal_bpf(*run, tmp_path / "none").assert_error(127, "command not found", "path")


def test_command_not_executable(causal_bpf, tmp_path):
    file = tmp_path / "data"
    file.write_text("no program")
    causal_bpf("run", "-p", "progress", "--", file).assert_error(126, "cannot execute .*permission", "chmod")
    file.chmod(0o755)
    causal_bpf("run", "-p", "progress", "--", file).assert_error(126, "cannot execute .*neither", "sh ")
    causal_bpf("run", "-p", "progress", "--", tmp_path).assert_error(126, "cannot execute", ".")


def test_script_without_its_interpreter(causal_bpf, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    causal_bpf("run", "-p", "progress", "--", script).assert_error(127, "/nowhere/interpreter", ".")


def test_setuid_program_of_a_user(causal_bpf, compiled):
    program = compiled()
    program.chmod(0o4755)
    user = {"SUDO_UID": "65534", "SUDO_GID": "65534"}
    finished = causal_bpf("run", "-p", "main", "--", program, environment=user)
    finished.assert_error(1, "set-user-id", "copy|root shell")


def test_stripped_program(causal_bpf, record, stripped):
    finished = causal_bpf("run", "-p", "progress", "--", stripped)
    finished.assert_error(1, "no function progress in stripped", "stripped: only the functions it exports")
    recording = record(stripped, "--beside", 0, point="clock_nanosleep@libc", options=["--duration", "1s"])
    assert recording.finished.code == 0
    note = next(message for message in recording.profile.end.messages if "is stripped" in message)
    assert "--unit module" in note and "--unit thread" in note
    # And that is true.
    options = ["--duration", "2s", "-u", "module"]
    recording = record(stripped, "--beside", 0, point="clock_nanosleep@libc", options=options)
    assert recording.finished.code == 0
    assert recording.share("stripped") > 0.5


def test_not_root(causal_bpf, workloads):
    # The right to read anything, so that it does not matter where this checkout lies; no other.
    reader = "-all,+dac_read_search"
    wrapper = [
        shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups",
        f"--inh-caps={reader}", f"--ambient-caps={reader}", "--",
    ]  # fmt: skip
    finished = causal_bpf("run", "-p", "progress", "--", workloads / "barrier", wrapper=wrapper)
    finished.assert_error(1, "cannot profile here: privileges: uid 65534 without", "root.* sudo .*causal-bpf run")


# --- progress points and regions ------------------------------------------------------------------------------------


def test_point_not_found(causal_bpf, workloads):
    run = ("run", "--duration", "2s")
    finished = causal_bpf(*run, "-p", "progres", "--", workloads / "barrier")
    finished.assert_error(1, "no function progres in barrier", "did you mean .*progress")
    finished = causal_bpf(*run, "-p", "progress@libnothing", "--", workloads / "barrier")
    finished.assert_error(1, "no library that matches libnothing", "it uses .*libc")
    finished = causal_bpf(*run, "-p", "clock_nanosleep", "--", workloads / "barrier")
    finished.assert_error(1, "no function clock_nanosleep in barrier", "-p clock_nanosleep@libc")


def test_point_never_visited(causal_bpf, programs, tmp_path):
    path = tmp_path / "profile.jsonl"
    # At higher speedups windows are longer, and a pair may not fit into what is left after the first look.
    words = ("-p", "never_called", "--speedups", 25, "--duration", "6s", "-o", path)
    finished = causal_bpf("run", *words, "--", programs / "ending", 100_000, 0)
    assert finished.code == 0 and finished.err == ""
    text = " ".join(finished.out.split())
    assert "Nothing to conclude: never_called was never visited during an experiment: name a function with -p" in text


def test_region_not_found(causal_bpf, workloads):
    finished = causal_bpf("run", "-p", "progress", "--only", "wurk_a", "--", workloads / "barrier")
    finished.assert_error(1, "no line in scope is called wurk_a", "did you mean .*work_a")


def test_program_that_ends_at_once(causal_bpf):
    finished = causal_bpf("run", "-p", "write@libc", "--", "true")
    assert finished.code == 0 and finished.err == ""
    text = " ".join(finished.out.split())
    assert "Nothing to conclude: " in text and ("ended before" in text or "used no CPU time" in text)


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--speedups", "110", "from 0 to 100"),
        ("--speedups", "fast", "not a speedup"),
        ("--speedups", "0", "above 0"),
        ("--duration", "soon", "not a duration"),
        ("--duration", "0", "not a duration"),
        ("--period", "1us", "between 50us and 100ms"),
        ("--period", "often", "not a duration"),
        ("--repeat", "0", "above 0"),
        ("--unit", "galaxy", "invalid choice"),
        ("--seed", "x", "invalid int"),
    ],
)
def test_values_without_sense(causal_bpf, option, value, complaint):
    point = () if option == "--repeat" else ("-p", "progress")
    causal_bpf("run", *point, option, value, "--", "true").assert_error(2, complaint, ".")


def test_no_command(causal_bpf):
    causal_bpf("run", "-p", "progress").assert_error(2, "no command", "--")


# --- the profile ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for two windows or three."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "small", place], check=True, timeout=60)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True, timeout=60)


def test_disk_full(start_profiler, programs, small_disk, tmp_path):
    path, counted = small_disk / "profile.jsonl", tmp_path / "rounds"
    profiler = start_profiler("run", "-p", "progress", "-o", path, "--", programs / "counted", counted)
    target = target_of(path)
    finished = profiler.wait()
    finished.assert_error(1, "disk is full", f"free some space.*process {target}")
    # What was recorded can be read, and the target goes on.
    assert any(window.arm == "treated" for window in read_profile(path).windows)
    before = counted.read_bytes()
    wait_until(lambda: counted.read_bytes() != before, "progress of a target left alone")
    assert is_alive(target)


def test_disk_full_from_the_start(start_profiler, programs, tmp_path):
    profiler = start_profiler("run", "-p", "progress", "-o", "/dev/full", "--", programs / "ending", 1000, 0)
    profiler.wait().assert_error(1, "disk is full", "free some space")


def test_directory_that_cannot_be_written(causal_bpf, tmp_path):
    finished = causal_bpf("run", "-p", "write@libc", "-o", tmp_path / "none" / "x.jsonl", "--", "true")
    finished.assert_error(1, "cannot create", "-o")
    assert not os.path.exists(tmp_path / "none")
