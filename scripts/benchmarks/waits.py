"""Off-CPU time: counted exactly? And what does counting cost programs that switch all the time?

    scripts/bench waits                     both parts
    scripts/bench waits --part exact        beside bpftrace, which sums the same from the same events
    scripts/bench waits --part storm        beside `perf record -e sched:sched_switch -a`

In the first part both watch one process at the same time; bpftrace prints its sum every 20 ms, so that both sums are
of the same seconds. In the second programs that do nothing but hand over run alone, watched by `causal-bpf --no-pauses`
and by perf, in turn: two threads on one core, of which a round is two wakeups and two switches; and perf's own
`bench sched messaging`, which is hackbench.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from causal.attachment import AttachOptions
from causal.looking import joined

from .arguments import PROFILER
from .cases import PROGRAMS
from .machine import describe_machine

_START_UP_S = 4.0
# Sums the time between the switch from a thread of the process and the next one to it.
_SCRIPT = """
tracepoint:sched:sched_switch {
  if (pid == PID) { @left[tid] = nsecs; }
  if (@left[args->next_pid]) { @off = sum(nsecs - @left[args->next_pid]); delete(@left[args->next_pid]); }
}
interval:ms:20 { printf("%lld ", nsecs); print(@off); }
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


class Bpftrace:
    """bpftrace's sum for one process over time. `sum_at`: thread time off the CPU until then, both in ns."""

    def __init__(self, pid: int) -> None:
        words = ["bpftrace", "-e", _SCRIPT.replace("PID", str(pid))]
        self._tracer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._tracer.stdout is not None
        self._tracer.stdout.readline()  # "Attaching 2 probes..."
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._lines.extend, args=(self._tracer.stdout,))
        self._reader.start()

    def stop(self) -> None:
        self._tracer.terminate()
        self._reader.join()
        self._tracer.wait()

    def sum_at(self, time_ns: int) -> float:
        seen = [(int(at), int(total)) for at, total in re.findall(r"(\d+) @off: (\d+)", "".join(self._lines))]
        for (before, low), (after, high) in itertools.pairwise(seen):
            if before <= time_ns < after:
                return low + (high - low) * (time_ns - before) / (after - before)
        raise SystemExit("error: bpftrace printed nothing at that time")


def watch_both(pid: int, seconds: float) -> tuple[Counter[str], float]:
    """Threads of the process off the CPU on average: ours by class, and bpftrace's."""
    other = Bpftrace(pid)
    try:
        with joined(AttachOptions(output=Path(os.devnull), unit="function", pids=[pid])) as (engine, _, _):
            engine.tick(True)
            time.sleep(1)
            began, before = time.monotonic_ns(), engine.waits()
            time.sleep(seconds)
            ended, after = time.monotonic_ns(), engine.waits()
        time.sleep(0.1)
    finally:
        other.stop()
    classes: Counter[str] = Counter()
    for (place, kind), spent_ns in after.items():
        classes[kind.label] += (spent_ns - before.get((place, kind), 0)) / (ended - began)
    return classes, (other.sum_at(ended) - other.sum_at(began)) / (ended - began)


def compare_exactness(seconds: float) -> int:
    """Both profilers on one process; returns how many subjects differ by more than 2 %."""
    if shutil.which("bpftrace") is None:
        raise SystemExit("error: bpftrace is not installed\nhint: sudo apt install bpftrace")
    wrong = 0
    print("| program | causal-bpf: threads off the CPU | by class | bpftrace | difference |\n|---|---|---|---|---|")
    for name, command in SUBJECTS.items():
        with running(command, seconds + 60) as target:
            classes, other = watch_both(target.pid, seconds)
        mine = sum(classes.values())
        wrong += abs(mine / other - 1) > 0.02
        parts = ", ".join(f"{kind} {value:.3f}" for kind, value in classes.items())
        print(f"| {name} | {mine:.3f} | {parts} | {other:.3f} | {mine / other - 1:+.1%} |", flush=True)
    return wrong


def _causal_bpf(verb: str, *words: str) -> list[str]:
    return [PROFILER, verb, "--no-pauses", "-q", "--force", "-u", "function", *words]


def _watched_rate(watcher: Sequence[str], seconds: float) -> float:
    """Rounds per second of two threads that only hand over, on the last core, watched by a command."""
    last = str(max(os.sched_getaffinity(0)))
    with running(("pingpong", "1", "1"), 3600) as target:
        subprocess.run(["taskset", "-a", "-c", "-p", last, str(target.pid)], stdout=subprocess.DEVNULL, check=True)
        words = [word.replace("PID", str(target.pid)) for word in watcher]
        watching = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if words else None
        time.sleep(_START_UP_S)
        before, began = _rounds(target.pid), time.monotonic()
        time.sleep(seconds)
        rate = (_rounds(target.pid) - before) / (time.monotonic() - began)
        if watching is not None:
            if watching.poll() is not None:
                raise SystemExit(f"error: {words[0]} ended early")
            watching.terminate()
            watching.wait()
    return rate


def _rounds(pid: int) -> float:
    # Every round the main thread blocks once.
    text = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return float(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]


def _messaging_s(watcher: Sequence[str], loops: int) -> float:
    """How long hackbench takes: 40 threads that send each other messages."""
    bench = ["perf", "bench", "-f", "simple", "sched", "messaging", "-t", "-g", "1", "-l", str(loops)]
    done = subprocess.run([*watcher, *bench], capture_output=True, text=True, check=False)
    found = re.search(r"^(\d+\.\d+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"error: no time from perf bench: {done.stderr[-300:]}")
    return float(found[1])


def measure_storm(seconds: float, repetitions: int) -> None:
    """Both storms, alone and watched, in turn."""
    loops = round(400 * seconds)
    with tempfile.TemporaryDirectory(prefix="bench-waits-") as place:
        record = ["perf", "record", "-q", "-e", "sched:sched_switch", "-a", "-o", f"{place}/perf.data"]
        ours = ["--duration", "1h", "-o", f"{place}/waits.causal"]
        handing = {"alone": [], "perf": record, "causal-bpf": _causal_bpf("attach", "PID", "-p", "progress", *ours)}
        # A point of the C library that it passes once, since it has none of its own.
        start = _causal_bpf("run", "-p", "exit@libc.so.6", *ours, "--")
        messaging = {"alone": [], "perf": [*record, "--"], "causal-bpf": start}
        rates: dict[str, list[float]] = {name: [] for name in handing}
        times: dict[str, list[float]] = {name: [] for name in messaging}
        for _ in range(repetitions):
            for name in handing:
                rates[name].append(_watched_rate(handing[name], seconds))
                times[name].append(_messaging_s(messaging[name], loops))
    alone, alone_s = statistics.median(rates["alone"]), statistics.median(times["alone"])
    print("\n| watched by | rounds/s | cost per round | hackbench | slower by |\n|---|---|---|---|---|")
    for name in handing:
        rate, took_s = statistics.median(rates[name]), statistics.median(times[name])
        slower = f"{took_s:.2f} s | {took_s / alone_s - 1:+.0%}"
        print(f"| {name} | {rate:,.0f} | {1e6 / rate - 1e6 / alone:+.1f} us | {slower} |")


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
