"""Off-CPU time: counted exactly? And what does counting cost a program that switches all the time?

    scripts/bench waits                     both parts
    scripts/bench waits --part exact        beside bpftrace, which sums the same from the same events
    scripts/bench waits --part storm        beside `perf record -e sched:sched_switch`, on threads that only hand over

In the first part both watch one process at the same time. In the second the program runs alone, under `causal-bpf
attach --no-pauses` and under perf in turn; a round is two wakeups and two switches.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .cases import PROGRAMS, ROOT
from .machine import describe_machine

CAUSAL_BPF = str(ROOT / ".venv" / "bin" / "causal-bpf")
_START_UP_S = 4.0
# Sums the time between the switch from a thread of the process and the next one to it.
_SCRIPT = """
tracepoint:sched:sched_switch {
  if (pid == PID) { @left[tid] = nsecs; }
  if (@left[args->next_pid]) { @off = sum(nsecs - @left[args->next_pid]); delete(@left[args->next_pid]); }
}
END { clear(@left); }
"""
SUBJECTS = {
    "rest --idle 2": ("rest", "500", "5000", "--idle", "2"),
    "disk": ("disk", "4000", "100"),
    "lock": ("lock", "3000", "5000"),
    "oversub": ("oversub", "4400", "3600"),
}


@contextmanager
def running(command: tuple[str, ...], seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A workload that ends by itself after so long."""
    words = [str(PROGRAMS / command[0]), *command[1:], "--seconds", f"{seconds:g}"]
    target = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield target
    finally:
        target.kill()
        target.wait()


def theirs(pid: int, seconds: float) -> float:
    """Threads of the process off the CPU on average, by bpftrace."""
    began = time.monotonic()
    tracer = subprocess.Popen(
        ["bpftrace", "-e", _SCRIPT.replace("PID", str(pid))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert tracer.stdout is not None
    tracer.stdout.readline()  # "Attaching 2 probes..."
    began = time.monotonic()
    time.sleep(seconds)
    tracer.terminate()
    length_s = time.monotonic() - began
    found = re.search(r"@off: (\d+)", tracer.communicate()[0])
    if found is None:
        raise SystemExit("error: bpftrace printed no sum")
    return int(found[1]) / 1e9 / length_s


def ours(pid: int, seconds: float, directory: Path) -> subprocess.Popen[str]:
    """Starts watching the process."""
    words = [CAUSAL_BPF, "attach", str(pid), "--no-pauses", "--quiet", "--force", "-u", "function", "-p", "progress"]
    return subprocess.Popen(
        [*words, "--duration", f"{seconds:g}s", "-o", str(directory / "waits.causal")], stdout=subprocess.DEVNULL
    )


def our_waits(directory: Path) -> dict[str, float]:
    """Threads off the CPU on average, by class."""
    words = [CAUSAL_BPF, "report", str(directory / "waits.causal"), "--json"]
    report = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return dict(report["waits"])


def compare_exactness(seconds: float) -> int:
    """Both profilers on one process; returns how many subjects differ by more than 2 %."""
    if shutil.which("bpftrace") is None:
        raise SystemExit("error: bpftrace is not installed\nhint: sudo apt install bpftrace")
    wrong = 0
    print("| program | causal-bpf: threads off the CPU | by class | bpftrace | difference |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-waits-") as temporary:
        for name, command in SUBJECTS.items():
            with running(command, seconds + 4 * _START_UP_S) as target:
                watcher = ours(target.pid, seconds + 2 * _START_UP_S, Path(temporary))
                time.sleep(_START_UP_S)
                other = theirs(target.pid, seconds)
                watcher.wait()
            classes = our_waits(Path(temporary))
            mine = sum(classes.values())
            wrong += abs(mine / other - 1) > 0.02
            parts = ", ".join(f"{kind} {value:.3f}" for kind, value in classes.items())
            print(f"| {name} | {mine:.3f} | {parts} | {other:.3f} | {mine / other - 1:+.1%} |", flush=True)
    return wrong


def measure_storm(seconds: float, repetitions: int) -> None:
    """Rounds per second of two threads that only hand over, alone and watched, in turn."""
    rates: dict[str, list[float]] = {"alone": [], "causal-bpf": [], "perf": []}
    with tempfile.TemporaryDirectory(prefix="bench-waits-") as temporary:
        watchers: dict[str, Callable[[int], subprocess.Popen[str] | None]] = {
            "alone": lambda pid: None,
            "causal-bpf": lambda pid: ours(pid, 60, Path(temporary)),
            "perf": lambda pid: subprocess.Popen(
                ["perf", "record", "-q", "-e", "sched:sched_switch", "-a", "-o", f"{temporary}/perf.data"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            ),
        }  # fmt: skip
        for _ in range(repetitions):
            for name, watch in watchers.items():
                rates[name].append(_watched_rate(watch, seconds))
    alone = statistics.median(rates["alone"])
    print("\n| watched by | rounds/s | cost per round |\n|---|---|---|")
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"| {name} | {rate:,.0f} | {1e6 / rate - 1e6 / alone:+.1f} us |")


def _watched_rate(watch: Callable[[int], subprocess.Popen[str] | None], seconds: float) -> float:
    # The program counts its rounds from its first on, so it is asked for a rate of its own only once it is watched.
    with running(("pingpong", "1", "1"), 3600) as idle:
        watcher = watch(idle.pid)
        time.sleep(_START_UP_S)
        before, began = _rounds(idle.pid), time.monotonic()
        time.sleep(seconds)
        rate = (_rounds(idle.pid) - before) / (time.monotonic() - began)
        if watcher is not None:
            watcher.terminate()
            watcher.wait()
    return rate


def _rounds(pid: int) -> float:
    # Every round the main thread blocks once.
    text = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return float(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench waits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("exact", "storm"), help="only this part")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement (default 8)")
    parser.add_argument("--repetitions", type=int, default=3, help="of the second part (default 3)")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    print(f"Measured on {machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}.\n")
    wrong = 0 if options.part == "storm" else compare_exactness(options.seconds)
    if options.part != "exact":
        measure_storm(options.seconds, options.repetitions)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
