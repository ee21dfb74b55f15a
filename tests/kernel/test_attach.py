"""Processes that run already: the handler comes to them, they notice nothing, and they can be paused.

Most tests here bring the handler in themselves and let a loaded engine pause the target for a moment; the others run
`causal-bpf attach` as its users do.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from causal import kernel_calls
from causal.errors import CausalError
from causal.injection import Handlers, InjectionError, Table, inject
from causal.processes import executable_of, look_up
from causal.profile import read_profile
from causal.regions import RegionTable, Scope
from causal.symbols.elf import Binary
from causal.target import Target
from causal.windows import Arm, WindowPlan
from tests.kernel.profiler import is_alive, wait_for_experiment, wait_until

# bcc's own, once for each string it is given.
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")

LINES = 8192
SOURCES = Path(__file__).resolve().parents[1] / "workloads"
FLAGS = ("-std=gnu11", "-O2", "-g", "-fno-omit-frame-pointer", "-fno-inline-functions", "-pthread", "-w")


@pytest.fixture(scope="module")
def table():
    """A table of answers that no engine fills."""
    descriptor = kernel_calls.create_array_map(24 * LINES, kernel_calls.BPF_F_MMAPABLE)
    yield Table(descriptor, LINES)
    os.close(descriptor)


@pytest.fixture
def pausing(engine):
    """`pausing(pid, program)`: put a process on the clock, bring the handler in, and sped `work_a` up for a moment.

    Returns how many pauses there were, and the Handlers.
    """

    def run(pid, program, length_ns=400_000_000):
        path = os.fspath(program)
        regions = RegionTable("function", engine.options.max_ranges)
        regions.add_functions([Binary.load(path)])
        engine.write_ranges(regions.ranges)
        handlers = Handlers(Table(engine.answers_fd, engine.options.max_answers))
        target = Target(engine, regions, Scope(path), handlers)
        engine.add_process(pid)
        target.refresh()
        before = engine.counters()["pauses"]
        [region] = regions.select(["work_a"])
        engine.begin(WindowPlan(Arm.DILATION, region.id, 1.0, 0, length_ns))
        wait_until(lambda: (target.refresh(), engine.poll())[1], "the end of a window")
        engine.stop()
        return engine.counters()["pauses"] - before, handlers

    yield run
    engine.stop()
    for pid in engine.processes():
        engine.remove_process(pid)


def threads_of(pid):
    return os.listdir(f"/proc/{pid}/task")


def in_handler(pid):
    """Threads that sleep in the handler: workloads and libc sleep by clock_nanosleep, only it by nanosleep."""
    found = []
    for tid in threads_of(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0] == "35":
                found.append(tid)
    return found


# --- the target notices nothing -------------------------------------------------------------------------------------


def test_a_hostile_target_is_the_same_with_and_without_us(programs, table):
    command = [programs / "hostile", "150"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
    assert alone.stdout.count("failures 0") == 9
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = look_up(target.pid)
    descriptors = len(os.listdir("/proc/self/fd"))
    results = [inject(process, table) for _ in range(20)]
    printed = [target.stdout.readline() for _ in range(9)]
    assert "".join(printed) == alone.stdout
    wait_until(lambda: len(threads_of(target.pid)) == 1, "the end of its threads")
    # Left behind: one page of code and the table, once; no descriptor, neither here nor there.
    maps = Path(f"/proc/{target.pid}/maps").read_text()
    assert maps.count("bpf-map") == 1
    names = [os.readlink(f"/proc/{target.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{target.pid}/fd")]
    assert sorted(name.partition(":")[0] for name in names if not name.startswith("/")) == [
        "anon_inode", "pipe", "pipe",
    ]  # fmt: skip  # its own epoll and its streams
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [result.reused for result in results] == [False] + [True] * 19
    assert len({result.handler for result in results}) == 1
    target.communicate("")
    assert target.returncode == 0


def test_no_call_is_interrupted_by_an_injection(workloads, table):
    words = [workloads / "eintr", "--seconds", "2"]
    target = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process = look_up(target.pid)
    count = 0
    while target.poll() is None and count < 60:
        inject(process, table)
        count += 1
    out, _ = target.communicate(timeout=60)
    assert re.search(r"^eintr 0$", out, re.MULTILINE), out
    assert target.returncode == 0 and count > 10


NARROW = """
__attribute__((noinline)) void work(void)
{ for (volatile int i = 0; i < 1000000; i++); }
__attribute__((noinline)) void done(void) { __asm__ volatile("" ::: "memory"); }
void _start(void) { for (;;) { work(); done(); } }
"""
INJECTING = """
import sys
from causal.injection import Table, inject
from causal.processes import executable_of, look_up
process, table = look_up(int(sys.argv[1])), Table(int(sys.argv[2]), int(sys.argv[3]))
print("ready", flush=True)
while True:
    inject(process, table)
"""


def test_the_profiler_is_killed_in_the_middle_of_an_injection(programs, table):
    target = subprocess.Popen(
        [programs / "hostile", "250"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    chance = random.Random(4)
    for _ in range(10):
        words = [sys.executable, "-c", INJECTING, target.pid, table.descriptor, table.lines]
        profiler = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, pass_fds=[table.descriptor], process_group=0
        )
        assert profiler.stdout.readline() == b"ready\n"
        time.sleep(chance.random() * 0.02)
        os.killpg(profiler.pid, signal.SIGKILL)
        profiler.communicate()
    printed = [target.stdout.readline() for _ in range(9)]
    assert all(line.endswith("failures 0\n") for line in printed), printed
    target.communicate("")
    assert target.returncode == 0


def test_a_signal_that_is_pending_is_not_lost(table):
    """SIGTERM for a process in its handler-less default, while it is held again and again."""
    target = subprocess.Popen(["sleep", "60"])
    process = look_up(target.pid)
    stop = threading.Event()

    def hold():
        with contextlib.suppress(InjectionError):
            while not stop.is_set():
                inject(process, table)

    holding = threading.Thread(target=hold)
    holding.start()
    time.sleep(0.1)
    target.terminate()
    assert target.wait(20) == -signal.SIGTERM
    stop.set()
    holding.join()


def test_threads_that_block_everything_no_longer_block_our_signal(workloads, table):
    words = [workloads / "handler", "2000", "--block-all", "--seconds", "1"]
    target = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    bit = 1 << (signal.SIGURG - 1)

    def blocking():
        masks = [
            int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{target.pid}/task/{tid}/status").read_text())[1], 16)
            for tid in threads_of(target.pid)
        ]
        return sum(bool(mask & bit) for mask in masks)

    wait_until(blocking, "a thread that blocks all signals")
    assert inject(look_up(target.pid), table).repaired == 1
    assert blocking() == 0
    out, _ = target.communicate(timeout=60)
    assert target.returncode == 0 and "stolen 0" in out


# --- every kind of program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["-static", "-fsanitize=address", "musl"])
def test_programs_that_nothing_can_be_preloaded_into(pausing, tmp_path, how):
    program = tmp_path / "program"
    if how == "musl":
        if not os.path.exists("/usr/bin/musl-gcc"):
            return  # a nicety where it is there: musl is only another libc that we need not know
        command = ["musl-gcc", *FLAGS]
    else:
        command = ["cc", *FLAGS, how]
    subprocess.run([*command, "-o", program, SOURCES / "barrier.c"], check=True, timeout=60)
    target = subprocess.Popen([program, "3000", "2000"], stdout=subprocess.DEVNULL)
    try:
        pauses, handlers = pausing(target.pid, program)
        assert handlers.lacking == {} and pauses > 10
        assert target.poll() is None
        time.sleep(0.05)
        assert in_handler(target.pid) == []
    finally:
        target.kill()
        target.wait()


def test_a_target_in_namespaces_of_its_own(pausing, workloads):
    """Its threads have other numbers than the host gives them; the table is looked up by theirs."""
    command = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", workloads / "barrier", "3000", "2000"]
    outer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        inner = int(wait_until(lambda: children.read_text(), "the process in the namespace"))
        wait_until(lambda: len(threads_of(inner)) == 2, "its threads")
        pauses, handlers = pausing(inner, executable_of(inner))
        assert handlers.lacking == {} and pauses > 10
    finally:
        outer.kill()
        outer.wait()


def test_a_program_that_was_executed_meanwhile_gets_the_handler(pausing, workloads):
    target = subprocess.Popen([workloads / "execer", "3000", "25", "--execs", "30"], stdout=subprocess.DEVNULL)
    try:
        pauses, handlers = pausing(target.pid, workloads / "execer", 800_000_000)
        assert pauses > 10
        assert handlers.done[target.pid].reused is False
    finally:
        target.kill()
        target.wait()


# --- as users do it -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(workloads):
    """Two processes that answer each other, of one program, and a link to it under another name."""
    process = subprocess.Popen(
        [workloads / "pingpong", "3000", "1500", "--processes"], stdout=subprocess.DEVNULL, process_group=0
    )
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_two_processes_are_one_system(start_profiler, causal_bpf, pair, tmp_path):
    path = tmp_path / "profile.jsonl"
    choice = ("-u", "function", "--only", "p*ng_work", "--speedups", "100")
    words = ("attach", pair.pid, "-q", "-p", "progress", *choice, "-o", path)
    profiler = start_profiler(*words)
    wait_for_experiment(path)
    # A second one has to wait, and says so.
    second = causal_bpf("attach", pair.pid, "-p", "progress", "-o", tmp_path / "second.jsonl")
    second.assert_error(1, f"process {pair.pid} \\(pingpong\\) is being profiled by another causal-bpf", "Ctrl-C")
    profiler.send(signal.SIGINT)
    finished = profiler.wait()
    assert (finished.code, finished.out, finished.err) == (0, "", "")
    profile = read_profile(path)
    assert profile.end.reason == "interrupt"
    assert not [message for message in profile.end.messages if "paused" in message]
    assert profile.header.pid == pair.pid and profile.header.options["attached"] == [pair.pid]
    # Work of the child is seen too, and both are paused.
    assert profile.samples["pong_work"] > 100 and profile.samples["ping_work"] > 100
    assert profile.end.diagnosis["pauses"] > 20 and profile.end.diagnosis["unregistered"] == 0
    assert is_alive(pair.pid) and in_handler(pair.pid) == []


def test_what_could_be_sped_up_in_a_running_process(in_process, pair):
    finished = in_process("attach", pair.pid, "--list-regions", "-u", "function", "--duration", "1s")
    assert (finished.code, finished.err) == (0, "")
    assert re.search(r"^ping_work +\d", finished.out, re.MULTILINE)
    assert re.search(r"^pong_work +\d", finished.out, re.MULTILINE)  # of the child
    assert is_alive(pair.pid)
    assert "bpf-map" not in Path(f"/proc/{pair.pid}/maps").read_text()


@pytest.fixture
def narrow(tmp_path):
    """A 32-bit program, without a libc."""
    source, program = tmp_path / "narrow.c", tmp_path / "narrow"
    source.write_text(NARROW)
    options = ["-m32", "-O1", "-g", "-fno-omit-frame-pointer", "-ffreestanding", "-nostdlib", "-static", "-no-pie"]
    subprocess.run(["cc", *options, "-o", program, source], check=True)
    return program


# Executes its arguments with a filter by which ptrace() fails with EPERM, as in some containers.
WITHOUT_PTRACE = """
import ctypes, os, struct, sys
rules = (0x20, 0, 0, 0), (0x15, 0, 1, 101), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
assert ctypes.CDLL(None).prctl(22, 2, struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_nothing_can_be_paused_there_are_shares_and_rates(causal_bpf, programs, narrow, tmp_path):
    """A seccomp filter, a 32-bit program, and ptrace() forbidden to us: each has its reason in the report."""
    path = tmp_path / "profile.jsonl"
    targets = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for command in ([programs / "confined"], [narrow], ["sleep", "60"])
    ]
    try:
        finished = causal_bpf(
            "attach", *(target.pid for target in targets), "-u", "function", "-p", "progress", "-p", "done",
            "--duration", "1.5s", "-o", path, wrapper=(sys.executable, "-c", WITHOUT_PTRACE),
        )  # fmt: skip
        assert finished.code == 0
        warnings = finished.err.splitlines()
        assert len(warnings) == 4 and all(line.startswith("warning: ") for line in warnings)
        assert "nothing could be paused" in warnings[0]
        profile = read_profile(path)
        assert profile.samples["work_a"] > 50 and profile.samples["work"] > 50
        assert sum(profile.serial.values()) > 0
        assert {window.arm for window in profile.windows} == {"plain"}
        assert all(sum(window.points[i].delta for window in profile.windows) > 5 for i in (0, 1))
        text = " ".join(finished.out.split())
        assert re.search(r"^work_a +\d+%", finished.out, re.MULTILINE)
        assert re.search(r"Progress point progress: [\d.,]+ visits/s Progress point done: [\d.,]+ visits/s", text)
        assert "nothing could be paused" in text and "Nothing to conclude" not in text
        whys = "seccomp", "32-bit", "may not be traced: Operation not permitted; run as root"
        for target, why in zip(targets, whys, strict=True):
            assert re.search(rf"not paused: {target.pid}: [^:]*{why}", text), text
            assert target.poll() is None
    finally:
        for target in targets:
            target.kill()
            target.wait()


def test_a_32_bit_program_has_shares_and_rates(causal_bpf, narrow, tmp_path):
    words = ("-p", "done", "-u", "line", "--duration", "1s", "-o", tmp_path / "profile.jsonl", "--", narrow)
    finished = causal_bpf("run", "--quiet", *words)
    assert (finished.code, finished.err) == (0, "")
    profile = read_profile(tmp_path / "profile.jsonl")
    assert profile.samples["narrow.c:3"] > 0.9 * profile.end.samples
    assert sum(window.points[0].delta for window in profile.windows) > 5
    assert any("32-bit" in message for message in profile.end.messages)


def test_a_process_that_is_traced_already(causal_bpf):
    target = subprocess.Popen([sys.executable, "-c", TRACED])
    try:
        wait_until(
            lambda: "TracerPid:\t0" not in Path(f"/proc/{target.pid}/status").read_text(), "its being traced"
        )
        finished = causal_bpf("attach", target.pid, "-p", "x")
        finished.assert_error(1, rf"is being traced already by process {os.getpid()} \(", "--no-pauses")
    finally:
        target.kill()
        target.wait()


TRACED = """
import ctypes, time
ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
time.sleep(60)
"""


def test_processes_that_are_not_there(causal_bpf):
    causal_bpf("attach", 4_194_304, "-p", "x").assert_error(1, "there is no process 4194304", "pgrep")
    causal_bpf("attach", "--name", "no-such-name", "-p", "x").assert_error(1, "no process is called", "pgrep")
    causal_bpf("attach", 2, "-p", "x").assert_error(1, "a thread of the kernel", "program")


def test_a_process_that_ends_meanwhile(table):
    target = subprocess.Popen(["sleep", "60"])
    process = look_up(target.pid)
    target.kill()
    target.wait()
    with pytest.raises(InjectionError) as caught:
        inject(process, table)
    assert caught.value.reason == "gone"


def test_another_process_with_its_number(table):
    target = subprocess.Popen(["sleep", "60"])
    process = look_up(target.pid)
    try:
        with pytest.raises(InjectionError) as caught:
            inject(type(process)(process.pid, process.start - 1, process.name, process.executable), table)
        assert caught.value.reason == "gone"
        assert "bpf-map" not in Path(f"/proc/{target.pid}/maps").read_text()
    finally:
        target.kill()
        target.wait()


def test_limits_of_the_target_are_its_own(table):
    """At its limit of open files nothing can be passed to it; it keeps what it had."""
    script = "import resource as r, time; r.setrlimit(r.RLIMIT_NOFILE, (3, 3)); print(1, flush=True); time.sleep(60)"
    target = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert target.stdout.readline() == b"1\n"
        with pytest.raises(CausalError) as caught:
            inject(look_up(target.pid), table)
        assert "Too many open files" in caught.value.message and "limits" in caught.value.hint
        assert "bpf-map" not in Path(f"/proc/{target.pid}/maps").read_text()
        assert target.poll() is None
    finally:
        target.kill()
        target.communicate()




def test_garbage_in_the_table_of_pauses(engine, launch, regions_of, programs):
    """A target that was given the descriptor can write what it likes: its pauses end, and so does it."""
    program = programs / "oddities"
    target, regions = regions_of(program)
    child = launch(program, "vandal", 700)
    wait_until(lambda: (target.refresh(), engine.registered(child.pid))[1], "the handler")
    before = engine.counters()
    engine.begin(WindowPlan(Arm.DILATION, regions["work_a"], 1.0, 0, 300_000_000))
    wait_until(engine.poll, "the end of a window")
    engine.stop()
    assert child.wait() == 0
    after = engine.counters()
    assert after["pauses"] > before["pauses"] and after["signals_lost"] == before["signals_lost"]
