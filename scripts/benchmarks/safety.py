"""Does the target ever notice? Attaches to programs that are easy to break, and does to the profiler what users do.

    scripts/bench safety programs               each program's output with and without us
    scripts/bench safety cycles --count 1000    the handler brought in, pauses, and off the clock again
    scripts/bench safety attaches --count 20    the whole of `causal-bpf attach`, one after another, on one target
    scripts/bench safety kills --count 200      SIGKILL to a profiler whose target is being paused, at random moments
    scripts/bench safety stops --count 200      SIGSTOP likewise
    scripts/bench safety injections --count 200 SIGKILL to a profiler that does nothing but inject
    scripts/bench safety sanitizers             targets under AddressSanitizer and ThreadSanitizer
    scripts/bench safety source                 compiler warnings and the static analysers that are there

Needs root. Prints what it did and what went wrong; the exit code is 1 when anything did. With --report FILE a line per
part is added to a table of that file.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from causal.engine import Engine
from causal.injection import Handlers, InjectionError, Table, inject
from causal.processes import look_up
from causal.regions import RegionTable, Scope
from causal.symbols.elf import Binary
from causal.target import Target
from causal.windows import Arm, EngineOptions, WindowPlan

from .cases import ROOT

PROGRAM = Path(sys.executable).with_name("causal-bpf")
WORKLOADS = ROOT / "tests" / "workloads"
PROGRAMS = ROOT / "tests" / "kernel" / "programs"
WINDOW_NS = 150_000_000
PATIENCE_S = 120
# Threads must be out of the handler, and the target at its pace again, so long after the profiler is gone.
GRACE_S = 0.1
FLAGS = ("-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-w")
# Lines that tell the time differ from run to run.
_TIMES = re.compile(r"^rounds \d+ seconds .*\n", re.MULTILINE)


@dataclass
class Result:
    """What a part did: a line of the report, and what went wrong."""

    part: str
    done: str = ""
    failures: list[str] = field(default_factory=list)

    def check(self, good: bool, complaint: str) -> None:
        if not good:
            self.failures.append(complaint)
            print(f"  FAILED: {complaint}", flush=True)


@dataclass(frozen=True)
class Case:
    """A program, the region that is sped up in it, and what its output must match (None: that of a run alone)."""

    words: tuple[str, ...]
    region: str = "work_a"
    expected: str | None = None

    @property
    def name(self) -> str:
        return " ".join(self.words)


CASES = (
    Case(("hostile", "700"), "compute"),
    Case(("checksum", "600", "3000"), "mix_lane"),
    Case(("eintr", "--seconds", "8"), expected=r"eintr 0$"),
    Case(("handler", "2000", "--own", "--after", "100", "--seconds", "3"), expected="stolen 0"),
    Case(("handler", "2000", "--own", "--wait", "--seconds", "3"), expected="stolen 0"),
    Case(("handler", "2000", "--block-all", "--wait", "--seconds", "3"), expected="stolen 0"),
    Case(("handler", "2000", "--ignore", "--seconds", "3"), expected="stolen 0"),
    Case(("sigstack", "--seconds", "3"), expected="overflows 0"),
    Case(("dispositions", "1500")),
    Case(("execer", "3000", "60", "--execs", "20")),
    Case(("manythreads", "200", "--threads", "2000", "--rounds", "6001")),
    Case(("oddities", "short-threads", "3000")),
    Case(("oddities", "coroutines", "3000")),
    Case(("oddities", "raw-clone", "3000")),
    Case(("oddities", "signalfd", "2000")),
    Case(("oddities", "io-uring", "1000")),
    Case(("oddities", "seccomp-later", "2000")),
)


# --- machinery ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def built() -> Iterator[Path]:
    """A directory with all the programs."""
    with tempfile.TemporaryDirectory(prefix="causal-safety-") as name:
        for source in (WORKLOADS, PROGRAMS):
            subprocess.run(["make", "--silent", "-C", source, f"BUILD={name}"], check=True)
        yield Path(name)


@contextlib.contextmanager
def started(words: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """A target in a group of its own, whose standard input stays open."""
    process = subprocess.Popen(
        list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream
            with contextlib.suppress(OSError):
                stream.close()


def alone(words: Sequence[str | Path]) -> str:
    done = subprocess.run(
        list(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return f"{_TIMES.sub('', done.stdout)}exit {done.returncode}\n"


class Attachment:
    """A loaded engine that can be put on one program after another."""

    def __init__(self, engine: Engine, program: Path, region: str) -> None:
        self.engine = engine
        path = os.path.realpath(program)
        table = RegionTable("function", engine.options.max_ranges)
        table.add_functions([Binary.load(path)])
        engine.write_ranges(table.ranges)
        self.region = table.select([region])[0].id
        self.handlers = Handlers(Table(engine.answers_fd, engine.options.max_answers))
        self.target = Target(engine, table, Scope(path), self.handlers)

    def pause(self, length_ns: int = WINDOW_NS) -> None:
        """One window in which everybody pauses as much as the region runs."""
        self.engine.begin(WindowPlan(Arm.DILATION, self.region, 1.0, 0, length_ns))
        end = time.monotonic() + 2 + length_ns / 1e9
        while self.engine.poll() is None and time.monotonic() < end:
            self.target.refresh()
            time.sleep(0.02)
        self.engine.stop()

    def cycle(self, pid: int) -> None:
        """Attach, pause, detach."""
        self.handlers = Handlers(Table(self.engine.answers_fd, self.engine.options.max_answers))
        self.target._handlers = self.handlers
        self.target._versions.clear()
        self.engine.add_process(pid)
        self.target.refresh()
        self.pause(30_000_000)
        for each in self.engine.processes():
            self.engine.remove_process(each)


@contextlib.contextmanager
def engine_loaded() -> Iterator[Engine]:
    with Engine(EngineOptions(), random.Random(1)) as engine:
        engine.load(0)
        yield engine


def usage(pid: int) -> dict[str, int]:
    """Descriptors, threads, mappings and resident kB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "mappings": Path(f"/proc/{pid}/maps").read_text().count("\n"),
        "kB": int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]),
    }


def sleepers(pid: int) -> list[str]:
    """Threads that sleep in the handler: our programs and libc sleep by clock_nanosleep, only it by nanosleep."""
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0] == "35":
                found.append(tid)
    return found


def moves(counted: Path) -> bool:
    """Whether a target that keeps its number of rounds in a file makes some within a second."""
    before = counted.read_bytes()
    for _ in range(100):
        time.sleep(0.01)
        if counted.read_bytes() != before:
            return True
    return False


# --- parts ----------------------------------------------------------------------------------------------------------


def programs(options: argparse.Namespace) -> Result:
    """Output with and without us; windows of pauses all the time, the handler brought in again and again."""
    result = Result("programs")
    chosen = [case for case in CASES if options.only in case.name]
    pauses = injections = 0
    with built() as directory, engine_loaded() as engine:
        for case in chosen:
            words = [directory / case.words[0], *case.words[1:]]
            expected = case.expected or re.escape(alone(words))
            with started(words) as target:
                attachment = Attachment(engine, words[0], case.region)
                before = engine.counters()["pauses"]
                output = _collect(target, case)
                count = 0
                engine.add_process(target.pid)
                while output.is_alive():
                    attachment.pause()
                    with contextlib.suppress(Exception):
                        inject(look_up(target.pid), attachment.handlers.table)
                        count += 1
                for each in engine.processes():
                    engine.remove_process(each)
                text = f"{_TIMES.sub('', output.text)}exit {target.wait(PATIENCE_S)}\n"
            paused = engine.counters()["pauses"] - before
            good = bool(re.search(expected, text, re.MULTILINE)) and text.endswith("exit 0\n")
            result.check(good, f"{case.name}: {text[-300:]!r}")
            result.check(paused > 0 or "signalfd" in case.name, f"{case.name}: nothing was paused")
            print(f"  {case.name}: {paused} pauses, {count} injections", flush=True)
            pauses, injections = pauses + paused, injections + count
    result.done = f"{len(chosen)} programs, {injections:,} injections, {pauses:,} pauses"
    return result


class _Output(threading.Thread):
    """Reads what a target prints; ends when the target has printed all (it may wait for its input to end)."""

    def __init__(self, target: subprocess.Popen[str], last: int | None) -> None:
        super().__init__(daemon=True)
        self.target, self.last, self.text = target, last, ""
        self.start()

    def run(self) -> None:
        assert self.target.stdout and self.target.stdin
        for number, line in enumerate(self.target.stdout, start=1):
            self.text += line
            if number == self.last:
                self.target.stdin.close()


def _collect(target: subprocess.Popen[str], case: Case) -> _Output:
    return _Output(target, 9 if case.words[0] == "hostile" else None)


def cycles(options: argparse.Namespace) -> Result:
    """Attach and detach within one profiler, on a target that allocates, loads, forks, unwinds and jumps."""
    result = Result("cycles")
    rounds, targets, pauses = 3000, 0, 0
    with built() as directory, engine_loaded() as engine:
        program = directory / "hostile"
        expected = alone([program, str(rounds)])
        done = 0
        while done < options.count:
            with started([program, str(rounds)]) as target:
                attachment = Attachment(engine, program, "compute")
                output = _Output(target, None)
                before = engine.counters()["pauses"]
                first: dict[str, int] = {}
                while output.text.count("\n") < 9 and done < options.count:
                    attachment.cycle(target.pid)
                    done += 1
                    first = first or usage(os.getpid())
                wait = time.monotonic() + PATIENCE_S
                while output.text.count("\n") < 9 and time.monotonic() < wait:
                    time.sleep(0.02)
                time.sleep(0.2)
                last, ours = usage(target.pid), usage(os.getpid())
                assert target.stdin
                target.stdin.close()
                text = f"{output.text}exit {target.wait(PATIENCE_S)}\n"
                pauses += engine.counters()["pauses"] - before
                targets += 1
            result.check(text == expected, f"target {targets}: {text!r}")
            result.check(last["threads"] == 1, f"target {targets}: {last['threads']} threads at the end")
            result.check(last["descriptors"] == 4, f"target {targets}: {last['descriptors']} descriptors at the end")
            result.check(last["mappings"] < 60, f"target {targets}: {last['mappings']} mappings at the end")
            result.check(ours["descriptors"] <= first["descriptors"], f"our descriptors: {first} -> {ours}")
            result.check(ours["kB"] < first["kB"] + 20_000, f"our memory: {first} -> {ours}")
            print(f"  {done} cycles, target {targets}: {last}; ours {ours}", flush=True)
    result.done = f"{done:,} cycles on {targets} targets, {pauses:,} pauses"
    return result


@contextlib.contextmanager
def counting_target(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    counted = directory / "rounds"
    with started([directory / "counted", counted]) as target:
        while not counted.exists() or not counted.stat().st_size:
            time.sleep(0.01)
        yield target, counted


def attach_command(pid: int, directory: Path) -> list[str]:
    profile = str(directory / "profile.jsonl")
    return [str(PROGRAM), "attach", str(pid), "-q", "-p", "progress", "--speedups", "100", "--force", "-o", profile]


def attaches(options: argparse.Namespace) -> Result:
    """`causal-bpf attach` from its start to its report, on one target."""
    result = Result("attaches")
    with built() as directory, counting_target(directory) as (target, counted):
        baseline: dict[str, int] = {}
        for number in range(options.count):
            words = [*attach_command(target.pid, directory), "--duration", "2s"]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            result.check(done.returncode == 0 and not done.stderr, f"attach {number}: {done.stderr}")
            result.check(target.poll() is None and moves(counted), f"attach {number}: the target stands still")
            now = usage(target.pid)
            baseline = baseline or now
            result.check(
                all(now[key] == baseline[key] for key in ("descriptors", "threads", "mappings")),
                f"attach {number}: {baseline} -> {now}",
            )
    result.done = f"{options.count} times, {now}"
    return result


_PROFILING = """
import random, sys
from pathlib import Path
from causal.engine import Engine
from causal.windows import EngineOptions
from benchmarks.safety import Attachment
with Engine(EngineOptions(), random.Random(1)) as engine:
    engine.load(0)
    attachment = Attachment(engine, Path(sys.argv[2]), "work_a")
    engine.add_process(int(sys.argv[1]))
    attachment.target.refresh()
    print("ready", flush=True)
    while True:
        attachment.pause(1_000_000_000)
"""


def _interrupted(options: argparse.Namespace, number: int, part: str) -> Result:
    """Kill or stop a profiler that does nothing but pause; then the target must be free within the grace."""
    result = Result(part)
    chance = random.Random(options.seed)
    busy = 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    with built() as directory, counting_target(directory) as (target, counted):
        words = [sys.executable, "-c", _PROFILING, str(target.pid), str(directory / "counted")]
        for attempt in range(options.count):
            profiler = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0, env=environment
            )
            assert profiler.stdout
            result.check(profiler.stdout.readline() == b"ready\n", f"{attempt}: the profiler did not begin")
            time.sleep(chance.uniform(0, options.longest))
            busy += bool(sleepers(target.pid))
            os.killpg(profiler.pid, number)
            time.sleep(GRACE_S)
            held = set(sleepers(target.pid))
            time.sleep(0.005)
            held &= set(sleepers(target.pid))
            result.check(not held, f"{attempt}: threads {sorted(held)} are paused {GRACE_S} s later")
            result.check(target.poll() is None and moves(counted), f"{attempt}: the target stands still")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(profiler.pid, signal.SIGKILL)
            profiler.communicate()
    result.done = f"{options.count} times; threads were just paused {busy} times"
    return result


def kills(options: argparse.Namespace) -> Result:
    """SIGKILL."""
    return _interrupted(options, signal.SIGKILL, "kills")


def stops(options: argparse.Namespace) -> Result:
    """SIGSTOP."""
    return _interrupted(options, signal.SIGSTOP, "stops")


_INJECTING = """
import sys
from causal.injection import Table, inject
from causal.processes import look_up
process, table = look_up(int(sys.argv[1])), Table(int(sys.argv[2]), 8192)
print("ready", flush=True)
while True:
    inject(process, table)
"""


def injections(options: argparse.Namespace) -> Result:
    """A profiler that does nothing but inject is killed, mostly in the middle of an injection."""
    from causal import kernel_calls

    result = Result("injections")
    chance = random.Random(options.seed)
    table = kernel_calls.create_array_map(24 * 8192, kernel_calls.BPF_F_MMAPABLE)
    done = targets = 0
    with built() as directory:
        words = [directory / "hostile", "3000"]
        expected = alone(words)
        while done < options.count:
            with started(words) as target:
                output = _Output(target, 9)
                targets += 1
                while output.text.count("\n") < 9 and target.poll() is None and done < options.count:
                    profiler = subprocess.Popen(
                        [sys.executable, "-c", _INJECTING, str(target.pid), str(table)],
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[table], process_group=0,
                    )  # fmt: skip
                    assert profiler.stdout
                    profiler.stdout.readline()
                    time.sleep(chance.random() * 0.03)
                    os.killpg(profiler.pid, signal.SIGKILL)
                    profiler.communicate()
                    done += 1
                output.join(PATIENCE_S)
                text = f"{output.text}exit {target.wait(PATIENCE_S)}\n"
                result.check(text == expected, f"target {targets}: {text!r}")
            print(f"  {done} kills, {targets} targets", flush=True)
    os.close(table)
    result.done = f"{done} kills on {targets} targets"
    return result


def sanitizers(options: argparse.Namespace) -> Result:
    """Our handler in targets whose runtime watches every access."""
    result = Result("sanitizers")
    pauses = 0
    with built() as directory, engine_loaded() as engine:
        for kind in ("address", "thread"):
            program = directory / f"checksum-{kind}"
            source = WORKLOADS / "checksum.c"
            command = ["cc", *FLAGS, "-fno-inline-functions", f"-fsanitize={kind}", "-o", program, source]
            subprocess.run(command, check=True)
            os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # the program itself leaks a little at its end
            words = [program, "300", "2000"]
            expected = alone(words)
            with started(words) as target:
                output = _Output(target, None)
                attachment = Attachment(engine, program, "mix_lane")
                before = engine.counters()["pauses"]
                engine.add_process(target.pid)
                while output.is_alive():
                    attachment.pause()
                for each in engine.processes():
                    engine.remove_process(each)
                text = f"{_TIMES.sub('', output.text)}exit {target.wait(PATIENCE_S)}\n"
            result.check(text == expected, f"{kind}: {text[-500:]!r}")
            paused = engine.counters()["pauses"] - before
            result.check(paused > 0, f"{kind}: nothing was paused")
            pauses += paused
    result.done = f"AddressSanitizer and ThreadSanitizer, {pauses:,} pauses, no report"
    return result


def source(options: argparse.Namespace) -> Result:
    """The code that runs in targets: warnings are errors, and whatever analyser is installed has nothing to say."""
    result = Result("source")
    stub = ROOT / "bpf" / "stub"
    used = []
    compiler = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fanalyzer", "-c", "-o", os.devnull]
    checks = [("gcc -fanalyzer", [*compiler, *(["-ffreestanding"] if name in ("stub.c", "handler.c") else []),
                                  str(stub / name)])
              for name in sorted(path.name for path in stub.glob("*.c"))]  # fmt: skip
    if shutil.which("cppcheck"):
        checks.append(
            ("cppcheck", ["cppcheck", "--quiet", "--enable=warning,portability", "--inline-suppr",
                          "--error-exitcode=1", str(stub)])
        )  # fmt: skip
    for name, command in checks:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        result.check(done.returncode == 0, f"{name}: {done.stderr[-2000:]}")
        used.append(name)
    result.done = ", ".join(dict.fromkeys(used))
    return result


PARTS = {
    part.__name__: part for part in (programs, cycles, attaches, kills, stops, injections, sanitizers, source)
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench safety", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int, default=200, help="how often (default: %(default)s)")
    parser.add_argument("--longest", type=float, default=0.6, help="kills, stops: latest moment in s (default: 0.6)")
    parser.add_argument("--only", default="", help="programs: only those whose command line has this in it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="file to add a line to")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("error: needs root\nhint: sudo scripts/bench safety ...", file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        result = PARTS[options.part](options)
    except InjectionError as error:
        result = Result(options.part, failures=[f"{error.message} ({error.hint})"])
    line = f"| {result.part} | {result.done} | {len(result.failures)} | {time.monotonic() - began:.0f} s |"
    print(line)
    if options.report:
        with options.report.open("a") as file:
            file.write(line + "\n")
    return 1 if result.failures else 0
